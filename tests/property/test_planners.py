"""Every planner's plan can be written out, and runs exactly and within its budget."""

from __future__ import annotations

import pytest
import zoo
from emitted import emit, load, zoo_model

from remat_codegen.ask.request import PLANNERS as NAMES
from remat_codegen.planners.base.registry import PLANNERS
from remat_codegen.planners.base.reserve import GENERATOR_STATE_BYTES, SLACK_BYTES
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.measure import Measured
from remat_codegen.schedule import simulate, validate, without_recomputation
from remat_codegen.schedule.order import order_of
from remat_codegen.verify.beside import compare

COSTS = Cache("cpu", enabled=False)
SLOW = ("checkmate", "checkmate-lp", "best")


def test_the_command_line_offers_every_planner():
    assert tuple(PLANNERS) == NAMES


@pytest.mark.parametrize("model_name", ["gpt2", "resnet", "unet"])
@pytest.mark.parametrize("planner", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in PLANNERS])
def test_every_plan_runs(planner, model_name, tmp_path):
    module, args, kwargs, model = zoo_model(model_name)
    profile = Measured("cpu", COSTS).of(model)
    plain = simulate(model.graph, profile, without_recomputation(model.graph))
    for share in (1.0, 0.7):
        budget = int(plain.peak_bytes * share)
        plan = PLANNERS[planner](model.graph, profile, budget)
        if plan.schedule is None:
            continue
        validate(model.graph, plan.schedule)
        timeline = simulate(model.graph, profile, plan.schedule)
        assert (timeline.peak_bytes, timeline.time_ns) == (plan.peak_bytes, plan.time_ns)
        assert timeline.peak_bytes <= budget
        text = emit(module, args, kwargs, model, plan.schedule, open_source())
        found = compare(module, load(text, tmp_path).rematerialize, args, kwargs, loss=model.record.loss)
        assert {what: d.where for what, d in found.differences.items() if d.worst is not None} == {}
        again = len(order_of(plan.schedule)) - len(model.graph.nodes)
        allowed = (again + 1) * GENERATOR_STATE_BYTES + SLACK_BYTES
        assert found.measured_peak_bytes <= timeline.peak_bytes + allowed


def open_source() -> str:
    with open(zoo.__file__) as file:
        return file.read()
