"""Checkmate: the whole graph as one integer program, and the rounding of its linear relaxation (Jain, Jain, Nrusimha, Gholami,
Abbeel, Keutzer, Stoica, Gonzalez, MLSys 2020).

`plan` is `rk_checkmate.solve` with a time limit and a gap, on graphs for which the program can be written down
(`MOST_COLUMNS`). Its budget for time starts with a heuristic plan, DTR's improved: if the solver's incumbent is not faster, or
there is none, that plan is the answer, with the solver's proof of how good it is. OPTIMAL is claimed only of what the
solver proved, with a gap of zero.

`approximate` is section 5: solve the relaxation, round S by a threshold, then run as little as S allows (two-phase rounding).
S here is what is alive at the cuts of `bound.Relaxation`: at the loss alone, then also at all backward nodes if the graph is
small, at fewer if it is large. Memory between cuts is not in that program, so it is solved with allowances, for smaller
budgets too, and rounded by several thresholds. What S does not keep is forgotten at the cut, and rebuilt when a backward
node reads it. Where no rounding fits, those of least peak are repaired: more is given up until they do. Where that fails, too,
the solver is asked for any 0-1 point of the whole program, if it is small enough: then something is found wherever `plan`
finds something. The fastest gets the memory that is left: runs are taken out while what they write can be held instead.

Cost model: the program's for the search; the simulator judges, and the fastest that fits is taken. Complexity: exponential;
for the approximation one linear program for each allowance, and one simulation for each threshold. Ties: the solver's; larger
allowances first. Oracle: `least_time` of `tests/graphs.py`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from remat_codegen.graph.ir import Graph
from remat_codegen.planners import dtr
from remat_codegen.planners.base import rk_checkmate
from remat_codegen.planners.base.bound import MOST_COLUMNS as MOST_RELAXED_COLUMNS
from remat_codegen.planners.base.bound import Relaxation, Relaxed, cuts_of
from remat_codegen.planners.base.deadline import NO_LIMIT, Effort
from remat_codegen.planners.base.judge import Candidate
from remat_codegen.planners.base.keeping import MOST_RUNS, candidate, chosen, fastest, keeping, rebuildable, reruns
from remat_codegen.planners.base.result import Plan, Status
from remat_codegen.planners.search.hierarchy import Search
from remat_codegen.planners.search.improve import improve
from remat_codegen.planners.search.merges import spend
from remat_codegen.planners.search.splits import squeeze
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import order_of
from remat_codegen.schedule.lives import Limits, Problem
from remat_codegen.schedule.order import without_dead_runs

SECONDS, ROUNDING_SECONDS = 60.0, 30.0  # of `plan` and `approximate`, if there is no deadline
MOST_COLUMNS = 60000  # about (backward nodes) x (forward data and nodes): beyond it the program is not even written down
ALLOWANCES = (1.0, 0.9, 0.8, 0.65, 0.5)  # the parts of the budget that the relaxation is solved for
REPAIRED, REPAIR_ROUNDS = 6, 200  # how many roundings are repaired, and rounds of splitting for each
ANY_GAP = 1e6  # relative to the optimum: whatever the solver comes upon
NO_SCHEDULE_IN_TIME = "the solver found no schedule in time"
THRESHOLDS = (0.05, 0.25, 0.5, 0.75, 0.95)


def plan(
    graph: Graph,
    profile: Profile,
    budget_bytes: int,
    *,
    gap: float = 0.0,
    effort: Effort = NO_LIMIT,
) -> Plan:
    """The fastest schedule within the budget, proved so unless the time runs out or the graph is too large."""
    deadline = effort.until(SECONDS)
    heuristic = _heuristic(graph, profile, budget_bytes, (deadline - time.monotonic()) / 10)
    base = sum(profile.time_ns)
    if heuristic.time_ns == base and heuristic.schedule is not None:
        return replace(heuristic, planner="checkmate", status=Status.OPTIMAL)
    if not writable(graph):
        note = f"{graph.loss} forward nodes are too many for the whole integer program: planned by heuristics"
        status = heuristic.status if heuristic.schedule is None else Status.TOO_LARGE
        return replace(heuristic, planner="checkmate", status=status, notes=(note,))
    effort.tell("solving the graph", 0, 1)
    seconds = effort.one_solve(_left(deadline))
    found = rk_checkmate.solve(graph, profile, budget_bytes, seconds=seconds, gap=gap)
    if found.order is None:
        proved = found.status is Status.INFEASIBLE and heuristic.schedule is None
        note = "proved that no schedule fits" if proved else NO_SCHEDULE_IN_TIME
        return replace(heuristic, planner="checkmate", notes=(*heuristic.notes, note))
    solved = candidate(graph, profile, found.order)
    fits = solved.peak_bytes <= budget_bytes
    if heuristic.schedule is not None and not (fits and solved.time_ns <= heuristic.time_ns):
        status = Status.OPTIMAL if heuristic.time_ns <= found.bound_ns else Status.TIME_LIMIT
        note = "the solver's incumbent was not better than the heuristic plan"
        return replace(heuristic, planner="checkmate", status=status, bound_ns=max(base, found.bound_ns), notes=(note,))
    status = found.status if gap == 0.0 or solved.time_ns <= found.bound_ns else Status.FEASIBLE
    result = chosen("checkmate", [solved], profile, budget_bytes, status=status)
    return replace(result, bound_ns=max(base, found.bound_ns))


def writable(graph: Graph) -> bool:
    """Whether the whole integer program is small enough to be written down."""
    return columns(graph) <= MOST_COLUMNS and all(len(p) == 1 for p in graph.producers if p[0] < graph.loss)


def _left(deadline: float) -> float:
    """The seconds that are left, for a program one at least."""
    return max(1.0, deadline - time.monotonic())


def columns(graph: Graph) -> int:
    """About how many columns the whole integer program has."""
    early = sum(p[0] < graph.loss for p in graph.producers)
    return (len(graph.nodes) - graph.loss) * (early + graph.loss)


def _heuristic(graph: Graph, profile: Profile, budget_bytes: int, seconds: float) -> Plan:
    """The best of DTR's plans, improved: what the solver has to beat."""
    plans = [dtr.plan(graph, profile, budget_bytes, heuristic=h) for h in ("dtr", "msps")]
    found = [p for p in plans if p.schedule is not None]
    if not found:
        return plans[0]
    best = min(found, key=lambda p: (p.time_ns, p.peak_bytes))
    return improve(graph, profile, budget_bytes, best, effort=Effort.lasting(seconds))


def approximate(graph: Graph, profile: Profile, budget_bytes: int, *, effort: Effort = NO_LIMIT) -> Plan:
    """The fastest rounding of the relaxation that fits the budget."""
    deadline = effort.until(ROUNDING_SECONDS)
    plain = candidate(graph, profile, range(len(graph.nodes)))
    if plain.peak_bytes <= budget_bytes:
        return chosen("checkmate-lp", [plain], profile, budget_bytes)
    fleeting = frozenset(rebuildable(graph))
    tried: list[Candidate] = [plain, candidate(graph, profile, keeping(graph, (), fleeting))]
    columns = max(1, Relaxation(graph, profile, budget_bytes).columns)
    most = max(1, min(len(graph.nodes) - graph.loss, MOST_RELAXED_COLUMNS // columns))
    programs = [(count, allowance) for count in dict.fromkeys((1, most)) for allowance in ALLOWANCES]
    for done, (count, allowance) in enumerate(programs):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        effort.tell("rounding the relaxation", done, len(programs))
        cuts = cuts_of(graph, profile, count)
        solved = Relaxation(graph, profile, int(budget_bytes * allowance)).solve(cuts, effort.one_solve(left))
        if solved is not None and solved.alive:
            orders = takewhile(lambda _: time.monotonic() < deadline, _roundings(graph, cuts, solved, fleeting))
            tried.extend(candidate(graph, profile, order) for order in orders)
    if fastest(tried, budget_bytes) is None:
        tried.extend(_repaired(graph, profile, budget_bytes, tried))
    if fastest(tried, budget_bytes) is None:
        tried.extend(any_point(graph, profile, budget_bytes, effort.one_solve(_left(deadline))))
    tried.extend(_spent(graph, profile, budget_bytes, tried))
    return chosen("checkmate-lp", tried, profile, budget_bytes)


def _roundings(graph: Graph, cuts: Sequence[int], solved: Relaxed, fleeting: Collection[int]) -> Iterator[tuple[int, ...]]:
    """The orders that a solved relaxation is rounded to."""
    for threshold in THRESHOLDS:
        kept = {c: {d for d, k in alive.items() if k > threshold} for c, alive in zip(cuts, solved.alive, strict=True)}
        yield rounded(graph, kept)
        yield rounded(graph, kept, fleeting)


def _repaired(graph: Graph, profile: Profile, budget_bytes: int, tried: Sequence[Candidate]) -> list[Candidate]:
    """Where no rounding fits: those of least peak with more given up, else what the search or DTR make of the budget."""
    problem, limits = Problem(graph, profile), Limits(budget_bytes)
    least = sorted(tried, key=lambda c: (c.peak_bytes, c.time_ns))[:REPAIRED]
    repaired = (squeeze(problem, order_of(c.schedule), limits, None, REPAIR_ROUNDS) for c in least)
    found = [candidate(graph, profile, order) for order in repaired if order is not None]
    if not found and not (search := Search(graph, profile)).large:
        found = [candidate(graph, profile, order) for order in search.fitted(limits)[:1]]
    if not found:
        plan = _heuristic(graph, profile, budget_bytes, 1.0)
        found = [] if plan.schedule is None else [Candidate(plan.schedule, plan.time_ns, plan.peak_bytes)]
    return found


def any_point(graph: Graph, profile: Profile, budget_bytes: int, seconds: float) -> list[Candidate]:
    """The first 0-1 point of the whole program that the solver comes upon."""
    if not writable(graph):
        return []
    found = rk_checkmate.solve(graph, profile, budget_bytes, seconds=seconds, gap=ANY_GAP)
    return [] if found.order is None else [candidate(graph, profile, found.order)]


def _spent(graph: Graph, profile: Profile, budget_bytes: int, tried: Sequence[Candidate]) -> list[Candidate]:
    """The fastest that fits, with the memory that it leaves spent."""
    found = fastest(tried, budget_bytes)
    if found is None:
        return []
    problem, limits = Problem(graph, profile), Limits(budget_bytes)
    return [candidate(graph, profile, spend(problem, order_of(found.schedule), limits))]


def rounded(graph: Graph, kept: Mapping[int, Collection[int]], fleeting: Collection[int] = ()) -> tuple[int, ...]:
    """The order that forgets, at each cut, what is not kept there, and runs as little as that allows.

    Of what is rebuilt, `fleeting` is held only if the next cut keeps it.
    """
    lost = set(rebuildable(graph))
    producers = graph.producers
    have = {d for d, p in enumerate(producers) if p[0] < graph.loss}
    following = _next_cut(graph, kept)
    order = list(range(graph.loss + 1))
    for node in graph.nodes[graph.loss :]:
        if node.id in kept:
            have -= lost - set(kept[node.id])
        if node.id == graph.loss:
            continue
        again = reruns(graph, producers, node, lost - have)
        order.extend([*sorted(again), node.id])
        later = kept.get(following[node.id], ())
        short = len(order) < MOST_RUNS
        have.update(d for i in again for d in graph.nodes[i].writes if not (short and d in fleeting) or d in later)
    return without_dead_runs(graph, order)


def _next_cut(graph: Graph, kept: Mapping[int, Collection[int]]) -> list[int]:
    """For each node, the next cut after it, or the number of nodes."""
    table = [len(graph.nodes)] * len(graph.nodes)
    for node in reversed(range(len(graph.nodes) - 1)):
        table[node] = node + 1 if node + 1 in kept else table[node + 1]
    return table
