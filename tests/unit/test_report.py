"""What a run shows."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from remat_codegen.report import Progress, Report, Row, Verification, report_table, verification_table

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
        "26 of 5 kinds",
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
