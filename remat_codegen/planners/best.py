"""The best of the others: runs every planner that is fast enough for the graph, improves the winners, returns the fastest.

Rotor, segments, DTR with each heuristic, cuts, Rockmate, roundings; on graphs small enough, the whole integer program. The few
fastest different plans are improved, because a slower plan may leave more to improve, and the search goes on from the winner.

Cost model: the simulator's. Complexity: the sum of the planners', until the deadline (if there is none: `SECONDS` for each
thousand nodes, one time at least and two times at most). The quick ones have `QUICK` of them together, then Rockmate and `auto`
have until `SEARCHED`, the rounding until `ROUNDED`, the whole program until `SOLVED`. Whoever is not done by then is stopped,
or left out, and the notes say so: on thousands of nodes even an eviction can take seconds. Ties: the earlier planner. Oracle:
never worse than any planner it ran.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from remat_codegen.graph.ir import Graph
from remat_codegen.planners import auto, checkmate, chen, dtr, knapsack, mincut, none_and_all, rockmate, rotor
from remat_codegen.planners.base.deadline import NO_LIMIT, Effort, TimeUp
from remat_codegen.planners.base.keeping import candidate
from remat_codegen.planners.base.result import Plan, Status, begun, smallest_of
from remat_codegen.planners.search import hierarchy
from remat_codegen.planners.search.improve import improve
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule.lives import Limits, Problem
from remat_codegen.schedule.order import order_of

IMPROVED = 4  # how many plans are improved
Run = Callable[..., Plan]
QUICK, SEARCHED, ROUNDED, SOLVED = 0.2, 0.4, 0.65, 0.75  # the parts of the time after which planners are stopped
SECONDS = 90.0  # for a graph of at most a thousand nodes
LEAST_SECONDS = 3.0  # for the improvement of a plan
MOST_SECONDS = 5.0
SEARCH_STEPS, MOST_SEARCHES = 40, 50  # of the search that starts from the winner
NO_TIME_FOR = "no time for"
EXACT = 15_000  # columns up to which the whole integer program is solved


def plan(graph: Graph, profile: Profile, budget_bytes: int, *, effort: Effort = NO_LIMIT) -> Plan:
    """The fastest plan found within the budget."""
    started = time.monotonic()
    deadline = effort.until(SECONDS * min(max(len(graph.nodes) / 1000, 1), 2))
    ran: list[tuple[Plan, str]] = []
    late: list[str] = []
    entries = _entries(graph)
    for done, (name, run, part) in enumerate(entries):
        effort.tell(f"trying {name}", done, len(entries))
        found = _run(run, graph, profile, budget_bytes, started + part * (deadline - started))
        if found is None:
            late.append(name)
            continue
        ran.append((found, name))
        if found.schedule is not None and found.status is Status.OPTIMAL:
            return _named(found, name, (), [p for p, _ in ran])
    plans = [found for found, _ in ran]
    notes = (f"{NO_TIME_FOR} {', '.join(late)}",) if late else ()
    fitting = sorted((r for r in ran if r[0].schedule is not None), key=lambda pair: (pair[0].time_ns, pair[0].peak_bytes))
    if not fitting:
        return Plan("best", Status.INFEASIBLE, None, 0, 0, None, *smallest_of(plans), notes)
    improved = []
    for number, (found, name) in enumerate(_different(fitting)[:IMPROVED]):
        left = max(LEAST_SECONDS, (deadline - time.monotonic()) / (IMPROVED - number))
        improved.append((improve(graph, profile, budget_bytes, found, effort=Effort.lasting(min(left, MOST_SECONDS))), name))
    best, name = min(improved, key=lambda pair: (pair[0].time_ns, pair[0].peak_bytes))
    best = _searched(graph, profile, budget_bytes, best, deadline)
    return _named(best, name, notes, plans)


def _searched(graph: Graph, profile: Profile, budget_bytes: int, found: Plan, deadline: float) -> Plan:
    """The plan, or a faster one that the search of large graphs finds from there on in what is left of the time."""
    assert found.schedule is not None
    problem, limits = Problem(graph, profile), Limits(budget_bytes)
    order = order_of(found.schedule)
    for seed in range(MOST_SEARCHES):
        if time.monotonic() > deadline:
            break
        order = hierarchy.improve(problem, order, limits, SEARCH_STEPS, seed)
    searched = candidate(graph, profile, order)
    if searched.peak_bytes > budget_bytes or searched.time_ns >= found.time_ns:
        return found
    return replace(found, schedule=searched.schedule, time_ns=searched.time_ns, peak_bytes=searched.peak_bytes)


def _named(found: Plan, name: str, notes: tuple[str, ...], plans: list[Plan]) -> Plan:
    bounds = [p.bound_ns for p in plans if p.bound_ns is not None]
    status = Status.OPTIMAL if bounds and found.time_ns <= max(bounds) else found.status
    notes = (begun(name), *notes, *found.notes)
    return replace(found, planner="best", status=status, bound_ns=max(bounds, default=None), notes=notes)


def _different(fitting: list[tuple[Plan, str]]) -> list[tuple[Plan, str]]:
    """Plans of equal time and peak are taken for the same plan."""
    seen: dict[tuple[int, int], tuple[Plan, str]] = {}
    for found, name in fitting:
        seen.setdefault((found.time_ns, found.peak_bytes), (found, name))
    return list(seen.values())


def _run(run: Run, graph: Graph, profile: Profile, budget_bytes: int, deadline: float) -> Plan | None:
    """A planner's plan; None where it was not done in time."""
    if time.monotonic() > deadline:
        return None
    try:
        return run(graph, profile, budget_bytes, effort=Effort(deadline))
    except TimeUp:
        return None


def _entries(graph: Graph) -> list[tuple[str, Run, float]]:
    """The planners to run, the fast ones first, and the part of the time by which each has to be done."""
    evictions = [(f"dtr-{heuristic}", partial(dtr.plan, heuristic=heuristic)) for heuristic in dtr.HEURISTICS]
    quick: list[tuple[str, Run]] = [("none", none_and_all.none), *evictions, ("chen", chen.plan), ("rotor", rotor.plan)]
    quick.append(("mincut", mincut.plan))
    quick.append(("mincut-aggressive", partial(mincut.plan, aggressive=True)))
    quick.append(("knapsack", knapsack.plan))
    quick.append(("all", none_and_all.all_))
    exact = [("checkmate", checkmate.plan, SOLVED)] if checkmate.columns(graph) <= EXACT else []
    return [
        *((name, run, QUICK) for name, run in quick),
        ("rockmate", rockmate.plan, SEARCHED),
        ("auto", auto.plan, SEARCHED),
        ("checkmate-lp", checkmate.approximate, ROUNDED),
        *exact,
    ]
