"""The examples in examples/training, as they are and with two lines more: what they print is the same to the last digit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchvision_cpu
from conftest import ROOT

FOLDER = ROOT / "examples" / "training"
MARK = "# remat: "
GPT2_REMAT = "-m", "remat_codegen", "gpt2.py:GPT2", "-o", "gpt2_remat.py", "--budget", "60%", "--planner", "dtr"
INIT = "--init", "layers=3, width=32, heads=2, vocabulary=64, context=24", "--inputs", "int64[8,24]<64"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
EXAMPLES = {  # name: the libraries that it needs, how it is run, with what
    "transformers_trainer": (("transformers", "accelerate"), (), ()),
    "trl_sft": (("trl",), (), ()),
    "accelerate_llama": (("transformers", "accelerate"), (), ()),
    "lightning_vit": (("lightning",), (), ()),
    "peft_lora": (("transformers", "peft"), (), ()),
    "torchrun_gpt2": ((), TORCHRUN, ()),
    "torchrun_gpt2 sharded": ((), TORCHRUN, ("--shard",)),
}


@pytest.fixture
def folder(tmp_path):
    """The examples, and each with the lines that it says."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for file in (tmp_path / "examples" / "training").iterdir():
        file.with_name(f"{file.stem}_remat.py").write_text(file.read_text().replace(MARK, ""))
    shutil.copy(torchvision_cpu.__file__, tmp_path / "sitecustomize.py")  # which every process imports first
    return tmp_path


def run(folder: Path, *words: str | Path) -> list[str]:
    """What a process prints, without the lines of the Trainer's own, which have times."""
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, *words], env=env, cwd=folder / "examples", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [line for line in done.stdout.splitlines() if not re.match(r"\{'(loss|eval_loss|train_runtime)'", line)]


def test_each_example_is_run_and_says_which_lines_come():
    assert {name.partition(" ")[0] for name in EXAMPLES} == {file.stem for file in FOLDER.glob("*.py")}
    for file in FOLDER.glob("*.py"):
        text = file.read_text()
        added = [line for line in text.split("\n") if line.strip().startswith(MARK)]
        assert 1 <= len(added) <= 2 and "`# remat: `" in text
        compile(text.replace(f"`{MARK}`", "").replace(MARK, ""), file, "exec")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", EXAMPLES)
def test_two_hundred_steps_are_the_originals(name, folder):
    libraries, by, words = EXAMPLES[name]
    for library in libraries:
        pytest.importorskip(library)
    if by and not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("needs gloo")
    script = name.partition(" ")[0]
    if by:
        run(folder, *GPT2_REMAT, *INIT)
    wanted, found = (run(folder, *by, f"training/{one}.py", *words) for one in (script, f"{script}_remat"))
    assert found == wanted
    losses = [float(x) for line in found for x in re.findall(r"step .*[^_]loss ([\d.e-]+)", line)]
    assert len(losses) >= 200 and sum(losses[-20:]) < sum(losses[:20])
    made = [file.read_text() for file in (folder / "examples").glob("*_remat.py")]  # at the first step, where not before
    assert len(made) == 1 and "PLAN = {\n" in made[0]
