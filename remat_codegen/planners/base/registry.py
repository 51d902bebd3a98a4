"""All planners by name, in the order in which they are shown. Each is `plan(graph, profile, budget_bytes, *,
effort=NO_LIMIT, **options) -> Plan`; what options there are, and their defaults, stands in each planner's own file.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from remat_codegen.planners import auto, best, checkmate, chen, dtr, knapsack, mincut, none_and_all, rockmate, rotor
from remat_codegen.planners.base.result import Plan

PLANNERS: dict[str, Callable[..., Plan]] = {
    "none": none_and_all.none,
    "all": none_and_all.all_,
    "chen": chen.plan,
    "rotor": rotor.plan,
    "checkmate": checkmate.plan,
    "checkmate-lp": checkmate.approximate,
    "rockmate": rockmate.plan,
    "dtr": dtr.plan,
    "dtr-eq": partial(dtr.plan, heuristic="eq"),
    "dtr-local": partial(dtr.plan, heuristic="local"),
    "dtr-lru": partial(dtr.plan, heuristic="lru"),
    "dtr-size": partial(dtr.plan, heuristic="size"),
    "dtr-msps": partial(dtr.plan, heuristic="msps"),
    "mincut": mincut.plan,
    "mincut-aggressive": partial(mincut.plan, aggressive=True),
    "knapsack": knapsack.plan,
    "auto": auto.plan,
    "best": best.plan,
}
