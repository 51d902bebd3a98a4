"""On the graphs of benchmarks/results: more budget is never slower, over twenty budgets, and nothing cheap beats `auto`."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_codegen.graph import exchange
from remat_codegen.planners import auto, chen, dtr
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import simulate, validate, without_recomputation

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
QUICK = "mixer"
GRAPHS = (
    QUICK,
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("unet", "gpt2", "transformer", "regnet", "resnet101")),
)
BUDGETS = 20


def read(name):
    """A committed graph, its costs, and its peak without recomputation."""
    found = exchange.load(RESULTS / f"compare-{name}.graph.json")
    profile = Profile(found.time_ns, found.workspace_bytes, found.device)
    return found.graph, profile, simulate(found.graph, profile, without_recomputation(found.graph)).peak_bytes


@pytest.fixture
def quick(monkeypatch):
    """Less search: what holds must hold of little of it, too."""
    auto.frontier.cache_clear()
    monkeypatch.setattr(auto, "WORK_PER_NODE", 20)
    monkeypatch.setattr(auto, "RESOLUTION", 1.01)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", GRAPHS)
def test_more_budget_is_never_slower(name):
    graph, profile, most = read(name)
    budgets = [most * part // BUDGETS for part in range(1, BUDGETS + 1)]
    plans = [auto.plan(graph, profile, budget) for budget in budgets]
    for budget, plan in zip(budgets, plans, strict=True):
        if plan.schedule is not None:
            validate(graph, plan.schedule)
            timeline = simulate(graph, profile, plan.schedule)
            assert (timeline.time_ns, timeline.peak_bytes) == (plan.time_ns, plan.peak_bytes) and plan.peak_bytes <= budget
    feasible = [p.schedule is not None for p in plans]
    times = [p.time_ns for p in plans if p.schedule is not None]
    assert feasible == sorted(feasible) and times == sorted(times, reverse=True) and times[-1] == sum(profile.time_ns)


@pytest.mark.parametrize("name", GRAPHS)
def test_nothing_cheap_is_faster(name):
    """With as much search as in use: plans are for budgets in steps (RESOLUTION), which others need not be."""
    graph, profile, most = read(name)
    for part in (4, 6, 8):
        mine = auto.plan(graph, profile, most * part // 10)
        for run in (dtr.plan, chen.plan):
            other = run(graph, profile, most * part // 10)
            assert other.schedule is None or mine.time_ns <= other.time_ns
