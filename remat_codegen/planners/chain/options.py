"""The ways to run one block: a family of rk-Checkmate solutions over budgets for the peak and for what is kept (Rockmate,
section 3.3).

A block is cut out of its graph as a *piece*: a graph of its own, whose loss stands for everything between the block's forward
and its backward nodes. Outside a piece, and no cost of its own, are the block's input and the data that are *pinned*.
Pieces that are equal have equal options, so a family is solved once for each distinct piece.

The family: for a few peaks from the most that a step needs to the least that any order needs, and for each peak, budgets for
what is kept from all to nothing. The epsilon step (the next budget is the next one below what the last solution used) skips the
budgets that are answered already; dominated options are dropped. Pieces too large for the ILP take the orders of a heuristic
instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from remat_codegen.graph.ir import Block, Data, Graph, Node
from remat_codegen.planners.base import rk_checkmate
from remat_codegen.planners.base.deadline import Effort
from remat_codegen.planners.base.result import Status
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Compute, simulate, with_forgets
from remat_codegen.schedule.order import runs_once, saved_bytes

SMALL_SHARE = 0.01  # what must outlive its block and is at most this part of the largest data is pinned rather than planned


@dataclass(frozen=True, slots=True)
class Grid:
    """How finely a family is spaced, and when the exact solver gives way: `largest` in forward nodes, `per_solve`
    seconds for one ILP, `family_s` for all of a family. `search_work` is how much is searched beyond that, in nodes visited."""

    saved_levels: int = 10
    peak_levels: int = 3
    per_solve: float = 10.0
    family_s: float = 120.0
    gap: float = 1e-3
    largest: int = 25
    search_work: int = 400_000

    def timed(self, effort: Effort) -> Grid:
        """The same, with as long for one ILP as an effort says, if it does."""
        return replace(self, per_solve=effort.one_solve(self.per_solve))


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

    `backward` are node ids of the piece, from its loss on. `saved_bytes` is kept between the two beside the output;
    `forward_peak_bytes` includes the output, `backward_peak_bytes` the gradients that come in. When the block runs forward a
    second time, nodes that nothing needs are left out: `again_ns` if its output is wanted, `alone_ns` if not.
    """

    backward: tuple[int, ...]
    forward_ns: int
    again_ns: int
    alone_ns: int
    backward_ns: int
    saved_bytes: int
    forward_peak_bytes: int
    backward_peak_bytes: int

    def beats(self, other: Option) -> bool:
        """Whether it is at least as good in every respect."""
        return all(a <= b for a, b in zip(self._merits(), other._merits(), strict=True))

    def _merits(self) -> tuple[int, ...]:
        total, again, alone = self.backward_ns, self.again_ns + self.backward_ns, self.alone_ns + self.backward_ns
        return total, again, alone, self.saved_bytes, self.forward_peak_bytes, self.backward_peak_bytes


@dataclass(frozen=True, slots=True)
class Family:
    """The options of a piece, cheapest first; `pass_*` is its forward run that keeps only the output (F-null in the paper).

    `solves` counts the integer programs that it took, `timed_out` says whether one was stopped early.
    """

    piece: Piece
    options: tuple[Option, ...]
    pass_ns: int
    pass_again_ns: int
    pass_peak_bytes: int
    solves: int
    timed_out: bool


def pinned_data(graph: Graph) -> frozenset[int]:
    """Data that stay from their first run to their last reader: what the caller gets, what several blocks read, what
    cannot be rebuilt."""
    home = {n: b.id for b in graph.blocks for n in range(b.first, b.last + 1)}
    given = {(b.id, b.input) for b in graph.blocks}
    once = runs_once(graph)
    readers, producers = graph.readers, graph.producers
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
        rows.append(Node(index, "", node.phase, reads, writes, belongs, node.recomputable))
    data = tuple(Data(i, "", graph.data[d].kind, graph.data[d].nbytes) for i, d in enumerate(local))
    piece_graph = Graph(tuple(rows), data, len(inside), number(leaving))
    own = [i != graph.loss or is_last for i in nodes]
    costs = [(profile.time_ns[i], profile.workspace_bytes[i]) if o else (0, 0) for i, o in zip(nodes, own, strict=True)]
    piece_profile = Profile(tuple(t for t, _ in costs), tuple(w for _, w in costs), profile.device)
    output = None if block.output is None or block.output in outside else local.get(block.output)
    entering_bytes = 0 if is_last else sum(graph.data[d].nbytes for d in entering)
    return Piece(piece_graph, piece_profile, output, entering_bytes), nodes


def _gradients(
    graph: Graph, nodes: Sequence[int], backward: list[int], is_last: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The gradients alive when a block's backward nodes begin, and when they end; bypassing ones are among both."""
    if is_last:
        first = graph.loss + 1
    else:
        first = backward[0] if backward else _next_backward(graph, nodes[0])
    end = backward[-1] + 1 if backward else first
    entering, leaving = [], []
    for data, (reads, writes) in enumerate(zip(graph.readers, graph.producers, strict=True)):
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


Heuristic = Callable[[Graph, Profile], Sequence[tuple[int, ...]]]


def solve_family(piece: Piece, grid: Grid, heuristic: Heuristic) -> Family:
    """The options of a piece: by the ILP, or by `heuristic` (orders of a graph, whatever their peaks) where the
    piece is large, or the ILPs take too long."""
    graph, profile = piece.graph, piece.profile
    search = _Search(piece, grid)
    search.add(tuple(range(len(graph.nodes))))
    if graph.backward_nodes and all(n.recomputable for n in graph.forward_nodes):  # as torch.utils.checkpoint does
        search.add((*range(graph.loss + 1), *range(graph.loss), *range(graph.loss + 1, len(graph.nodes))))
    if graph.backward_nodes and graph.loss <= grid.largest:
        search.run()
    if graph.backward_nodes and (graph.loss > grid.largest or search.out_of_time):
        for order in heuristic(graph, profile):
            search.add(order)
    forward = tuple(range(graph.loss + 1))
    during = simulate(graph, profile, schedule := with_forgets(graph, forward)).during_bytes
    peak = max(during[: schedule.steps.index(Compute(graph.loss))], default=0)
    again_ns = _time(profile, _needed(graph, forward, True))
    options = _undominated(search.options)
    return Family(piece, options, _time(profile, forward[:-1]), again_ns, peak, search.solves, search.timed_out)


class _Search:
    """Walks the grid of budgets; remembers what was asked, so that nothing is asked twice."""

    def __init__(self, piece: Piece, grid: Grid) -> None:
        self.piece, self.grid = piece, grid
        self.options: list[Option] = []
        self.answers: list[tuple[int, int, Option | None]] = []  # peak and saved budget, and the fastest option within them
        self.solves = 0
        self.timed_out = False
        self.last = time.monotonic() + grid.family_s

    @property
    def out_of_time(self) -> bool:
        """Whether the time for all programs together is over."""
        return time.monotonic() > self.last

    def add(self, order: tuple[int, ...]) -> Option:
        """Takes an order in; returns it as an option."""
        option = option_of(self.piece, order)
        if option not in self.options:
            self.options.append(option)
        return option

    def run(self) -> None:
        """All the budgets."""
        most = self.options[0]
        highest = max(most.forward_peak_bytes, most.backward_peak_bytes)
        self.answers.append((highest, most.saved_bytes, most))
        lowest = self._least_peak(highest, most.saved_bytes, highest)
        steps = max(self.grid.peak_levels - 1, 1)
        for level in range(self.grid.peak_levels):
            least_saved = self._row(highest - (highest - lowest) * level // steps, most.saved_bytes)
            if level == 0 and least_saved is not None:
                self._least_peak(highest, least_saved, highest)

    def _row(self, peak: int, saved: int) -> int | None:
        """The epsilon walk at one peak, from keeping all to keeping least; returns the least that can be kept."""
        least: int | None = None
        levels = [saved * i // max(self.grid.saved_levels - 1, 1) for i in reversed(range(self.grid.saved_levels))]
        for level in levels:
            if least is not None and least <= level:
                continue
            option = self._ask(peak, level)
            if option is None:
                break
            least = option.saved_bytes
        return least

    def _ask(self, peak: int, saved: int) -> Option | None:
        for asked_peak, asked_saved, option in self.answers:
            if option is None and peak <= asked_peak and saved <= asked_saved:
                return None
            if option is not None and peak <= asked_peak and saved <= asked_saved and _fits(option, peak, saved):
                return option
        found = self._solve(peak, saved, False)
        option = None if found is None else self.add(found)
        self.answers.append((peak, saved, option))
        return option

    def _least_peak(self, peak: int, saved: int, otherwise: int) -> int:
        """The least peak while at most `saved` bytes are kept."""
        order = self._solve(peak, saved, True)
        if order is None:
            return otherwise
        option = self.add(order)
        return max(option.forward_peak_bytes, option.backward_peak_bytes)

    def _solve(self, peak: int, saved: int, minimise_peak: bool) -> tuple[int, ...] | None:
        if self.out_of_time:
            self.timed_out = True
            return None
        self.solves += 1
        limit, gap = self.grid.per_solve, self.grid.gap
        graph, profile = self.piece.graph, self.piece.profile
        found = rk_checkmate.solve(graph, profile, peak, saved, minimise_peak=minimise_peak, seconds=limit, gap=gap)
        self.timed_out |= found.status is Status.TIME_LIMIT
        return found.order


def _fits(option: Option, peak: int, saved: int) -> bool:
    return max(option.forward_peak_bytes, option.backward_peak_bytes) <= peak and option.saved_bytes <= saved


def option_of(piece: Piece, order: tuple[int, ...]) -> Option:
    """What an order of a piece costs, by the simulator."""
    graph, profile = piece.graph, piece.profile
    schedule = with_forgets(graph, order)
    during = simulate(graph, profile, schedule).during_bytes
    boundary = schedule.steps.index(Compute(graph.loss))
    where = order.index(graph.loss)
    return Option(
        order[where:],
        _time(profile, order[:where]),
        _time(profile, _needed(graph, order, True)),
        _time(profile, _needed(graph, order, False)),
        _time(profile, order[where:]),
        saved_bytes(graph, order),
        max(during[:boundary], default=0),
        max(during[boundary:]),
    )


def _needed(graph: Graph, order: Sequence[int], output: bool) -> list[int]:
    """The forward nodes before the loss that have to run if earlier runs left nothing but the block's input."""
    wanted: set[int] = set()
    needed: list[int] = []
    before = False
    for node in (graph.nodes[i] for i in reversed(order)):
        before |= node.id == graph.loss
        if before and node.id != graph.loss and not wanted.intersection(node.writes):
            continue
        wanted -= set(node.writes)
        if node.id != graph.loss or output:
            wanted |= set(node.reads)
        if before and node.id != graph.loss:
            needed.append(node.id)
    return needed


def _time(profile: Profile, nodes: Sequence[int]) -> int:
    return sum(profile.time_ns[i] for i in nodes)


def _undominated(options: Sequence[Option]) -> tuple[Option, ...]:
    """The options that no other one beats, cheapest first."""
    ranked = sorted(options, key=lambda o: (o.backward_ns, o.saved_bytes, o.backward_peak_bytes, o.forward_peak_bytes))
    kept: list[Option] = []
    for option in ranked:
        if not any(other.beats(option) for other in kept):
            kept.append(option)
    return tuple(kept)
