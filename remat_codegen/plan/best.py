"""The best of the others: runs every planner that is fast enough for the graph, improves the winners, returns the fastest.

Rotor, segments, DTR with each heuristic, cuts, Rockmate, roundings; on graphs small enough, the whole integer program. The few
fastest different plans are improved, because a slower plan may leave more to improve.

Cost model: the simulator's. Complexity: the sum of the planners'; `time_limit` seconds are the aim, and a planner whose turn
comes after `PLANNING` of them is left out (the notes say so). Ties: the earlier planner. Oracle: never worse than any
planner it ran.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from remat_codegen.graph.ir import Graph
from remat_codegen.plan import chain, chen, dtr, ends, knapsack, mincut, rockmate, whole
from remat_codegen.plan.ends import Progress
from remat_codegen.plan.improve import improve
from remat_codegen.plan.result import Plan, Status
from remat_codegen.profile.costs import Profile

IMPROVED = 4  # how many plans are improved
PLANNING = 0.8  # the part of the time after which no further planner is started
LIMITED = ("checkmate", "checkmate-lp")  # these take whatever time they get
EXACT = 15_000  # columns up to which the whole integer program is solved


def plan(
    graph: Graph, profile: Profile, budget_bytes: int, *, time_limit: float = 60.0, progress: Progress | None = None
) -> Plan:
    """The fastest plan found within the budget."""
    started = time.monotonic()
    plans: list[Plan] = []
    skipped: list[str] = []
    entries = _entries(graph)
    for done, (name, run) in enumerate(entries):
        if progress is not None:
            progress(f"trying {name}", done, len(entries))
        if time.monotonic() - started > time_limit * PLANNING:
            skipped.append(name)
            continue
        left = time_limit * PLANNING - (time.monotonic() - started)
        found = run(graph, profile, budget_bytes, **({"time_limit": left} if name in LIMITED else {}))
        plans.append(found)
        if found.schedule is not None and found.status is Status.OPTIMAL:
            return _named(found, name, (), plans)
    late = (f"no time for {', '.join(skipped)}",) if skipped else ()
    names = [name for name, _ in entries if name not in skipped]
    fitting = sorted(
        ((p, name) for p, name in zip(plans, names, strict=True) if p.schedule is not None),
        key=lambda pair: (pair[0].time_ns, pair[0].peak_bytes),
    )
    if not fitting:
        least = min((p.minimum_bytes for p in plans if p.minimum_bytes is not None), default=None)
        return Plan("best", Status.INFEASIBLE, None, minimum_bytes=least, notes=late)
    improved = []
    for number, (found, name) in enumerate(_different(fitting)[:IMPROVED]):
        left = max(3.0, (time_limit - (time.monotonic() - started)) / (IMPROVED - number))
        improved.append((improve(graph, profile, budget_bytes, found, time_limit=min(left, 10.0)), name))
    best, name = min(improved, key=lambda pair: (pair[0].time_ns, pair[0].peak_bytes))
    return _named(best, name, late, plans)


def _named(found: Plan, name: str, notes: tuple[str, ...], plans: list[Plan]) -> Plan:
    bounds = [p.bound_ns for p in plans if p.bound_ns is not None]
    status = Status.OPTIMAL if bounds and found.time_ns <= max(bounds) else found.status
    notes = (f"from {name}", *notes, *found.notes)
    return replace(found, planner="best", status=status, bound_ns=max(bounds, default=None), notes=notes)


def _different(fitting: list[tuple[Plan, str]]) -> list[tuple[Plan, str]]:
    """Plans of equal time and peak are taken for the same plan."""
    seen: dict[tuple[int, int], tuple[Plan, str]] = {}
    for found, name in fitting:
        seen.setdefault((found.time_ns, found.peak_bytes), (found, name))
    return list(seen.values())


Run = Callable[..., Plan]


def _entries(graph: Graph) -> list[tuple[str, Run]]:
    """The planners to run, the fast ones first."""
    found: list[tuple[str, Run]] = [("none", ends.none), ("all", ends.all_), ("chen", chen.plan), ("rotor", chain.plan)]
    found.extend((f"dtr-{heuristic}", partial(dtr.plan, heuristic=heuristic)) for heuristic in dtr.HEURISTICS)
    found.append(("mincut", mincut.plan))
    found.append(("mincut-aggressive", partial(mincut.plan, aggressive=True)))
    found.append(("knapsack", knapsack.plan))
    found.append(("rockmate", rockmate.plan))
    if whole.columns(graph) <= EXACT:
        found.append(("checkmate", whole.plan))
    found.append(("checkmate-lp", whole.approximate))
    return found
