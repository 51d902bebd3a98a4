"""Every model of the catalogue, as a new user would: target, budget, file, verification."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import builders
import catalogue
import further
import more
import pytest

from remat_codegen.ask.request import DEFAULT_PLANNER, PLANNERS, Request
from remat_codegen.errors import BudgetError, UnsupportedError
from remat_codegen.planners.base import registry
from remat_codegen.run import pipeline
from remat_codegen.run.traced import Traced, trace_target
from remat_codegen.show.results import Progress, Report

pytestmark = pytest.mark.timeout(1800)
OTHER_PLANNERS = [p for p in PLANNERS if p != DEFAULT_PLANNER]
SEARCHING = ("best", "checkmate", "checkmate-lp")  # as long as they are given
LONG = ("transformer", "padded_encoder")
SECONDS = 10.0  # for each of their plans: what they have found by then has to be as right as what takes longer


TRACE, TRACED = trace_target, dict[str, Traced]()


@pytest.fixture(autouse=True)
def traced_once(monkeypatch):
    """Tracing takes most of the time, and is the same for every budget and planner: the last model is remembered."""

    def trace(request, progress):
        if request.target not in TRACED:
            TRACED.clear()
            TRACED[request.target] = TRACE(request, progress)
        return TRACED[request.target]

    monkeypatch.setattr(pipeline, "trace_target", trace)


@pytest.fixture(autouse=True)
def little_time(monkeypatch):
    """The planners that search are stopped early: the catalogue takes hours without that."""

    def hurried(planner):
        return lambda *given, effort: planner(*given, effort=replace(effort, deadline=time.monotonic() + SECONDS))

    for name in SEARCHING:
        monkeypatch.setitem(registry.PLANNERS, name, hurried(registry.PLANNERS[name]))


def marked(name: str):
    """Most models of torch alone are small enough for every run of the tests."""
    return pytest.param(name, marks=pytest.mark.slow) if name in (*builders.LIBRARIES, *LONG) else name


def generate(name: str, budget: str, folder: Path, planner: str = "rockmate") -> Report:
    file = next(c.__file__ for c in (catalogue, more, further) if name in c.NAMES)
    output = folder / f"{name}_remat.py"
    request = Request(f"{file}:{name}", budget, output, inputs=f"{file}:{name}_inputs", verify=True, planner=planner)
    return pipeline.generate(request, Progress(None))


def smallest(name: str, folder: Path, planner: str = DEFAULT_PLANNER) -> int:
    """What a planner says is enough."""
    with pytest.raises(BudgetError) as caught:
        generate(name, "1", folder, planner)
    return int(re.search(r"\((\d+) bytes\)", caught.value.line())[1])


def check(report: Report) -> None:
    assert report.verify.ok, report.verify.failures()
    assert not report.verify.notes, "a comparison of NaN with NaN"
    assert report.verify.measured_peak_bytes <= report.budget_bytes


def three_budgets(name: str, folder: Path, planner: str = DEFAULT_PLANNER) -> None:
    loose = generate(name, "100%", folder, planner)
    check(loose)
    least = smallest(name, folder, planner)
    for share in (0.0, 0.5):
        check(generate(name, str(int(least + share * max(0, loose.unmodified_peak_bytes - least))), folder, planner))


@pytest.mark.parametrize("name", [marked(n) for n in catalogue.NAMES])
def test_exact_and_within_budget(name, tmp_path):
    builders.require(name)
    three_budgets(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "said"), [*more.REFUSED.items(), *further.REFUSED.items()])
def test_what_cannot_be_planned_is_refused_with_the_reason(name, said, tmp_path):
    builders.require(name)
    with pytest.raises(UnsupportedError, match=said):
        generate(name, "100%", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for c in (more, further) for n in c.NAMES if n not in c.REFUSED])
def test_other_models_are_exact_and_within_budget(name, tmp_path):
    builders.require(name)
    three_budgets(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("planner", OTHER_PLANNERS)
@pytest.mark.parametrize("name", catalogue.NAMES)
def test_every_planner_is_exact_and_within_budget(name, planner, tmp_path):
    """Tight, middle and loose: the smallest budget that a planner says is enough has to be."""
    builders.require(name)
    three_budgets(name, tmp_path, planner)
