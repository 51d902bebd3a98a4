"""What is planned for a GPU that is not there is what is planned on it: a process that sees none against this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import absent_step
import pytest
import torch
from conftest import ROOT

from remat_codegen.profile.devices import DEVICES

ROUNDING = 4096  # bytes; small pieces that kernels allocate
OF_BLAS = 2**20  # what products may take before Hopper, where they have no workspace in common


@pytest.fixture(scope="module")
def both():
    """What steps take here, and on a GPU of the same generation that is not there."""
    here = torch.cuda.get_device_capability()
    name = next((key for key, gpu in DEVICES.items() if gpu.compute_capability == here), None)
    if name is None:
        pytest.skip(f"no GPU in the table has compute capability {here}")
    return _told(), _told(name, CUDA_VISIBLE_DEVICES="")


def _told(*name: str, **environment: str) -> dict[str, Any]:
    """In a process of its own: blocks that tests before this one left with the allocator would be measured, too."""
    around = os.environ | {"PYTHONPATH": path(ROOT, ROOT / "tests")} | environment
    command = [sys.executable, ROOT / "tests" / "absent_step.py", *name]
    return json.loads(subprocess.run(command, env=around, capture_output=True, text=True, check=True).stdout)


def path(*folders: Path) -> str:
    """Where modules are looked for: in these folders, then where this process does."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


NET = """from torch import nn


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Softplus()) for _ in range(4)])
"""


def test_an_estimate_is_measured_where_the_gpu_is(tmp_path):
    (tmp_path / "net.py").write_text(NET)

    def run(*words: str) -> str:  # in processes of their own, which a device that is not there does not leave as they were
        environment = os.environ | {"PYTHONPATH": path(ROOT)}
        command = [sys.executable, "-m", "remat_codegen", *words]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    planned = ["--budget", "80%", "--planner", "chen", "--inputs", "float32[4096,64]", "--edition", "2", "-o", "file.py"]
    run("net.py:Net", "--device", "h100", *planned)
    assert "estimated for h100" in (tmp_path / "file.py").read_text()
    told = run("update", "--measure", "--no-cache", "file.py")
    assert "planned again; by measured costs the plan for h100 takes" in " ".join(told.split())
    text = (tmp_path / "file.py").read_text()
    assert "estimated" not in text and "--device cuda" in text


@pytest.mark.parametrize("label", [label for label, *_ in absent_step.cases()])
def test_a_gpu_that_is_not_there_plans_as_if_it_were(both, label):
    here, there = (found[label] for found in both)
    assert here["graph"] == there["graph"] and here["saved"] == there["saved"]
    assert abs(here["peak"] - there["peak"]) <= (ROUNDING if torch.cuda.get_device_capability() >= (9, 0) else OF_BLAS)


@pytest.mark.real_gpu
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_cudnn_keeps_no_more_than_the_rule_says(device, kind):
    from remat_codegen.trace import cudnn_rnn

    for options in ({}, {"num_layers": 3, "bidirectional": True}, {"num_layers": 2, "dropout": 0.1, "batch_first": True}):
        module, saved = getattr(torch.nn, kind)(64, 128, **options).to(device), []
        x = torch.zeros(16, 32, 64, device=device)
        with torch.autograd.graph.saved_tensors_hooks(lambda t, saved=saved: saved.append(t) or t, lambda t: t):
            module(x)
        kept = max(t.numel() for t in saved if t.dtype is torch.uint8)
        layers, both = options.get("num_layers", 1), 1 + options.get("bidirectional", False)
        steps, batch = (32, 16) if options.get("batch_first") else (16, 32)
        mode = cudnn_rnn.MODES["rnn_tanh" if kind == "RNN" else kind.lower()]
        net = cudnn_rnn.Recurrent(steps, batch, mode, 128, 128, layers, both, "dropout" in options, 4, ())
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        assert kept <= max(net.reserve_bytes(), processors * cudnn_rnn.DROPOUT_BYTES)
