"""`make gpu` takes up again where it was ended, and goes on after what fails; tried without a GPU, running nothing."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DEVICE = {"device": "none", "capability": "9.0", "torch": "0", "cudnn": 0, "python": "3", "computes": False}
PRINTED = {"planned_peak_bytes": 1 << 20, "budget_bytes": 1 << 21, "overhead": 0.5}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """benchmarks/gpu.py, which writes to a folder of its own and has one part of two steps."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu

    monkeypatch.setattr(gpu, "BUILD", tmp_path)
    monkeypatch.setattr(gpu, "PARTS", {"peaks": gpu.steps("gpt2", "50%", "40%")})
    return gpu


def new_run(gpu: ModuleType, minutes: float | None = None) -> Any:
    return gpu.Run(argparse.Namespace(small=True, minutes=minutes), DEVICE)


def test_steps_that_are_done_are_not_run_again(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = []

    def step(self: Any, step: Any, limit: float) -> dict[str, Any]:
        ran.append(step.budget)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return PRINTED

    monkeypatch.setattr(gpu.Run, "_step", step)
    with pytest.raises(KeyboardInterrupt):
        new_run(gpu).part("peaks", again=False)
    assert new_run(gpu).part("peaks", again=False)
    assert ran == ["50%", "40%", "40%"]
    assert "| gpt2 40% | 2.0 | 1.0 |" in (tmp_path / "gpu-peaks.md").read_text()


def test_what_fails_is_reported_and_others_go_on(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = {"failed": "it broke"}
    monkeypatch.setattr(gpu.Run, "_step", lambda self, step, limit: failed if step.budget == "50%" else PRINTED)
    assert not new_run(gpu).part("peaks", again=False)
    steps = json.loads((tmp_path / "gpu-peaks.json").read_text())["steps"]
    assert steps == {"gpt2 50%": failed, "gpt2 40%": PRINTED}
    assert "it broke" in (tmp_path / "gpu-peaks.md").read_text()


def test_a_step_that_had_too_little_time_is_left_for_another_call(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.Run, "_step", lambda self, step, limit: {"failed": "not done", "ended": True})
    this = new_run(gpu, minutes=2)
    assert not this.part("peaks", again=False)
    assert this.state["parts"]["peaks"] == {}


def test_a_step_that_began_late_in_its_part_is_left_for_another_call(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all of a part's time it is not tried again."""
    monkeypatch.setattr(gpu, "PART_S", 0.5)

    def step(self: Any, step: Any, limit: float) -> dict[str, Any]:
        if step.budget == "50%":
            time.sleep(0.2)
            return PRINTED
        return {"failed": "not done", "ended": True}

    monkeypatch.setattr(gpu.Run, "_step", step)
    first, second = new_run(gpu), new_run(gpu)
    assert not first.part("peaks", again=False) and list(first.state["parts"]["peaks"]) == ["gpt2 50%"]
    second.state = first.state
    assert not second.part("peaks", again=False) and list(second.state["parts"]["peaks"]) == ["gpt2 50%", "gpt2 40%"]


def test_a_budget_that_is_too_small_becomes_the_smallest(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "no plan keeps x under 1 B; the smallest budget that works is 1.0 KiB (1024 bytes)"
    asked = []

    def run(command: list[str], limit: float) -> dict[str, Any]:
        asked.append(command[command.index("--budget") + 1])
        return dict(PRINTED) if asked[-1] == "1024" else {"failed": said}

    monkeypatch.setattr(gpu, "run", run)
    assert new_run(gpu).part("peaks", again=False)
    assert asked == ["50%", "1024", "40%", "1024"]


def test_commands_end_in_time_with_what_they_started(gpu: ModuleType) -> None:
    starts = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    begin = time.monotonic()
    found = gpu.run([sys.executable, "-c", starts], begin + 1)
    assert found["ended"] and time.monotonic() - begin < 30
    assert gpu.run([sys.executable, "-c", "raise SystemExit('why')"], time.monotonic() + 60)["failed"] == "why"
