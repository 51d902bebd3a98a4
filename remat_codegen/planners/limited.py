"""A planner within a time limit, in seconds: its own plan if it is done by then, else the best plan so far.

Some planners have an answer of their own by then. Others are stopped where they check the time (`base/deadline`). What is
known then is what they have offered, and what quick planners, which run first, make of the budget: segments (`chen`), DTR for
a part of the time, and within it what Rockmate's search begins with, where the planner is one that searches.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from remat_codegen.graph.ir import Graph
from remat_codegen.planners import chen, dtr, rockmate
from remat_codegen.planners.base.deadline import Effort, Order, Progress, TimeUp, Watch, within
from remat_codegen.planners.base.judge import judge
from remat_codegen.planners.base.registry import PLANNERS
from remat_codegen.planners.base.result import Plan, Status, begun, smallest_of
from remat_codegen.planners.best import NO_TIME_FOR
from remat_codegen.planners.checkmate import NO_SCHEDULE_IN_TIME
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import with_forgets

QUICK_PART = 0.2  # of the time, for quick planners
LEAST_SECONDS = 0.1  # for one who is late
ANSWERING = ("checkmate", "checkmate-lp", "best")  # planners that have an answer of their own when the time is over
SEARCHING = ("rockmate", "auto")  # planners that take longer than the search's beginning
STOPPED = "stopped after"  # how the notes of a plan begin that was cut short
NOTHING_FOUND = "the time limit ended before a plan was found"
OUT_OF_TIME = (NOTHING_FOUND, NO_SCHEDULE_IN_TIME, NO_TIME_FOR)  # how notes begin that say so


def limited(
    name: str, seconds: float | None, progress: Progress | None = None, **options: Any
) -> Callable[[Graph, Profile, int], Plan]:
    """The planner of that name, with so many seconds from now on, however often it is called. None: as many as it likes.
    `options` are the planner's own."""
    effort, planner = Effort.lasting(seconds, progress), partial(PLANNERS[name], **options)
    return partial(planner, effort=effort) if seconds is None else partial(_limited, name, planner, effort, seconds)


def found_nothing_in_time(plan: Plan) -> bool:
    """Whether there is no schedule, and another one may be found in more time."""
    return plan.schedule is None and any(note.startswith(OUT_OF_TIME) for note in plan.notes)


def _limited(
    name: str, planner: Callable[..., Plan], effort: Effort, seconds: float, graph: Graph, profile: Profile, budget_bytes: int
) -> Plan:
    """The planner's plan, or the best that is known when the time is over. Even if it is late, something has to be found."""
    if name in ANSWERING:
        until = max(effort.until(0.0), time.monotonic() + LEAST_SECONDS)
        return planner(graph, profile, budget_bytes, effort=replace(effort, deadline=until))
    quick = quick_plans(graph, profile, budget_bytes, QUICK_PART * seconds, searching=name in SEARCHING)
    try:
        return planner(graph, profile, budget_bytes, effort=effort)
    except TimeUp as late:
        return _best(name, late.best, graph, profile, budget_bytes, quick, seconds)


def quick_plans(graph: Graph, profile: Profile, budget_bytes: int, seconds: float, searching: bool = True) -> list[Plan]:
    """What quick planners make of a budget: segments in any case, the others as far as they come in so many seconds."""
    quick = [chen.plan(graph, profile, budget_bytes)]
    with within(Watch(graph, budget_bytes, time.monotonic() + seconds)), contextlib.suppress(TimeUp):
        for heuristic in ("dtr", "msps"):
            quick.append(dtr.plan(graph, profile, budget_bytes, heuristic=heuristic))
        if searching:
            quick.append(rockmate.squeezed(graph, profile, budget_bytes))
    return quick


def quickest(graph: Graph, profile: Profile, budget_bytes: int, seconds: float) -> Plan:
    """The fastest plan that quick planners find in about so many seconds, INFEASIBLE, with the least known peak, where none is
    found: which proves nothing."""
    quick = quick_plans(graph, profile, budget_bytes, seconds)
    fitting = [plan for plan in quick if plan.schedule is not None]
    if not fitting:
        return Plan("quick", Status.INFEASIBLE, None, 0, 0, None, *smallest_of(quick), (NOTHING_FOUND,))
    return min(fitting, key=lambda p: (p.time_ns, p.peak_bytes))


def _best(
    name: str, offered: Order | None, graph: Graph, profile: Profile, budget_bytes: int, quick: list[Plan], seconds: float
) -> Plan:
    """The fastest of what was offered and what quick planners found."""
    found = [replace(p, notes=(begun(p.planner),)) for p in quick if p.schedule is not None]
    known = [*quick]
    if offered is not None:
        own = judge(graph, profile, with_forgets(graph, offered))
        known.append(Plan(name, Status.INFEASIBLE, None, minimum_bytes=own.peak_bytes, smallest=own.schedule))
        if own.peak_bytes <= budget_bytes:
            found.append(Plan(name, Status.TIME_LIMIT, own.schedule, own.time_ns, own.peak_bytes))
    if not found:
        return Plan(name, Status.INFEASIBLE, None, 0, 0, None, *smallest_of(known), (NOTHING_FOUND,))
    best = min(found, key=lambda p: (p.time_ns, p.peak_bytes))
    notes = (f"{STOPPED} {seconds:.3g} s, the best plan so far; raise --time-limit for a better one", *best.notes)
    return replace(best, planner=name, status=Status.TIME_LIMIT, bound_ns=None, notes=notes)
