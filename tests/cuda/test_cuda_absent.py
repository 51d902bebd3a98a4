"""What is planned for a GPU that is not there is what is planned on it: a process that sees none against this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

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
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [sys.executable, ROOT / "tests" / "absent_step.py", name]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return absent_step.main(), json.loads(told)


@pytest.mark.parametrize("label", [label for label, *_ in absent_step.cases()])
def test_a_gpu_that_is_not_there_plans_as_if_it_were(both, label):
    here, there = (found[label] for found in both)
    assert here["graph"] == there["graph"] and here["saved"] == there["saved"]
    assert abs(here["peak"] - there["peak"]) <= (ROUNDING if torch.cuda.get_device_capability() >= (9, 0) else OF_BLAS)
