"""What `verify` needs of a device: room for one model at a time, and says where there is not even that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

MIB = 2**20
MODEL = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(1024, 1024) for _ in range(8)])  # 32 MiB

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x)).exp().tanh()
        return x


def make():
    return Net()
"""


@pytest.fixture
def folder(tmp_path: Path, device: str) -> Path:
    """With a model, and a file for it that takes about half of its step."""
    if "Null" not in torch.cuda.get_device_name(device):
        pytest.skip("needs a GPU whose memory can be set")
    (tmp_path / "model.py").write_text(MODEL)
    for name in ("Net", "make"):
        ran = remat(tmp_path, f"model.py:{name}", "--budget", "45%", "-o", f"{name.lower()}_remat.py", *SHAPES)
        assert ran.returncode == 0, ran.stderr
    return tmp_path


SHAPES = "--inputs", "float32[4096,1024]", "--device", "cuda"  # values of 16 MiB


def remat(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "remat_codegen", *words]
    surroundings = os.environ | environment
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=surroundings)


@pytest.mark.parametrize("name", ["Net", "make"])
def test_a_file_whose_original_does_not_fit_is_measured(folder, name):
    file = f"{name.lower()}_remat.py"
    ran = remat(folder, "verify", file, f"model.py:{name}", *SHAPES, "--json", NULLGPU_BYTES=str(500 * MIB))
    found = json.loads(ran.stdout)
    rows = {r["what"]: r["detail"] for r in found["rows"]}
    assert "not compared: the original does not fit" in rows["the original"], rows
    assert found["ok"] and 0 < found["measured_peak_bytes"] <= found["budget_bytes"]


@pytest.mark.parametrize("name", ["Net", "make"])
def test_a_file_is_compared_where_the_original_fits(folder, name):
    ran = remat(
        folder, "verify", f"{name.lower()}_remat.py", f"model.py:{name}", *SHAPES, "--json", NULLGPU_BYTES=str(4096 * MIB)
    )
    found = json.loads(ran.stdout)
    assert "the original" not in {r["what"] for r in found["rows"]}
    assert {"outputs", "gradients of parameters", "peak within budget"} <= {r["what"] for r in found["rows"]}
