"""More budget never gives a slower plan, on the graphs that planners are compared on in benchmarks/."""

from __future__ import annotations

import pytest
from conftest import ROOT

from remat_codegen.planners import auto, dtr
from remat_codegen.run.priced import priced_file
from remat_codegen.schedule import simulate, validate
from remat_codegen.show.results import Progress

GRAPHS = sorted(path.name.split(".")[0] for path in (ROOT / "benchmarks" / "results").glob("compare-*.graph.json"))
BUDGETS = 20
assert GRAPHS


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", GRAPHS)
def test_more_budget_never_gives_a_slower_plan(name):
    found = priced_file(ROOT / "benchmarks" / "results" / f"{name}.graph.json", Progress(None))
    graph, profile, reached = found.graph, found.profile, None
    for step in range(1, BUDGETS + 1):
        budget = found.plain_bytes * step // BUDGETS
        plan = auto.plan(graph, profile, budget)
        if plan.schedule is None:
            assert reached is None, "a larger budget is refused"
            continue
        validate(graph, plan.schedule)
        assert simulate(graph, profile, plan.schedule).peak_bytes <= budget
        assert reached is None or plan.time_ns <= reached, f"slower at {step} of {BUDGETS}"
        quick = dtr.plan(graph, profile, budget)
        assert quick.schedule is None or plan.time_ns <= quick.time_ns + 0.001 * found.plain_ns
        reached = plan.time_ns
    assert reached == found.plain_ns
