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

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from remat_codegen.graph.ir import Graph
from remat_codegen.planners.base import rk_checkmate
from remat_codegen.planners.base.deadline import NO_LIMIT, Effort, check, offer, stoppable
from remat_codegen.planners.base.judge import Candidate, is_chain, judge
from remat_codegen.planners.base.result import Plan, Status
from remat_codegen.planners.chain.chain import family_of, of_options
from remat_codegen.planners.chain.options import Grid
from remat_codegen.planners.search import hierarchy
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import order_of, with_forgets, without_recomputation

SLOTS = 2000  # memory slots in the need of a step without recomputation
MOST_IN_BLOCK = 700  # forward nodes: a chain of larger blocks is searched as a whole, as costly as one option of these
QUICK_ROUNDS = 60  # of splitting
CLEARLY = 0.01  # the share of a step's time for which a search goes on from the program's plan
REPETITIONS = 4  # of each kind of blocks, from which on that takes long and gains little
TIGHTEST = 12  # how many of the smallest memories are always tried


@stoppable
def plan(
    graph: Graph,
    profile: Profile,
    budget_bytes: int,
    *,
    slots: int = SLOTS,
    grid: Grid | None = None,
    effort: Effort = NO_LIMIT,
) -> Plan:
    """The fastest schedule that Rockmate finds within the budget. Same inputs, same plan, unless a program runs out of time
    (TIME_LIMIT).
    """
    grid = (grid or Grid()).timed(effort)
    plain = judge(graph, profile, without_recomputation(graph))
    if plain.peak_bytes <= budget_bytes:
        return _plan(Status.OPTIMAL, plain, ("the step fits the budget without recomputation",), profile)
    if is_chain(graph) and all(b.last - b.first < MOST_IN_BLOCK for b in graph.blocks):
        return _plan_chain(graph, profile, budget_bytes, plain, slots, grid, effort)
    return _plan_whole(graph, profile, budget_bytes, plain, grid, effort)


def _plan(status: Status, best: Candidate, notes: Sequence[str], profile: Profile) -> Plan:
    return Plan("rockmate", status, best.schedule, best.time_ns, best.peak_bytes, sum(profile.time_ns), notes=tuple(notes))


def _infeasible(smallest: Candidate, notes: Sequence[str]) -> Plan:
    return Plan("rockmate", Status.INFEASIBLE, None, 0, 0, None, smallest.peak_bytes, smallest.schedule, tuple(notes))


def _fastest(candidates: Sequence[Candidate], budget_bytes: int) -> Candidate | None:
    fitting = [c for c in candidates if c.peak_bytes <= budget_bytes]
    return min(fitting, key=lambda c: (c.time_ns, c.peak_bytes), default=None)


def _plan_chain(
    graph: Graph, profile: Profile, budget_bytes: int, plain: Candidate, slots: int, grid: Grid, effort: Effort
) -> Plan:
    chain = of_options(graph, profile, grid, effort)
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
            offer(graph, order_of(found.schedule), found.time_ns, budget_bytes)
        low, high = (middle, high) if found.peak_bytes <= budget_bytes else (low, middle)
        effort.tell("fitting the budget", len(columns) - (high - low), len(columns))
    if low < 0:  # peaks need not grow with the column: look at all of the smallest
        tried |= {m: candidate(m) for m in columns[:TIGHTEST] if m not in tried}
        if _fastest(list(tried.values()), budget_bytes) is None:
            return _plan_searched(graph, profile, budget_bytes, [*tried.values(), plain], grid, notes)
    status = Status.TIME_LIMIT if chain.timed_out else Status.FEASIBLE
    fastest = _fastest(list(tried.values()), budget_bytes)
    small = not chain.coarse and all(b.last - b.first < grid.largest for b in graph.blocks)
    if fastest is not None and small and (_repeats(graph) or not _quickly_beaten(graph, profile, budget_bytes, fastest)):
        return _plan(status, judge(graph, profile, fastest.schedule), notes, profile)
    return _plan_searched(graph, profile, budget_bytes, list(tried.values()), grid, notes, status)


def _repeats(graph: Graph) -> bool:
    """Whether most blocks are repetitions: then planning must not take longer for more of them."""
    return REPETITIONS * len({b.kind for b in graph.blocks}) <= len(graph.blocks)


def _quickly_beaten(graph: Graph, profile: Profile, budget_bytes: int, known: Candidate) -> bool:
    """Whether the first step of a search is clearly faster: where few blocks make the peak, whole blocks are too coarse."""
    problem, limits = hierarchy.Problem(graph, profile), hierarchy.Limits(budget_bytes)
    fitting = hierarchy.squeeze(problem, problem.plain, limits, None, QUICK_ROUNDS)
    return fitting is not None and problem.time_of(hierarchy.spend(problem, fitting, limits)) < (1 - CLEARLY) * known.time_ns


def _plan_whole(graph: Graph, profile: Profile, budget_bytes: int, plain: Candidate, grid: Grid, effort: Effort) -> Plan:
    """A graph that is no chain: exactly if it is small, else by the search."""
    effort.tell("solving the graph", 0, 1)
    if graph.loss > grid.largest or any(len(p) > 1 for p in graph.producers if p[0] < graph.loss):
        notes = (f"{graph.loss} forward nodes without a way to cut them, too many for an exact plan",)
        return _plan_searched(graph, profile, budget_bytes, [plain], grid, notes)
    found = rk_checkmate.plan(graph, profile, budget_bytes, seconds=6 * grid.per_solve, gap=grid.gap)
    if found.status is Status.OPTIMAL and found.peak_bytes <= budget_bytes:
        return replace(found, planner="rockmate", notes=("one block, solved as a whole",))
    least = rk_checkmate.solve(graph, profile, None, minimise_peak=True, seconds=6 * grid.per_solve, gap=0.0)
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
    family_of.cache_clear()
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
    orders = [] if best is None else [order_of(best.schedule)]
    if best is not None:
        offer(graph, orders[0], best.time_ns, budget_bytes)
    steps = hierarchy.steps_for(graph, grid.search_work)
    found = search.best(hierarchy.Limits(budget_bytes), steps, orders)
    if found is not None:
        candidates.append(judge(graph, profile, with_forgets(graph, found)))
    best = _fastest(candidates, budget_bytes)
    if best is None:
        candidates.append(judge(graph, profile, with_forgets(graph, search.least[0])))
        return _infeasible(min(candidates, key=lambda c: c.peak_bytes), notes)
    return _plan(status, best, notes, profile)
