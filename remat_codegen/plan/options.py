"""The ways to run one block: a family of rk-Checkmate solutions over budgets for the peak and for what is kept (Rockmate, section 3.3).

A block is cut out of its graph as a *piece*: a graph of its own, whose loss stands for everything between the block's forward
and its backward nodes. Outside a piece, and no cost of its own, are the block's input and the data that are *pinned*.
Pieces that are equal have equal options, so a family is solved once for each distinct piece.

The family: for a few peaks from the most that a step needs to the least that any order needs, and for each peak, budgets for what
is kept from all to nothing. The epsilon step (the next budget is the next one below what the last solution used) skips the
budgets that are answered already; dominated options are dropped. Pieces too large for the ILP take the greedy orders instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from remat_codegen.graph.ir import Block, Data, Graph, Kind, Node, Phase
from remat_codegen.plan import checkmate
from remat_codegen.plan.greedy import greedy_orders
from remat_codegen.plan.result import Status
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Compute, simulate, with_forgets

SMALL_SHARE = 0.01  # what must outlive its block and is at most this part of the largest data is pinned rather than planned


@dataclass(frozen=True, slots=True)
class Grid:
    """How finely a family is spaced, and when the exact solver gives way: `largest` in forward nodes, `time_limit_s` for one ILP."""

    saved_levels: int = 10
    peak_levels: int = 3
    time_limit_s: float = 10.0
    gap: float = 1e-3
    largest: int = 60


@dataclass(frozen=True, slots=True)
class Piece:
    """A block as a graph of its own. Equal pieces have equal options; names are left out of it.

    `output_bytes` is the size of the value that the next block reads, `entering_bytes` that of the gradients that come in.
    """

    graph: Graph
    profile: Profile
    output: int | None
    entering_bytes: int

    @property
    def output_bytes(self) -> int:
        """The size of what the next block reads."""
        return 0 if self.output is None else self.graph.data[self.output].nbytes


@dataclass(frozen=True, slots=True)
class Option:
    """A way to run a piece forward and backward, with its input outside.

    `forward` and `backward` are node ids of the piece; `again` are the forward nodes worth running when the block is run for the second
    time. `saved_bytes` is kept between the two beside the output; `forward_peak_bytes` includes the output,
    `backward_peak_bytes` the gradients that come in.
    """

    forward: tuple[int, ...]
    again: tuple[int, ...]
    backward: tuple[int, ...]
    forward_ns: int
    again_ns: int
    backward_ns: int
    saved_bytes: int
    forward_peak_bytes: int
    backward_peak_bytes: int

    @property
    def time_ns(self) -> int:
        """Both directions."""
        return self.forward_ns + self.backward_ns


@dataclass(frozen=True, slots=True)
class Family:
    """The options of a piece, cheapest first; `pass_*` is its forward run that keeps only the output (F-null in the paper)."""

    piece: Piece
    options: tuple[Option, ...]
    pass_nodes: tuple[int, ...]
    pass_again: tuple[int, ...]
    pass_ns: int
    pass_again_ns: int
    pass_peak_bytes: int
    solves: int
    timed_out: bool


def pinned_data(graph: Graph) -> frozenset[int]:
    """Data that stay from their first run to their last reader: what the caller gets, what several blocks read, what cannot be rebuilt."""
    home = {n: b.id for b in graph.blocks for n in range(b.first, b.last + 1)}
    given = {(b.id, b.input) for b in graph.blocks}
    once = checkmate.runs_once(graph)
    readers, producers = graph.readers(), graph.producers()
    small = max((d.nbytes for d in graph.data), default=0) * SMALL_SHARE
    pinned = set(graph.outputs)
    for data, (reading, writing) in enumerate(zip(readers, producers, strict=True)):
        if writing[0] >= graph.loss:
            continue
        places = {home[p] for r in reading if (p := _forward(graph, r)) is not None}
        crosses = any(b != home[writing[0]] and (b, data) not in given for b in places)
        if crosses or (reading and writing[0] in once and graph.data[data].nbytes <= small):
            pinned.add(data)
    return frozenset(pinned)


def _forward(graph: Graph, node: int) -> int | None:
    """The forward node that a node is or belongs to; None for the loss."""
    return node if node < graph.loss else graph.nodes[node].forward


def cut_out(graph: Graph, profile: Profile, block: Block, pinned: frozenset[int]) -> tuple[Piece, tuple[int, ...]]:
    """The piece of a block, and for each of its nodes the node of the graph (the graph's loss stands for the piece's)."""
    inside = range(block.first, block.last + 1)
    backward = [n.id for n in graph.backward_nodes if n.forward in inside]
    is_last = block.id == len(graph.blocks) - 1
    nodes = (*inside, graph.loss, *backward)
    entering, leaving = _gradients(graph, nodes, backward, is_last)
    outside = pinned | ({block.input} if block.input is not None else set())
    loss_reads = () if block.output is None else (block.output,)
    local: dict[int, int] = {}

    def number(data: Sequence[int]) -> tuple[int, ...]:
        return tuple(local.setdefault(d, len(local)) for d in data if d not in outside)

    rows = []
    for index, node in enumerate(graph.nodes[i] for i in nodes):
        at_loss = node.id == graph.loss
        reads = number(loss_reads if at_loss and not is_last else node.reads)
        writes = number(entering if at_loss else node.writes)
        belongs = None if node.forward is None else node.forward - block.first
        rows.append(Node(index, "", node.phase, reads, writes, belongs, node.recomputable, node.signature if not at_loss else ""))
    data = tuple(Data(i, "", graph.data[d].kind, graph.data[d].nbytes) for i, d in enumerate(local))
    piece_graph = Graph(tuple(rows), data, len(inside), number(leaving))
    own = [i != graph.loss or is_last for i in nodes]
    costs = [(profile.time_ns[i], profile.workspace_bytes[i]) if o else (0, 0) for i, o in zip(nodes, own, strict=True)]
    piece_profile = Profile(tuple(t for t, _ in costs), tuple(w for _, w in costs), profile.device)
    output = None if block.output is None or block.output in outside else local.get(block.output)
    entering_bytes = 0 if is_last else sum(graph.data[d].nbytes for d in entering)
    return Piece(piece_graph, piece_profile, output, entering_bytes), nodes


def _gradients(graph: Graph, nodes: Sequence[int], backward: list[int], is_last: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The gradients alive when a block's backward nodes begin, and when they end; bypassing ones are among both."""
    if is_last:
        first = graph.loss + 1
    else:
        first = backward[0] if backward else _next_backward(graph, nodes[0])
    end = backward[-1] + 1 if backward else first
    entering, leaving = [], []
    for data, (reads, writes) in enumerate(zip(graph.readers(), graph.producers(), strict=True)):
        if writes[0] < graph.loss:
            continue
        last = reads[-1] if reads else writes[-1]
        if (writes[0] < first and last >= first) or (is_last and writes[0] == graph.loss):
            entering.append(data)
        if writes[0] < end <= last or data in graph.outputs:
            leaving.append(data)
    return tuple(entering), tuple(leaving)


def _next_backward(graph: Graph, first: int) -> int:
    """Where the backward nodes of a block without any would stand."""
    return next((n.id for n in graph.backward_nodes if n.forward is not None and n.forward < first), len(graph.nodes))


def solve_family(piece: Piece, grid: Grid, advance: Callable[[], None] | None = None) -> Family:
    """The options of a piece."""
    graph = piece.graph
    search = _Search(piece, grid, advance)
    natural = tuple(range(len(graph.nodes)))
    search.add(natural)
    if len(graph.backward_nodes) and graph.loss > grid.largest:
        for order in greedy_orders(graph, piece.profile):
            search.add(order)
    elif len(graph.backward_nodes):
        search.run()
    keep_nothing = _needed_for(graph, range(graph.loss), graph.nodes[graph.loss].reads)
    peaks = simulate(graph, piece.profile, with_forgets(graph, natural[: graph.loss + 1]))
    return Family(
        piece,
        _undominated(search.options),
        natural[: graph.loss],
        keep_nothing,
        _time(piece.profile, natural[: graph.loss]),
        _time(piece.profile, keep_nothing),
        _pass_peak(piece),
        search.solves,
        search.timed_out,
    )
