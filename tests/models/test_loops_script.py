"""examples/train_gpt2.py as it stands, and with one line changed: what it prints is the same to the last digit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from remat_codegen.ask.request import Request
from remat_codegen.run import marked
from remat_codegen.show.results import Progress

NAMES = ("gpt2", "llama", "resnet", "unet", "vit", "train_gpt2")
INIT = "layers=3, width=64, heads=4, vocabulary=128, context=32"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The example, a file for its model, and the example with that."""
    folder = tmp_path_factory.mktemp("script")
    for name in NAMES:
        shutil.copy(ROOT / "examples" / f"{name}.py", folder)
    file = folder / "gpt2_remat.py"
    inputs = "int64[6,32]<128"
    marked.generate(
        Request(
            f"{folder / 'gpt2.py'}:GPT2",
            "50%",
            file,
            init=INIT,
            inputs=inputs,
            autocast="bfloat16",
            planner="dtr",
            edition=2,
        ),
        Progress(None),
    )
    text = file.read_text()
    assert "PLAN = {\n" in text and "\nLARGEST[:] = 192, PLANNED_PEAK_BYTES, torch.int64, " in text  # of the largest input
    script = (folder / "train_gpt2.py").read_text()
    changed = script.replace("\nfrom gpt2 import GPT2", "\nfrom gpt2_remat import GPT2")
    assert sum(a != b for a, b in zip(script.split("\n"), changed.split("\n"), strict=True)) == 1
    (folder / "train_remat.py").write_text(changed)
    return folder


def printed(folder: Path, script: str, *words: str, by: tuple[str, ...] = ()) -> list[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *by, str(folder / script), *words]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.splitlines()


def equal(folder: Path, *words: str, by: tuple[str, ...] = ()) -> list[str]:
    """What both print: losses, norms of gradients, evaluations, and text, with a smaller batch at the end of each epoch."""
    found, wanted = (printed(folder, script, *words, by=by) for script in ("train_remat.py", "train_gpt2.py"))
    assert found == wanted
    return found


def loss(line: str) -> float:
    return float(line.split()[3].strip(","))


def test_fifty_steps(folder):
    lines = equal(folder, "--steps", "50")
    assert len(lines) == 50 + 2 + 1 and loss(lines[49]) < loss(lines[0])


@pytest.mark.slow
def test_two_hundred_steps(folder):
    lines = equal(folder, "--steps", "200")
    assert len(lines) == 200 + 8 + 1 and loss(lines[200]) < 0.8 * loss(lines[0])


@pytest.mark.slow
def test_each_goes_on_from_where_the_other_stopped(folder):
    whole = printed(folder, "train_gpt2.py", "--steps", "30")
    for first, then in (("train_remat.py", "train_gpt2.py"), ("train_gpt2.py", "train_remat.py")):
        begun = printed(folder, first, "--steps", "30", "--until", "12", "--checkpoint", str(folder / "saved.pt"))
        rest = printed(folder, then, "--steps", "30", "--checkpoint", str(folder / "saved.pt"), "--resume")
        assert [*begun[:-1], *rest] == whole


@pytest.mark.slow
def test_two_processes_by_torchrun(folder):
    lines = equal(folder, "--steps", "30", by=TORCHRUN)
    assert len(lines) == 30 + 1 + 1
