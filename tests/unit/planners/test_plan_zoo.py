"""Every planner on graphs of real models, costs made up from sizes: valid, writable, within budget or INFEASIBLE."""

from __future__ import annotations

import emitted
import pytest

from remat_codegen.graph.ir import total_bytes
from remat_codegen.planners.base.bound import bound
from remat_codegen.planners.base.deadline import Effort
from remat_codegen.planners.base.judge import restrict
from remat_codegen.planners.base.registry import PLANNERS
from remat_codegen.planners.base.result import Status
from remat_codegen.planners.chain.options import Grid
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import simulate, validate, without_recomputation

SLOW = ("checkmate", "checkmate-lp", "rockmate")


def quick(name):
    """Options with which a planner takes a few seconds."""
    options = {"auto": {"work_per_node": 20}, "rockmate": {"grid": Grid(2, 1), "effort": Effort(per_solve=2.0)}}
    return options.get(name, {"effort": Effort.lasting(5.0)} if name in SLOW else {})


def costs(graph):
    """Time by bytes moved, dearer for every third node; some workspace."""
    moved = [total_bytes(graph, {*n.reads, *n.writes}) for n in graph.nodes]
    times = [1000 + b * (8 if n.id % 3 == 0 else 1) for n, b in zip(graph.nodes, moved, strict=True)]
    return Profile(tuple(times), tuple(b // 8 if n.id % 5 == 0 else 0 for n, b in zip(graph.nodes, moved, strict=True)))


@pytest.mark.parametrize("model", ["gpt2", "unet", "lstm", "odd"])
def test_every_planner(model):
    graph = emitted.zoo_model(model)[3].graph
    profile = costs(graph)
    most = simulate(graph, profile, without_recomputation(graph)).peak_bytes
    for share in (0.5, 0.8):
        budget = int(most * share)
        least = bound(graph, profile, budget, columns=5000).time_ns
        for name, plan in PLANNERS.items():
            if name == "best" or (name in SLOW and share < 0.8):
                continue
            found = plan(graph, profile, budget, **quick(name))
            if found.schedule is None:
                assert found.status is Status.INFEASIBLE
                continue
            validate(graph, found.schedule)
            restrict(graph, found.schedule)
            timeline = simulate(graph, profile, found.schedule)
            assert (timeline.time_ns, timeline.peak_bytes) == (found.time_ns, found.peak_bytes)
            assert found.peak_bytes <= budget
            assert least is not None and least <= found.time_ns
