"""graph.json: a training step that can be planned without its model. docs/graph-format.md describes it for people.

    {"format": "remat-codegen graph", "version": 1, "device": "cpu",
     "nodes": [{"name", "phase", "time_ns", "workspace_bytes", "reads", "writes", "forward", "recomputable", "signature"}, ...],
     "data": [{"id", "name", "kind", "bytes"}, ...],
     "loss": 12, "outputs": [ids of data], "reserve_bytes": 4096, "drawing": [ids of nodes]}

Nodes stand in topological order, the loss between forward and backward nodes; `forward` and `loss` are positions in that list.
Blocks are not in the file: they follow from the rest. `dumps` and `loads` are inverse to each other: what is read back has the
same digest, and therefore the same plans.

Anything without `format` is read as a plain graph of (time, size) nodes, see `plain`. Errors are GraphFileError: one line
that names the node.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from remat_codegen.errors import GraphFileError
from remat_codegen.graph.blocks import cut_into_blocks
from remat_codegen.graph.fields import Fields, fail, rows_of, shown, whole
from remat_codegen.graph.ir import Data, Graph, Kind, Node, Phase, validate
from remat_codegen.graph.plain import Plain, read_plain

FORMAT, VERSION = "remat-codegen graph", 1
LARGEST_TOTAL = 2**56  # bytes of all data together, and nanoseconds of all nodes: sums of many of them stay exact


@dataclass(frozen=True, slots=True)
class Exchange:
    """A graph with its costs: `time_ns` and `workspace_bytes` for each node, as a profile holds them.

    A plain graph's times have no unit: `time_ns` are then the file's times times `scale`, which is None for nanoseconds.
    `notes` say what was assumed while reading. `reserve_bytes` is what a plan has to leave free for what no node shows, and
    `drawing` are the nodes that need a generator's state beside that where they run again.
    """

    graph: Graph
    time_ns: tuple[int, ...]
    workspace_bytes: tuple[int, ...]
    device: str = "cpu"
    scale: int | None = None
    notes: tuple[str, ...] = ()
    reserve_bytes: int = 0
    drawing: tuple[int, ...] = ()


def dumps(exchange: Exchange) -> str:
    """The file's text: one line for each node and data node, so that two versions can be compared."""
    graph = exchange.graph
    nodes = (_node_row(n, exchange.time_ns[n.id], exchange.workspace_bytes[n.id]) for n in graph.nodes)
    data = ({"id": d.id, "name": d.name, "kind": str(d.kind), "bytes": d.nbytes} for d in graph.data)
    lines = [
        f'  "format": {json.dumps(FORMAT)}',
        f'  "version": {VERSION}',
        f'  "device": {json.dumps(exchange.device)}',
        f'  "nodes": {_lines(nodes)}',
        f'  "data": {_lines(data)}',
        f'  "loss": {graph.loss}',
        f'  "outputs": {json.dumps(list(graph.outputs))}',
        *([f'  "reserve_bytes": {exchange.reserve_bytes}'] if exchange.reserve_bytes else []),
        *([f'  "drawing": {json.dumps(list(exchange.drawing))}'] if exchange.drawing else []),
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _node_row(node: Node, time_ns: int, workspace_bytes: int) -> dict[str, Any]:
    return {
        "name": node.name,
        "phase": str(node.phase),
        "time_ns": time_ns,
        "workspace_bytes": workspace_bytes,
        "reads": list(node.reads),
        "writes": list(node.writes),
        "forward": node.forward,
        "recomputable": node.recomputable,
        "signature": node.signature,
    }


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    found = ",\n".join(f"    {json.dumps(row)}" for row in rows)
    return f"[\n{found}\n  ]" if found else "[]"


def load(path: Path, *, add_backward: bool = False) -> Exchange:
    """Reads a graph.json or a plain graph. Raises GraphFileError where it is neither, or malformed."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise GraphFileError(f"cannot read the graph: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise GraphFileError("not a graph: it is not UTF-8 text", where=str(path)) from error
    try:
        return loads(text, add_backward=add_backward)
    except GraphFileError as error:
        raise GraphFileError(error.what, where=str(path), hint=error.hint) from error


def loads(text: str, *, add_backward: bool = False) -> Exchange:
    """The graph that a text describes; `add_backward` gives a plain graph of forward nodes a backward pass.

    Raises GraphFileError where there is none.
    """
    try:
        found: Any = json.loads(text, object_pairs_hook=_object)
    except RecursionError as error:
        raise GraphFileError("not a graph: it is nested too deeply") from error
    except ValueError as error:
        raise GraphFileError(f"not a graph: {error}") from error
    if isinstance(found, dict) and "format" in found:
        if add_backward:
            raise GraphFileError("a graph with a format holds its backward pass", hint="leave out --add-backward")
        return _checked(_read(found))
    plain: Plain = read_plain(found, add_backward)
    return _checked(Exchange(plain.graph, plain.time, plain.workspace_bytes, scale=plain.scale, notes=plain.notes))


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [key for key, _ in pairs]
        fail(f"{next(n for n in names if names.count(n) > 1)!r} stands twice in one object")
    return found


def _checked(exchange: Exchange) -> Exchange:
    """The graph with its blocks. Raises GraphFileError where it breaks the IR's rules, or is too large to count."""
    graph = exchange.graph
    try:
        validate(graph)
    except ValueError as error:
        fail(str(error))
    _check_sides(graph)
    if not sum(exchange.time_ns) <= LARGEST_TOTAL:
        fail("the times are too large together")
    if sum(d.nbytes for d in graph.data) + max(exchange.workspace_bytes, default=0) > LARGEST_TOTAL:
        fail(f"the sizes are too large together: more than {LARGEST_TOTAL} bytes")
    return replace(exchange, graph=replace(graph, blocks=cut_into_blocks(graph))) if graph.loss else exchange


def _check_sides(graph: Graph) -> None:
    """What planners rely on beside the IR's rules."""
    for data, writing in enumerate(graph.producers):
        if writing[0] < graph.loss <= writing[-1]:
            name = graph.data[data].name
            fail(f"{_name(graph, writing[-1])} writes {name} after the loss, which is written before it, too")
    for node in graph.nodes:
        if node.forward is not None and (node.phase is not Phase.BACKWARD or node.forward >= graph.loss):
            fail(f"{_name(graph, node.id)} belongs to forward node {node.forward}, which cannot be")


def _name(graph: Graph, node: int) -> str:
    return f"node {node} ({graph.nodes[node].name[:60]})"


# ---------------------------------------------------------------------------------------------- our own format


def _read(found: dict[str, Any]) -> Exchange:
    if found["format"] != FORMAT:
        fail(f"the format is {shown(found['format'])}, not {FORMAT!r}")
    if found.get("version") != VERSION or type(found.get("version")) is not int:
        fail(f"version {shown(found.get('version'))} of the format is not supported, only {VERSION}", hint="trace it again")
    device = found.get("device", "cpu")
    if not isinstance(device, str):
        fail("the device is no text")
    data, number = _data(rows_of(found, "data"))
    rows = rows_of(found, "nodes")
    nodes = [_node(i, row, number, len(rows)) for i, row in enumerate(rows)]
    loss = whole(found.get("loss"), "the loss", len(rows) - 1)
    outputs = _references(found.get("outputs", []), number, "the list of outputs")
    graph = Graph(tuple(n for n, _, _ in nodes), data, loss, outputs)
    reserve = whole(found.get("reserve_bytes", 0), "the reserve", LARGEST_TOTAL)
    times, workspaces = tuple(t for _, t, _ in nodes), tuple(w for _, _, w in nodes)
    return Exchange(graph, times, workspaces, device, reserve_bytes=reserve, drawing=_drawing(found, graph))


def _drawing(found: dict[str, Any], graph: Graph) -> tuple[int, ...]:
    drawing = found.get("drawing", [])
    if not isinstance(drawing, list):
        fail("the nodes that draw random numbers are no list")
    for node in drawing:
        if not graph.nodes[whole(node, "a node that draws", len(graph.nodes) - 1)].recomputable:
            fail(f"{_name(graph, node)} draws random numbers, and cannot run again")
    return tuple(drawing)


def _data(rows: list[Any]) -> tuple[tuple[Data, ...], dict[Any, int]]:
    number: dict[Any, int] = {}
    data = []
    for position, row in enumerate(rows):
        fields = Fields(row, f"data {position}", ("id", "name", "kind", "bytes"))
        key = fields.key("id")
        fields.place = f"data {shown(key)}"
        if key in number:
            fail(f"{fields.place} stands twice")
        number[key] = position
        kind = fields.choice("kind", tuple(str(k) for k in Kind))
        data.append(Data(position, fields.text("name", str(key)), Kind(kind), fields.size("bytes")))
    return tuple(data), number


def _node(position: int, row: Any, number: dict[Any, int], count: int) -> tuple[Node, int, int]:
    known = ("name", "phase", "time_ns", "workspace_bytes", "reads", "writes", "forward", "recomputable", "signature")
    fields = Fields(row, f"node {position}", known)
    name = fields.text("name", f"node{position}")
    fields.place = f"node {position} ({name[:60]})"
    phase = Phase(fields.choice("phase", tuple(str(p) for p in Phase)))
    reads = _references(fields.required("reads"), number, fields.place)
    writes = _references(fields.required("writes"), number, fields.place)
    forward = None if fields.get("forward") is None else whole(fields.get("forward"), f"{fields.place}: forward", count - 1)
    recomputable = fields.flag("recomputable", phase is Phase.FORWARD)
    signature = fields.text("signature", "")
    node = Node(position, name, phase, reads, writes, forward, recomputable, signature)
    return node, fields.size("time_ns"), fields.size("workspace_bytes", 0)


def _references(found: Any, number: dict[Any, int], place: str) -> tuple[int, ...]:
    if not isinstance(found, list):
        fail(f"{place} names its data by {shown(found)}, which is no list")
    for key in found:
        if isinstance(key, bool) or not isinstance(key, (int, str)) or key not in number:
            fail(f"{place} names data {shown(key)}, which does not exist")
    if len(set(found)) != len(found):
        fail(f"{place} names data {shown(next(k for k in found if found.count(k) > 1))} twice")
    return tuple(number[key] for key in found)
