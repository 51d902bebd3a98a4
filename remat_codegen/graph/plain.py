"""Reads a plain graph of (time, size) nodes, as rematerialization papers publish them: forward and backward nodes alike.

    {"nodes": [{"id": "conv1", "time": 3, "size": 4096, "deps": []}, ...], "edges": [["conv1", "relu1"], ...]}

Each node computes one result of `size` bytes from the results of its `deps`. What a file may say, and under which names, stands
in docs/graph-format.md. Nodes may come in any order; they are put into topological order, the file's where it is one.

- Nodes marked `backward` run once, after all others; their results are gradients. Without a `loss` one of no cost is put in
  between.
- Where nothing is marked, nobody knows where the forward pass ends. Plans are valid wherever it does: what stands before may
  be computed again after it. It is taken to end before the node that runs while most is alive.
- Where every node is marked as forward, or on request, a backward pass is added as in Checkmate (Jain et al. 2020, section 6):
  for each node in reverse one of `BACKWARD_TIMES` its time, which reads the node's inputs, its result and that one's gradient,
  and contributes to the inputs' gradients, as large as the inputs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_codegen.graph.fields import fail, flag_of, key, number, shown
from remat_codegen.graph.ir import Data, Graph, Kind, Node, Phase

IDS = ("id", "name", "key")
TIMES = ("time", "cost", "compute", "time_ns", "duration", "flops")
SIZES = ("size", "memory", "mem", "bytes", "nbytes", "ram")
WORKSPACES = ("workspace", "workspace_bytes")
INPUTS = ("deps", "inputs", "dependencies", "parents", "predecessors")
BACKWARD_TIMES = 2
RESOLUTION = 10**9  # fractional times are scaled by a power of ten until their sum is about this


@dataclass(frozen=True, slots=True)
class Plain:
    """What was read: a graph without blocks, its times (the file's times `scale`), workspaces in bytes, and notes."""

    graph: Graph
    time: tuple[int, ...]
    workspace_bytes: tuple[int, ...]
    scale: int
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Row:
    """One node of the file. `backward` is None where it does not say."""

    key: int | str
    name: str
    time: int | float
    size: int
    workspace: int
    backward: bool | None
    recomputable: bool
    inputs: list[Any]


def read_plain(found: Any, add_backward: bool) -> Plain:
    """The graph that a parsed JSON file describes. Raises GraphFileError."""
    top: dict[str, Any] = {"nodes": found} if isinstance(found, list) else found
    if not isinstance(top, dict) or "nodes" not in top:
        fail("not a graph: it has no nodes", hint="docs/graph-format.md says how a graph is written")
    rows = _rows(top["nodes"])
    index = {row.key: i for i, row in enumerate(rows)}
    inputs = _inputs(rows, index, top.get("edges", top.get("links")))
    loss = None if top.get("loss") is None else _find(top["loss"], index, "the loss")
    outputs = _outputs(top.get("outputs"), index)
    known = [row.backward for row in rows if row.backward is not None]
    if add_backward and any(known):
        fail("the graph has backward nodes already", hint="leave out --add-backward")
    times, scale = _whole_times(rows)
    builder = _Builder(rows, inputs, times, scale, loss, outputs)
    if any(known):
        return builder.step()
    if add_backward or (len(known) == len(rows)):
        return builder.with_backward()
    return builder.unmarked()


# ---------------------------------------------------------------------------------------------- reading


def _rows(found: Any) -> list[_Row]:
    if isinstance(found, dict):
        found = [{**row, "id": name} if isinstance(row, dict) else [name, row] for name, row in found.items()]
    if not isinstance(found, list):
        fail(f"the nodes are {shown(found)}, not a list")
    if not found:
        fail("the list of nodes is empty")
    rows = [_row(position, row) for position, row in enumerate(found)]
    seen: set[Any] = set()
    for row in rows:
        if row.key in seen:
            fail(f"node {shown(row.key)} stands twice")
        seen.add(row.key)
    return rows


def _row(position: int, row: Any) -> _Row:
    if isinstance(row, list):
        if len(row) not in (2, 3):
            fail(f"node {position} is {shown(row)}, not [time, size] or [id, time, size]")
        row = dict(zip(("id", "time", "size"), row if len(row) == 3 else [position, *row], strict=True))
    if not isinstance(row, dict):
        fail(f"node {position} is {shown(row)}, not an object")
    named = _value(row, IDS, f"node {position}")
    own = position if named is None else key(named, f"node {position}: id")
    place = f"node {shown(own)}"
    time, size = _value(row, TIMES, place), _value(row, SIZES, place)
    if time is None or size is None:
        fail(f"{place} has no {'time' if time is None else 'size'}")
    inputs = _value(row, INPUTS, place) or []
    if not isinstance(inputs, list):
        fail(f"{place} has inputs that are {shown(inputs)}, not a list")
    return _Row(
        own,
        _name(row, own, place),
        number(time, f"{place}: time"),
        math.ceil(number(size, f"{place}: size")),
        math.ceil(number(_value(row, WORKSPACES, place) or 0, f"{place}: workspace")),
        _backward(row, place),
        flag_of(row, "recomputable", True, place),
        inputs,
    )


def _name(row: dict[str, Any], own: int | str, place: str) -> str:
    name = row.get("name", str(own))
    if isinstance(name, bool) or not isinstance(name, (int, str)):
        fail(f"{place}: name is {shown(name)}, not a text")
    return str(name)


def _value(row: dict[str, Any], names: Sequence[str], place: str) -> Any:
    """The value under the one of some names that a row has."""
    given = [n for n in names if row.get(n) is not None]
    if len(given) > 1 and names is not IDS:
        fail(f"{place} has both {given[0]} and {given[1]}")
    return row[given[0]] if given else None


def _backward(row: dict[str, Any], place: str) -> bool | None:
    phase = row.get("phase")
    if phase is not None and phase not in ("forward", "backward"):
        fail(f"{place}: phase is {shown(phase)}, neither forward nor backward")
    if row.get("backward") is None:
        return None if phase is None else phase == "backward"
    return flag_of(row, "backward", False, place)


def _find(value: Any, index: dict[Any, int], place: str) -> int:
    """A node by its id."""
    if key(value, place) not in index:
        fail(f"{place} is {shown(value)}, which is no node")
    return index[value]


def _outputs(found: Any, index: dict[Any, int]) -> list[int]:
    if found is not None and not isinstance(found, list):
        fail("the outputs are no list")
    return [_find(value, index, "an output") for value in found or []]


def _inputs(rows: Sequence[_Row], index: dict[Any, int], edges: Any) -> list[list[int]]:
    """For each node what it reads, without repetitions, from the nodes and the list of edges."""
    table: list[dict[int, None]] = []
    for row in rows:
        table.append(dict.fromkeys(_find(k, index, f"an input of node {shown(row.key)}") for k in row.inputs))
    if edges is not None and not isinstance(edges, list):
        fail("the edges are no list")
    for edge in edges or []:
        if isinstance(edge, dict):
            edge = [edge.get("source"), edge.get("target")]
        if not isinstance(edge, list) or len(edge) != 2:
            fail(f"an edge is {shown(edge)}, not [from, to]")
        source, target = (_find(end, index, f"an end of edge {shown(edge)}") for end in edge)
        table[target][source] = None
    for i, reads in enumerate(table):
        if i in reads:
            fail(f"node {shown(rows[i].key)} reads its own result")
    return [list(reads) for reads in table]


def _whole_times(rows: Sequence[_Row]) -> tuple[list[int], int]:
    """The times as integers, and what they were multiplied with: 1 where all are integers."""
    if all(float(row.time).is_integer() for row in rows):
        return [int(row.time) for row in rows], 1
    total, scale = sum(row.time for row in rows), 1
    while total * scale < RESOLUTION and scale < 10**18:
        scale *= 10
    return [round(row.time * scale) for row in rows], scale


# ---------------------------------------------------------------------------------------------- building


class _Builder:
    """Makes a graph of rows. Node numbers are positions in the file until `_order` has put them in order."""

    def __init__(
        self,
        rows: Sequence[_Row],
        inputs: Sequence[Sequence[int]],
        times: Sequence[int],
        scale: int,
        loss: int | None,
        outputs: Sequence[int],
    ) -> None:
        self.rows, self.inputs, self.times, self.scale, self.loss, self.outputs = rows, inputs, times, scale, loss, outputs

    def step(self) -> Plain:
        """A step whose backward nodes are marked."""
        back = [bool(row.backward) for row in self.rows]
        if self.loss is not None and back[self.loss]:
            fail(f"the loss, {shown(self.rows[self.loss].key)}, is marked as a backward node")
        for i, reads in enumerate(self.inputs):
            late = next((r for r in reads if back[r] and not back[i]), None)
            if late is not None:
                fail(f"forward node {shown(self.rows[i].key)} reads backward node {shown(self.rows[late].key)}")
        order = self._order([(b, i == self.loss) for i, b in enumerate(back)])
        return self._graph(order, len(order) - sum(back), ())

    def unmarked(self) -> Plain:
        """A graph that does not say where its backward nodes begin."""
        order = self._order([(False, False)] * len(self.rows))
        if self.loss is not None:
            before = self._before(self.loss)
            order = [*(i for i in order if i in before), *(i for i in order if i not in before)]
            return self._graph(order, len(before), ())
        first = self._fullest(order)
        note = f"no node is marked as backward: what comes before {shown(self.rows[order[first]].key)} may be computed again"
        hint = "mark backward nodes, name the loss, or use --add-backward where the graph is a forward pass"
        return self._graph(order, first, (f"{note}; {hint}",))

    def with_backward(self) -> Plain:
        """A forward pass, with a backward pass made for it."""
        order = self._order([(False, i == self.loss) for i in range(len(self.rows))])
        plain = self._graph(order, len(order), (f"the backward pass was added: {BACKWARD_TIMES} times each node's time",))
        return _going_back(plain)

    def _before(self, node: int) -> set[int]:
        """A node and all it needs."""
        found, pending = {node}, [node]
        while pending:
            for read in self.inputs[pending.pop()]:
                if read not in found:
                    found.add(read)
                    pending.append(read)
        return found

    def _order(self, late: Sequence[tuple[bool, bool]]) -> list[int]:
        """A topological order; among what is ready, the least `late`, then the first in the file. Fails on cycles."""
        readers: list[list[int]] = [[] for _ in self.rows]
        waiting = [len(reads) for reads in self.inputs]
        for i, reads in enumerate(self.inputs):
            for read in reads:
                readers[read].append(i)
        ready = [(late[i], i) for i, count in enumerate(waiting) if not count]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, node = heapq.heappop(ready)
            order.append(node)
            for reader in readers[node]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    heapq.heappush(ready, (late[reader], reader))
        if len(order) < len(self.rows):
            self._cycle(waiting)
        return order

    def _cycle(self, waiting: Sequence[int]) -> None:
        """Names a cycle: a node that waits reads one that waits."""
        path, node = [], next(i for i, count in enumerate(waiting) if count)
        while node not in path:
            path.append(node)
            node = next(r for r in self.inputs[node] if waiting[r])
        names = [shown(self.rows[i].key) for i in path[path.index(node) :]]
        rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
        fail(f"the graph has a cycle: node {', '.join(names[:5])}{rest} read each other's results")

    def _fullest(self, order: Sequence[int]) -> int:
        """The position of the first node that runs while most is alive: a backward node, where gradients come on top."""
        last = {i: p for p, i in enumerate(order)} | {r: p for p, i in enumerate(order) for r in self.inputs[i]}
        ends: list[list[int]] = [[] for _ in order]
        for node, position in last.items():
            ends[position].append(node)
        alive = most = where = 0
        for position, node in enumerate(order):
            alive += self.rows[node].size
            if alive + self.rows[node].workspace > most:
                most, where = alive + self.rows[node].workspace, position
            alive -= sum(self.rows[i].size for i in ends[position])
        return max(where, min(1, len(order) - 1))

    def _graph(self, order: Sequence[int], first: int, notes: tuple[str, ...]) -> Plain:
        """The graph whose nodes from `first` on stand after a loss of no cost (or the loss that was named)."""
        own = self.loss is not None and first > 0 and order[first - 1] == self.loss
        place = {node: data for data, node in enumerate(order)}
        data = [Data(p, self.rows[i].name, _kind(p, first - own), self.rows[i].size) for p, i in enumerate(order)]
        nodes: list[Node] = []
        costs: list[tuple[int, int]] = []
        for position, i in enumerate(order):
            if position == first and not own:
                nodes.append(Node(len(nodes), "loss", Phase.LOSS, (), (), None, False, "loss"))
                costs.append((0, 0))
            row = self.rows[i]
            phase = Phase.LOSS if own and position == first - 1 else Phase.FORWARD if position < first else Phase.BACKWARD
            reads = tuple(sorted(place[r] for r in self.inputs[i]))
            again = phase is Phase.FORWARD and row.recomputable
            nodes.append(Node(len(nodes), row.name, phase, reads, (position,), None, again))
            costs.append((self.times[i], row.workspace))
        if first == len(order) and not own:
            nodes.append(Node(len(nodes), "loss", Phase.LOSS, (), (), None, False, "loss"))
            costs.append((0, 0))
        graph = Graph(tuple(nodes), tuple(data), first - own, tuple(sorted({place[o] for o in self.outputs})))
        graph = _paired(graph)
        return Plain(graph, tuple(t for t, _ in costs), tuple(w for _, w in costs), self.scale, notes)


def _kind(position: int, loss: int) -> Kind:
    return Kind.VALUE if position < loss else Kind.GRADIENT


def _paired(graph: Graph) -> Graph:
    """The graph with each backward node's forward node, where the backward pass mirrors the forward pass: as many nodes, each
    of which reads its counterpart's result and inputs, and of the backward results those of its readers' counterparts."""
    back = graph.backward_nodes
    if len(back) != graph.loss:
        return graph
    forward = graph.loss - 1
    readers = graph.readers
    for node in back:
        mirror = graph.nodes[forward - (node.id - graph.loss - 1)]
        allowed = {*mirror.reads, *mirror.writes, *graph.nodes[graph.loss].writes}
        for later in (r for d in mirror.writes for r in readers[d] if r < graph.loss):
            allowed.update(graph.nodes[graph.loss + 1 + forward - later].writes)
        if not allowed.issuperset(node.reads):
            return graph
    mirrored = tuple(replace(n, forward=forward - (n.id - graph.loss - 1)) for n in back)
    return replace(graph, nodes=(*graph.nodes[: graph.loss + 1], *mirrored))


def _going_back(plain: Plain) -> Plain:
    """A forward pass with a backward pass. What nothing reads gets its gradient from the loss."""
    graph, time, workspace = plain.graph, list(plain.time), list(plain.workspace_bytes)
    forward = graph.forward_nodes
    data = list(graph.data)
    gradient: dict[int, int] = {}
    for value in range(graph.loss):
        gradient[value] = len(data)
        data.append(Data(len(data), f"grad {data[value].name}", Kind.GRADIENT, data[value].nbytes))
    read = {d for n in forward for d in n.reads}
    loss = graph.nodes[graph.loss]
    seeds = sorted({*(gradient[d] for d in range(graph.loss) if d not in read), *(gradient[d] for d in loss.reads)})
    nodes = [*forward, replace(loss, writes=(*loss.writes, *seeds))]
    for node in reversed(forward):
        reads = tuple(sorted({*node.reads, *node.writes, *(gradient[d] for d in node.writes)}))
        writes = tuple(gradient[d] for d in node.reads)
        nodes.append(Node(len(nodes), f"grad {node.name}", Phase.BACKWARD, reads, writes, node.id, False))
        time.append(BACKWARD_TIMES * plain.time[node.id])
        workspace.append(plain.workspace_bytes[node.id])
    whole = Graph(tuple(nodes), tuple(data), graph.loss, graph.outputs)
    return replace(plain, graph=whole, time=tuple(time), workspace_bytes=tuple(workspace))
