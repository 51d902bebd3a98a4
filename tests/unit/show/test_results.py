"""What a run shows."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import threading
from pathlib import Path

import pytest
from rich.console import Console

from remat_codegen.show import heartbeat
from remat_codegen.show.results import Progress, Report, Row, Verification, report_table, verification_table

GIB = 2**30
REPORT = Report(
    "rockmate",
    "optimal",
    GIB,
    GIB - 1000,
    2 * GIB,
    0.1234567,
    0.1,
    26,
    5,
    {"trace": 1.23456, "plan": 2.0},
    Path("out.py"),
    ("a [note]",),
)
GOOD = Verification((Row("outputs", True, "bit-identical"),), GIB, GIB, GIB, True)
BAD = Verification((Row("outputs", True), Row("gradients", False, "0.1 in wte.weight")), GIB, None, None, False)


def shown(table) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    return console.file.getvalue()


def test_json_has_the_documented_keys():
    keys = (
        "planner status budget_bytes planned_peak_bytes unmodified_peak_bytes overhead bound blocks kinds seconds output notes"
    )
    assert list(REPORT.to_json()) == keys.split()
    assert list(dataclasses.replace(REPORT, verify=GOOD).to_json()) == [*keys.split(), "verify"]
    assert json.loads(json.dumps(REPORT.to_json()))["seconds"] == {"trace": 1.235, "plan": 2.0}


def test_json_of_a_verification():
    keys = "ok measured_peak_bytes planned_peak_bytes original_peak_bytes assumed_peak_bytes time_ratio budget_bytes"
    assert list(GOOD.to_json()) == [*keys.split(), "requested_peak_bytes", "reserved_peak_bytes", "rows", "notes"]
    assert BAD.to_json()["rows"][1] == {"what": "gradients", "ok": False, "detail": "0.1 in wte.weight"}


def test_the_table():
    text = shown(report_table(REPORT))
    for part in (
        "1.00 GiB of 2.00 GiB (50.0 %)",
        "12.3 %",
        "10.0 %",
        "26, of 5 kinds",
        "trace 1.2 s, plan 2.0 s",
        "a [note]",
        "out.py",
    ):
        assert part in text
    assert "lower bound" not in shown(report_table(dataclasses.replace(REPORT, bound=None)))


def test_the_table_of_a_verification():
    assert "1.00 GiB, planned 1.00 GiB (+0.0 %), budget 1.00 GiB" in shown(verification_table(GOOD))
    on_cuda = dataclasses.replace(GOOD, requested_peak_bytes=GIB // 2, reserved_peak_bytes=3 * GIB)
    assert "requested 512.0 MiB, reserved by the process 3.00 GiB" in " ".join(shown(verification_table(on_cuda)).split())
    text = shown(verification_table(BAD))
    assert "FAILED" in text and "0.1 in wte.weight" in text
    assert "proves little" in shown(verification_table(dataclasses.replace(GOOD, notes=("proves little",))))
    assert GOOD.failures() == "" and BAD.failures() == "gradients: 0.1 in wte.weight"


@pytest.mark.parametrize("console", [None, Console(file=io.StringIO()), Console(file=io.StringIO(), force_terminal=True)])
def test_progress_keeps_the_time_of_each_stage(console):
    progress = Progress(console)
    with progress.stage("outer"):
        with progress.stage("inner"):
            progress.update(1, 2)
        progress.update(2, 2)
        progress.note("a [note]")
        progress.note("a [note]")
    with progress.stage("inner"), pytest.raises(ValueError), progress.stage("failing"):
        raise ValueError
    progress.update(1, 1)
    assert list(progress.seconds) == ["outer", "inner", "failing"]
    assert all(seconds >= 0 for seconds in progress.seconds.values())
    text = "" if console is None else console.file.getvalue()
    assert ("inner" in text) == (console is not None) and text.count("a [note]") == (console is not None)


def test_away_from_a_terminal_progress_is_plain_lines():
    console = Console(file=io.StringIO())
    with Progress(console).stage("plan"):
        pass
    assert console.file.getvalue() == "plan ...\n"


class Log(io.StringIO):
    """A file that tells when it has a line with some text."""

    def __init__(self, wanted: str) -> None:
        super().__init__()
        self.wanted, self.found = wanted, threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.wanted in self.getvalue():
            self.found.set()
        return written


def test_a_log_shows_that_what_takes_long_goes_on(monkeypatch):
    monkeypatch.setattr(heartbeat, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(heartbeat, "NEXT_SECONDS", 0.0)
    log = Log("plan ... 0 s, solving blocks, 3 of 12\n")
    progress = Progress(Console(file=log))
    with progress.stage("batches"), progress.stage("plan"):
        progress.update(3, 12, "solving blocks")
        assert log.found.wait(60)
    ended = log.getvalue()
    assert ended.startswith("batches ...\n") and "plan ...\n" in ended
    assert not any(t.name == heartbeat.NAME for t in threading.enumerate())


def test_a_log_names_no_count_where_there_is_none(monkeypatch):
    monkeypatch.setattr(heartbeat, "FIRST_SECONDS", 0.0)
    log = Log("trace ... 0 s\n")
    with Progress(Console(file=log)).stage("trace"):
        assert log.found.wait(60)


def test_a_log_shows_it_while_a_solver_is_silenced(monkeypatch):
    monkeypatch.setattr(heartbeat, "FIRST_SECONDS", 0.0)
    out, into = os.pipe()
    with (
        open(out) as lines,
        open(into, "w") as log,
        open(os.devnull, "w") as nowhere,
        Progress(Console(file=log)).stage("plan"),
    ):
        os.dup2(nowhere.fileno(), log.fileno())  # as planners.milp does
        assert (lines.readline(), lines.readline()) == ("plan ...\n", "plan ... 0 s\n")


def test_silence_begins_anew_with_every_line(monkeypatch):
    waited, beats = [], []

    class Silence:
        """An event that was set the first time that it is waited for."""

        def wait(self, seconds):
            waited.append(seconds)
            if len(waited) == 5:
                beat._stopped = True
            return len(waited) in (1, 4, 5)

        def clear(self):
            pass

    beat = heartbeat.Heartbeat.__new__(heartbeat.Heartbeat)
    beat._say, beat._stopped, beat._stirred = lambda: beats.append(len(waited)), False, Silence()
    beat._run()
    first, later = heartbeat.FIRST_SECONDS, heartbeat.NEXT_SECONDS
    assert waited == [first, first, later, later, first] and beats == [2, 3]


def test_quiet_runs_and_terminals_have_no_heartbeat(monkeypatch):
    monkeypatch.setattr("remat_codegen.show.results.Heartbeat", None)  # which would fail
    for console in (None, Console(file=io.StringIO(), force_terminal=True)):
        with Progress(console).stage("plan"):
            pass


def test_times_of_stages_add_up(monkeypatch):
    now = iter((0.0, 1.0, 3.0, 10.0, 12.0, 12.0, 12.0, 13.0))
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    progress = Progress(None)
    with progress.stage("batches"), progress.stage("smallest"), progress.stage("plan"):
        pass
    with progress.stage("emit"):
        pass
    assert progress.seconds == {"batches": 12.0 - 11.0, "smallest": 11.0 - 7.0, "plan": 7.0, "emit": 1.0}
    assert sum(progress.seconds.values()) == 13.0


def test_the_table_leaves_out_stages_that_only_hold_others():
    took = {"batches": 0.04, "trace": 1.2, "plan": 0.05}
    assert "trace 1.2 s, plan 0.1 s" in shown(report_table(dataclasses.replace(REPORT, seconds=took)))
    assert "batches" not in shown(report_table(dataclasses.replace(REPORT, seconds=took)))
    assert "plan 0.0 s" in shown(report_table(dataclasses.replace(REPORT, seconds={"plan": 0.01})))
