"""From the smallest budget that works to 100 %: within budget, exact, and without recomputation at the end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from remat_codegen.ask.request import Request
from remat_codegen.errors import BudgetError
from remat_codegen.profile.costs import Profile
from remat_codegen.profile.measure import Measured
from remat_codegen.run import pipeline
from remat_codegen.show.results import Progress

EXAMPLE = Path(__file__).parents[2] / "examples" / "gpt2.py"
SMALL = {"init": "layers=3, width=64, heads=4, vocabulary=300, context=64", "inputs": "idx=int64[2,64]<300"}


def generate(folder: Path, budget: str, **more):
    return pipeline.generate(
        Request(f"{EXAMPLE}:GPT2", budget, folder / "small_remat.py", verify=True, **SMALL, **more), Progress(None)
    )


@pytest.fixture(autouse=True, scope="module")
def _measured_once():
    """The smallest budget that a planner finds depends on the costs: all of these tests have the same."""
    found: dict[object, Profile] = {}

    def remembered(costs, model, *more, own=Measured.of):
        if model.graph not in found:
            found[model.graph] = own(costs, model, *more)
        return found[model.graph]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Measured, "of", remembered)
        yield


@pytest.fixture(scope="module")
def smallest(tmp_path_factory) -> int:
    """The smallest budget that works, as the error for a smaller one names it."""
    with pytest.raises(BudgetError) as caught:
        generate(tmp_path_factory.mktemp("smallest"), "10KiB")
    return int(re.search(r"\((\d+) bytes\)", caught.value.line())[1])


@pytest.mark.parametrize("step", [n if n % 2 == 0 else pytest.param(n, marks=pytest.mark.slow) for n in range(9)])
def test_every_budget_holds_and_is_exact(step, smallest, tmp_path):
    budget = "100%" if step == 8 else str(smallest + step * 350_000)
    report = generate(tmp_path, budget)
    assert report.verify.ok, report.verify.failures()
    assert report.verify.measured_peak_bytes <= report.budget_bytes
    assert report.verify.measured_peak_bytes == pytest.approx(report.planned_peak_bytes, rel=0.02)
    assert all("bit-identical" in row.detail for row in report.verify.rows[:-1])
    recomputes = "run_backward" in (tmp_path / "small_remat.py").read_text()
    assert recomputes == (step < 8)


def test_a_little_below_the_smallest_budget_is_refused(smallest, tmp_path):
    """Not a byte below: for less and less is looked a few times only (auto.MOST_LESSENINGS), with less work each."""
    with pytest.raises(BudgetError):
        generate(tmp_path, str(smallest * 98 // 100))
    assert not list(tmp_path.iterdir())
