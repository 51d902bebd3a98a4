"""Rockmate: exact options for each kind of block, and a dynamic program over the chain (Zhao et al., ICML 2023, algorithm 1).

    pinned data, pieces -> a family of options per distinct piece (rk-Checkmate) -> a table over memory (rk-Rotor)
    -> the fastest of its sequences whose schedule, by the simulator, fits the budget

The table does not depend on the budget and its sizes round up, so a schedule from m slots needs less than m. The largest m
whose schedule fits is found by bisection, on the simulated peak: rounding, and data that are freed earlier than the
dynamic program assumes, thus cost nothing. A few of the smallest m are always tried; the least peak among them is
`minimum_bytes`.

A graph of one block is solved exactly within the budget if it is small. Larger ones, the options of large blocks, and what the
exact parts leave on the table (they are exact within a block only) are the work of `hierarchy`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from remat_codegen.graph.ir import Block, Graph
from remat_codegen.planners import checkmate, hierarchy
from remat_codegen.planners.alike import repeats, treat_alike
from remat_codegen.planners.deadline import check, offer
from remat_codegen.planners.options import Family, Grid, Piece, cut_out, pinned_data, solve_family
from remat_codegen.planners.result import Plan, Status
from remat_codegen.planners.rotor import Backward, Link, Operation, Table
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Compute, Schedule, simulate, validate, with_forgets, without_recomputation

Progress = Callable[[str, int, int], None]

SLOTS = 2000  # memory slots in the need of a step without recomputation
MANY_KINDS = 40  # of blocks: each is solved for fewer budgets
MOST_KINDS = 80  # of blocks: none is solved by integer programs
FAMILIES_SECONDS = 180.0  # for the integer programs of all kinds together, the same for each
MOST_IN_BLOCK = 700  # forward nodes: a chain of larger blocks is searched as a whole, as costly as one option of these
QUICK_ROUNDS = 60  # of splitting
CLEARLY = 0.01  # the share of a step's time for which equal blocks are no longer treated alike
TIGHTEST = 12  # how many of the smallest memories are always tried


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule of the whole step, as the simulator sees it."""

    schedule: Schedule
    time_ns: int
    peak_bytes: int


def plan(
    graph: Graph,
    profile: Profile,
    budget_bytes: int,
    *,
    slots: int = SLOTS,
    program_seconds: float = 10.0,
    grid: Grid | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The fastest schedule that Rockmate finds within the budget. `program_seconds` is for one integer program.

    `progress(what, done, total)` is called as the work goes on. Same inputs, same plan, unless a program runs out of time
    (TIME_LIMIT).
    """
    grid = replace(grid or Grid(), time_limit_s=program_seconds)
    plain = judge(graph, profile, without_recomputation(graph))
    if plain.peak_bytes <= budget_bytes:
        return _plan(Status.OPTIMAL, plain, ("the step fits the budget without recomputation",), profile)
    if is_chain(graph) and all(b.last - b.first < MOST_IN_BLOCK for b in graph.blocks):
        return _plan_chain(graph, profile, budget_bytes, plain, slots, grid, progress)
    return _plan_whole(graph, profile, budget_bytes, plain, grid, progress)


def judge(graph: Graph, profile: Profile, schedule: Schedule) -> Candidate:
    """What a schedule costs; raises ValueError if it is none, or if the emitter could not write it."""
    validate(graph, schedule)
    restrict(graph, schedule)
    return _cost(graph, profile, schedule)


def _cost(graph: Graph, profile: Profile, schedule: Schedule) -> Candidate:
    timeline = simulate(graph, profile, schedule)
    return Candidate(schedule, timeline.time_ns, timeline.peak_bytes)


def restrict(graph: Graph, schedule: Schedule) -> None:
    """Raises ValueError unless every node up to the loss runs once, in order, before the loss: what the emitter can write."""
    runs = [s.node for s in schedule.steps if isinstance(s, Compute)][: graph.loss + 1]
    for expected, node in enumerate(runs):
        if node != expected:
            raise ValueError(f"{graph.nodes[node].name} runs again before the loss")


def is_chain(graph: Graph) -> bool:
    """Whether the blocks are several, cover the forward nodes, and go back one after the other."""
    home = [b.id for b in graph.blocks for _ in range(b.first, b.last + 1)]
    if len(graph.blocks) < 2 or len(home) != graph.loss:
        return False
    places = [-1 if n.forward is None else home[n.forward] for n in graph.backward_nodes]
    single = all(len(p) == 1 for p in graph.producers if p[0] < graph.loss)
    return single and -1 not in places and places == sorted(places, reverse=True)


def _plan(status: Status, best: Candidate, notes: Sequence[str], profile: Profile) -> Plan:
    return Plan("rockmate", status, best.schedule, best.time_ns, best.peak_bytes, sum(profile.time_ns), notes=tuple(notes))


def _infeasible(smallest: Candidate, notes: Sequence[str]) -> Plan:
    return Plan("rockmate", Status.INFEASIBLE, None, 0, 0, None, smallest.peak_bytes, smallest.schedule, tuple(notes))


def _order_of(candidate: Candidate) -> tuple[int, ...]:
    return tuple(s.node for s in candidate.schedule.steps if isinstance(s, Compute))


def _fastest(candidates: Sequence[Candidate], budget_bytes: int) -> Candidate | None:
    fitting = [c for c in candidates if c.peak_bytes <= budget_bytes]
    return min(fitting, key=lambda c: (c.time_ns, c.peak_bytes), default=None)


def _plan_chain(
    graph: Graph, profile: Profile, budget_bytes: int, plain: Candidate, slots: int, grid: Grid, progress: Progress | None
) -> Plan:
    chain = Chain(graph, profile, grid, progress)
    table = chain.table(plain.peak_bytes, slots)
    columns = table.distinct()
    if not columns:
        return _plan_searched(graph, profile, budget_bytes, [plain], grid, ("no sequence of blocks was found",))
    notes = chain.notes()
    tried: dict[int, Candidate] = {}

    def candidate(slots: int) -> Candidate:
        return chain.candidate(table.operations(slots))

    low, high = -1, len(columns)
    while high - low > 1:
        middle = (low + high) // 2
        check()
        tried[columns[middle]] = found = tried.get(columns[middle]) or candidate(columns[middle])
        if found.peak_bytes <= budget_bytes:
            offer(graph, _order_of(found), found.time_ns)
        low, high = (middle, high) if found.peak_bytes <= budget_bytes else (low, middle)
        if progress is not None:
            progress("fitting the budget", len(columns) - (high - low), len(columns))
    if low < 0:  # peaks need not grow with the column: look at all of the smallest
        tried |= {m: candidate(m) for m in columns[:TIGHTEST] if m not in tried}
        if _fastest(list(tried.values()), budget_bytes) is None:
            return _plan_searched(graph, profile, budget_bytes, [*tried.values(), plain], grid, notes)
    status = Status.TIME_LIMIT if chain.timed_out else Status.FEASIBLE
    fastest = _fastest(list(tried.values()), budget_bytes)
    small = not chain.coarse and all(b.last - b.first < grid.largest for b in graph.blocks)
    if fastest is not None and small and (repeats(graph) or not _quickly_beaten(graph, profile, budget_bytes, fastest)):
        slots = next(m for m, c in tried.items() if c is fastest)
        # a search would gain little, and treat equal blocks differently
        alike = treat_alike(chain, table.operations(slots), fastest, budget_bytes)
        return _plan(status, judge(graph, profile, alike.schedule), notes, profile)
    return _plan_searched(graph, profile, budget_bytes, list(tried.values()), grid, notes, status)


def _quickly_beaten(graph: Graph, profile: Profile, budget_bytes: int, known: Candidate) -> bool:
    """Whether the first step of a search is clearly faster: where few blocks make the peak, whole blocks are too coarse."""
    board, limits = hierarchy.Board(graph, profile), hierarchy.Limits(budget_bytes)
    fitting = hierarchy.squeeze(board, board.plain, limits, None, QUICK_ROUNDS)
    return fitting is not None and board.time_of(hierarchy.spend(board, fitting, limits)) < (1 - CLEARLY) * known.time_ns


@lru_cache(maxsize=256)
def _family(piece: Piece, grid: Grid) -> Family:
    """Families do not depend on the budget: a second plan of the same model finds them here."""
    return solve_family(piece, grid, hierarchy.family_orders)


def _coarser(grid: Grid, kinds: int) -> Grid:
    """Fewer budgets where there are many kinds of blocks, and no integer programs where there are very many."""
    if kinds > MOST_KINDS:
        return replace(grid, largest=0)
    return replace(grid, saved_levels=min(grid.saved_levels, 4), peak_levels=1) if kinds > MANY_KINDS else grid


class Chain:
    """A graph as a chain of pieces with their families."""

    def __init__(self, graph: Graph, profile: Profile, grid: Grid, progress: Progress | None) -> None:
        self.graph, self.profile = graph, profile
        self.pinned = pinned_data(graph)
        cut = [cut_out(graph, profile, b, self.pinned) for b in graph.blocks]
        self.nodes = [nodes for _, nodes in cut]
        pieces = [piece for piece, _ in cut]
        distinct = list(dict.fromkeys(pieces))
        self.coarse = _coarser(grid, len(distinct)) is not grid
        grid = replace(_coarser(grid, len(distinct)), family_s=FAMILIES_SECONDS / len(distinct))
        families: dict[object, Family] = {}
        for done, piece in enumerate(distinct):
            if progress is not None:
                progress("solving blocks", done, len(distinct))
            families[piece] = _family(piece, grid)
        self.families = [families[p] for p in pieces]
        self.distinct = list(families.values())
        self.once = checkmate.runs_once(graph)
        self.settled = self._settled()
        self.links = [Link(f, self._sealed(b)) for f, b in zip(self.families, graph.blocks, strict=True)]

    @property
    def timed_out(self) -> bool:
        """Whether any integer program was stopped early."""
        return any(f.timed_out for f in self.distinct)

    def notes(self) -> tuple[str, ...]:
        """For the user: what the plan is made of."""
        options = sum(len(f.options) for f in self.distinct)
        solves = sum(f.solves for f in self.distinct)
        blocks = f"{options} options from {solves} integer programs"
        return (blocks, "some integer programs ran out of time") if self.timed_out else (blocks,)

    def _settled(self) -> frozenset[int]:
        """Forward nodes that need not run again, because everything of theirs that is read stays."""
        read = {d for n in self.graph.nodes for d in n.reads}
        return frozenset(n.id for n in self.graph.forward_nodes if all(d in self.pinned or d not in read for d in n.writes))

    def _sealed(self, block: Block) -> bool:
        return any(i in self.once and i not in self.settled for i in range(block.first, block.last + 1))

    def table(self, plain_bytes: int, slots: int) -> Table:
        """The dynamic program, with enough slots for the options that keep all."""
        unit = max(1, -(-plain_bytes // slots))
        kept = 0
        for link in self.links:
            most = max(link.family.options, key=lambda o: o.saved_bytes)
            kept += -(-(most.saved_bytes + link.family.piece.output_bytes) // unit)
        extra = max(
            max(o.forward_peak_bytes, o.backward_peak_bytes) + f.piece.entering_bytes for f in self.distinct for o in f.options
        )
        return Table(self.links, unit, kept + extra // unit + 2)

    def candidate(self, operations: Sequence[Operation]) -> Candidate:
        """The schedule of a sequence of runs of blocks, not yet validated: many are tried, one is chosen."""
        order = self._order(operations)
        return _cost(self.graph, self.profile, with_forgets(self.graph, checkmate.without_dead_runs(self.graph, order)))

    def _order(self, operations: Sequence[Operation]) -> list[int]:
        """From runs of blocks to runs of nodes."""
        order: list[int] = []
        ran: set[int] = set()
        for operation in operations:
            nodes = self.nodes[operation.block]
            if isinstance(operation, Backward):
                local = self.families[operation.block].options[operation.option].backward
                own = operation.block == len(self.nodes) - 1
                order.extend(nodes[i] for i in local if nodes[i] != self.graph.loss or own)
                continue
            forward = nodes[: nodes.index(self.graph.loss)]
            order.extend(i for i in forward if i not in ran or i not in self.settled)
            ran.update(forward)
        return order


def _plan_whole(
    graph: Graph, profile: Profile, budget_bytes: int, plain: Candidate, grid: Grid, progress: Progress | None
) -> Plan:
    """A graph that is no chain: exactly if it is small, else by the search."""
    if progress is not None:
        progress("solving the graph", 0, 1)
    if graph.loss > grid.largest or any(len(p) > 1 for p in graph.producers if p[0] < graph.loss):
        notes = (f"{graph.loss} forward nodes without a way to cut them, too many for an exact plan",)
        return _plan_searched(graph, profile, budget_bytes, [plain], grid, notes)
    found = checkmate.plan(graph, profile, budget_bytes, time_limit_s=6 * grid.time_limit_s, gap=grid.gap)
    if found.status is Status.OPTIMAL and found.peak_bytes <= budget_bytes:
        return replace(found, planner="rockmate", notes=("one block, solved as a whole",))
    least = checkmate.solve(graph, profile, None, minimise_peak=True, time_limit_s=6 * grid.time_limit_s, gap=0.0)
    known = [plain] if least.order is None else [plain, judge(graph, profile, with_forgets(graph, least.order))]
    if found.schedule is not None:
        known.append(Candidate(found.schedule, found.time_ns, found.peak_bytes))
    return _plan_searched(graph, profile, budget_bytes, known, grid, ("one block, solved as a whole",))


@lru_cache(maxsize=8)
def _search(graph: Graph, profile: Profile) -> hierarchy.Search:
    """What the search finds out before it sees a budget."""
    return hierarchy.Search(graph, profile)


def forget() -> None:
    """Lets go of what is remembered of graphs, for those who measure how long a plan takes."""
    _family.cache_clear()
    _search.cache_clear()


def squeezed(graph: Graph, profile: Profile, budget_bytes: int) -> Plan:
    """What the search begins with, without options of blocks, which may take long to solve: for those who have little time.

    INFEASIBLE where nothing fits, with the least peak that it finds; without one for large graphs, where all that takes long.
    """
    search = _search(graph, profile)
    if search.large:
        return Plan("rockmate", Status.INFEASIBLE, None)
    least = judge(graph, profile, with_forgets(graph, search.least[0]))
    if least.peak_bytes > budget_bytes:
        return _infeasible(least, ())
    fitted = [judge(graph, profile, with_forgets(graph, o)) for o in search.fitted(hierarchy.Limits(budget_bytes))[:1]]
    return _plan(Status.FEASIBLE, _fastest([*fitted, least], budget_bytes) or least, (), profile)


def _plan_searched(
    graph: Graph,
    profile: Profile,
    budget_bytes: int,
    known: Sequence[Candidate],
    grid: Grid,
    notes: Sequence[str],
    status: Status = Status.FEASIBLE,
) -> Plan:
    """The fastest of what is known and what the search finds, starting from there as well."""
    search = _search(graph, profile)
    candidates = list(known)
    if not search.large:
        candidates.append(judge(graph, profile, with_forgets(graph, search.least[0])))
    best = _fastest(candidates, budget_bytes)
    if best is None and not search.large:
        return _infeasible(min(candidates, key=lambda c: c.peak_bytes), notes)
    orders = [] if best is None else [_order_of(best)]
    if best is not None:
        offer(graph, orders[0], best.time_ns)
    steps = hierarchy.steps_for(graph, grid.search_work)
    found = search.best(hierarchy.Limits(budget_bytes), steps, orders)
    if found is not None:
        candidates.append(judge(graph, profile, with_forgets(graph, found)))
    best = _fastest(candidates, budget_bytes)
    if best is None:
        candidates.append(judge(graph, profile, with_forgets(graph, search.least[0])))
        return _infeasible(min(candidates, key=lambda c: c.peak_bytes), notes)
    return _plan(status, best, notes, profile)
