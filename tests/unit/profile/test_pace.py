"""Times of a busy machine are known as that, and measured again on a quiet one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from remat_codegen.ask.request import Request
from remat_codegen.profile import measure as measuring
from remat_codegen.profile import pace as pace_module
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.clock import clock_for
from remat_codegen.profile.pace import SLOWED, Pace
from remat_codegen.run.priced import measured_costs
from remat_codegen.run.traced import trace_target
from remat_codegen.show.results import Progress

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))
"""
QUIET, BUSY = 1_000_000, 3_000_000


@pytest.fixture
def takes(monkeypatch):
    """Sets what the fixed piece of work takes."""
    monkeypatch.setattr(pace_module, "FOR_SECONDS", 0.0)
    monkeypatch.setattr(measuring, "Pace", Pace)
    return lambda ns: monkeypatch.setattr(pace_module, "median_ns", lambda clock, work: ns)


@pytest.fixture
def notes(write_file, monkeypatch, tmp_path):
    """Plans for a small model, and returns what is said of times."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    request = Request(f"{write_file(MODEL)}:Net", "90%", inputs="float32[4,8]")

    def plan(**options):
        progress = Progress(None)
        traced = trace_target(request, progress)
        measured_costs(request, traced, progress)
        return [note.removeprefix("note: ") for note in progress.noted if "measured" in note]

    return plan


def test_the_least_is_what_others_are_compared_with(takes):
    pace = Pace(clock_for("cpu"), QUIET)
    takes(BUSY)
    assert pace.now_ns() == BUSY and pace.least_ns == QUIET
    assert pace.is_slow(BUSY) and not pace.is_slow(int(SLOWED * QUIET)) and not pace.is_slow(0)
    takes(QUIET // 2)
    assert pace.now_ns() == pace.least_ns == QUIET // 2 and pace.is_slow(QUIET)


def test_what_was_seen_holds_for_a_while(monkeypatch):
    seen = iter([QUIET, BUSY])
    monkeypatch.setattr(pace_module, "median_ns", lambda clock, work: next(seen))
    pace = Pace(clock_for("cpu"))
    assert pace.now_ns() == pace.now_ns() == QUIET
    monkeypatch.setattr(pace_module, "FOR_SECONDS", 0.0)
    assert pace.now_ns() == BUSY


def test_one_run_of_some_work_is_timed():
    ran = []
    assert clock_for("cpu").once_ns(lambda: ran.append(torch.ones(2))) > 0 and len(ran) == 1


def test_what_a_busy_machine_gave_is_used_while_it_is_busy_and_then_measured_again(takes, notes):
    takes(QUIET)
    assert notes() == []
    Cache("cpu").path.unlink()  # but for what the machine can do, which stays
    quiet = Cache("cpu")
    quiet.least_ns = QUIET
    quiet.save()
    takes(BUSY)
    busy = "measured on a machine that did less than it can, as when others use it"
    said = f"3 kinds of operations {busy}: when it is quieter they are measured again, and plan better"
    assert notes() == notes() == [said]  # from the memory the second time
    takes(QUIET)
    assert notes() == ["3 kinds of operations measured again, for the machine was busy when they were measured before"]
    assert notes() == []


def test_a_machine_that_was_busy_from_the_beginning_is_found_out_later(takes, notes):
    takes(BUSY)
    assert notes() == []  # nobody can know
    takes(QUIET)
    assert len(notes()) == 1 and notes() == []


def test_nothing_is_looked_at_where_nothing_is_remembered(monkeypatch, takes):
    monkeypatch.setattr(Pace, "now_ns", lambda self: pytest.fail("looked"))
    from remat_codegen.graph.record import record
    from remat_codegen.graph.simplify import simplify
    from remat_codegen.profile.measure import Measured
    from remat_codegen.trace import trace

    traced = trace(nn.Linear(4, 4), (torch.ones(2, 4),), {})
    Measured("cpu", Cache("cpu", enabled=False)).of(simplify(traced, record(traced)))
