"""The search for the largest batch where time is limited: quick planners first, proofs last. Time is what the tests say."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from nets import NET

from remat_codegen.ask.request import DEFAULT_PLANNER, Request
from remat_codegen.errors import BudgetError, TargetError
from remat_codegen.fit import batching
from remat_codegen.fit.batching import QUICK_SHARE, Trials, largest_size
from remat_codegen.fit.drafts import Least, draft_of, least_bytes, measured, quick_excess
from remat_codegen.planners.base import registry
from remat_codegen.planners.base.deadline import stoppable
from remat_codegen.show.results import Progress

BUDGET = 1000  # bytes
PLAIN, QUICK, OWN = 20, 10, 9  # what a row of the batch takes unmodified, in quick plans and in the planner's own
LIMIT = 100.0


class Model:
    """A model of which all is known, and a clock that only its work moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, planner: str = "rockmate", time_limit: float | None = LIMIT) -> None:
        self.now, self.seconds = 0.0, {"measure": 0.0, "quick": 0.0, "draft": 0.0, "least": 0.0}
        self.asked: list[tuple[str, int]] = []
        self.cut: set[int] = set()  # sizes whose plans take more time than there is
        self.refused: set[int] = set()
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        for name in ("draft_of", "least_bytes", "quick_excess"):
            monkeypatch.setattr(batching, name, getattr(self, name))
        request = Request("net.py:Net", str(BUDGET), planner=planner, time_limit=time_limit, asked_at=0.0)
        self.trials = Trials(request, "", lambda traced: BUDGET, self.measure, start=2)
        self.progress = Progress(None)

    def works(self, what: str, size: int) -> None:
        """Takes the time of some work."""
        self.asked.append((what, size))
        self.now += self.seconds[what]

    def measure(self, request, progress):
        size = int(request.batch)
        self.works("measure", size)
        if size in self.refused:
            raise TargetError(f"no {size}")
        return SimpleNamespace(traced=size, request=request)

    def quick_excess(self, found, budget, seconds):
        self.works("quick", found.traced)
        return float(QUICK * found.traced - budget)

    def draft_of(self, found, budget, progress):
        self.works("draft", found.traced)
        if OWN * found.traced > budget:
            raise BudgetError("no plan", least_bytes=OWN * found.traced, out_of_time=found.traced in self.cut)
        plan = SimpleNamespace(overhead=0.1 if PLAIN * found.traced > budget else 0.0)
        return SimpleNamespace(measured=found, plan=plan, cut_short=found.traced in self.cut)

    def least_bytes(self, found, progress):
        self.works("least", found.traced)
        return Least(OWN * found.traced)

    def search(self) -> int:
        """The largest batch that is found."""
        self.size, self.tried = self.trials.search(16, self.progress)
        return self.size

    def sizes(self, what: str) -> list[int]:
        """Those that some work was done for, in its order."""
        return [size for name, size in self.asked if name == what]


def test_in_time_the_search_begins_with_what_quick_planners_fit(monkeypatch):
    model = Model(monkeypatch)
    assert model.search() == BUDGET // OWN == 111 == model.trials.best.measured.traced
    assert model.sizes("draft") == [100, 101, 111, 112]
    assert not model.trials.cut_short and dict(model.tried)[111] and not dict(model.tried)[112]
    assert model.sizes("measure").count(100) == 1  # it is kept
    assert "batch 100: a quick plan fits" in model.progress.noted and "batch 101: no quick plan fits" in model.progress.noted


def test_without_a_limit_quick_planners_are_not_asked(monkeypatch):
    model = Model(monkeypatch, time_limit=None)
    assert model.search() == 111 and not model.sizes("quick")
    assert model.asked[:3] == [("measure", 2), ("least", 2), ("draft", 2)]


def test_planners_that_are_quick_themselves_need_no_others(monkeypatch):
    model = Model(monkeypatch, planner="chen")
    assert model.search() == 111 and not model.sizes("quick")


def test_where_a_plan_takes_all_the_time_it_is_the_answer(monkeypatch):
    model = Model(monkeypatch)
    model.cut, model.seconds["draft"] = set(range(200)), 30.0
    assert model.search() == 100 and model.sizes("draft") == [100] and not model.sizes("least")
    assert model.trials.cut_short and model.trials.settled
    assert "batch 100: fits" in model.progress.noted


def test_quick_planners_have_a_share_of_the_time_only(monkeypatch):
    model = Model(monkeypatch)
    model.seconds["measure"] = 15.0
    size = model.search()
    in_time = int(QUICK_SHARE * LIMIT / 15) + 1
    assert len(model.sizes("quick")) <= in_time and model.sizes("draft")[0] == max(
        n for n, e in model.trials.hints.items() if e <= 0
    )
    assert size >= model.sizes("draft")[0] and model.trials.best.measured.traced == size


def test_the_search_goes_on_from_quick_plans_that_were_cut_short(monkeypatch):
    model = Model(monkeypatch)
    model.seconds["measure"], model.cut = 30.0, set(range(200))
    assert model.search() == 100  # by the line through 2 and 4
    assert model.sizes("quick") == [2, 4] and model.sizes("draft") == [4, 64, 100] and model.trials.cut_short


def test_a_batch_that_needs_no_plan_is_not_asked_for_its_smallest(monkeypatch):
    model = Model(monkeypatch)
    model.seconds["measure"] = 30.0
    assert model.search() == 111 and model.sizes("draft") == [4, 64, 111] and model.sizes("least") == [64]


def test_where_nothing_fits_one_proof_is_enough(monkeypatch):
    monkeypatch.setattr("test_batching.BUDGET", 5)
    model = Model(monkeypatch)
    assert model.search() == 0 and model.sizes("draft") == [1] and not model.trials.cut_short
    assert model.trials.nothing_fits([1]).hint == "the smallest plan for a batch of 1 needs 9 bytes"


def test_where_the_planner_does_less_than_quick_ones_a_smaller_batch_is_found(monkeypatch):
    monkeypatch.setattr("test_batching.OWN", 13)
    model = Model(monkeypatch)
    assert model.search() == BUDGET // 13 == model.trials.best.measured.traced


def test_sizes_that_the_model_does_not_take_are_left_out(monkeypatch):
    model = Model(monkeypatch)
    model.refused = set(range(1, 300, 2))
    assert model.search() == 110 and "batch 101: no 101" in model.progress.noted


def test_when_the_time_is_up_nothing_is_looked_for_quickly(monkeypatch):
    model = Model(monkeypatch)
    model.now = LIMIT + 1
    assert model.search() == 2 and model.trials.cut_short and not model.sizes("quick")


def test_hints_say_where_to_begin_and_decide_nothing():
    hints = {2: -94.0, 30: -10.0, 34: 2.0}
    assert largest_size(lambda n: 3 * n - 100, 2, 16, hints=hints)[1][0] == (30, True)
    for right in (20, 33, 50):
        assert largest_size(lambda n, right=right: 3.0 * (n - right), 2, 16, hints=hints)[0] == right


@pytest.fixture
def found(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    return measured(Request(f"{tmp_path / 'net.py'}:Net", "60%", cache=False), Progress(None))


def test_what_quick_planners_find_is_found_when_time_is_short(found, monkeypatch):
    least = int(quick_excess(found, 0, 60.0))
    assert least_bytes(found, Progress(None)).nbytes <= least < found.plain_bytes
    assert quick_excess(found, found.plain_bytes, 60.0) < 0 == quick_excess(found, least, 60.0)

    @stoppable
    def for_ever(graph, profile, budget_bytes, *, effort, **_):
        while True:
            effort.tell("", 0, 1)

    monkeypatch.setitem(registry.PLANNERS, DEFAULT_PLANNER, for_ever)
    hurried = replace(found, request=replace(found.request, time_limit=3.0))
    draft = draft_of(hurried, least, Progress(None))
    assert draft.cut_short and draft.made.planned_peak_bytes <= least
