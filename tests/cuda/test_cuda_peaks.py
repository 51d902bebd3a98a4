"""The peak of a piece of work on a CUDA device: nothing that goes away meanwhile may hide a part of it."""

from __future__ import annotations

import torch

MIB = 2**20


def test_what_work_releases_of_its_argument_counts(device):
    from remat_codegen.profile.memory import peak_bytes_after

    def work(given):
        given.clear()
        return torch.empty(34 * MIB, dtype=torch.uint8, device=device)

    def prepare():
        return [torch.empty(32 * MIB, dtype=torch.uint8, device=device)]

    assert peak_bytes_after(prepare, work, device) == 2 * MIB


def test_requested_bytes_are_told_beside_allocated_ones(device):
    from remat_codegen.profile.memory import peak

    found = peak(lambda: torch.empty(100, dtype=torch.uint8, device=device), device)
    assert (found.allocated_bytes, found.requested_bytes) == (512, 100) and found.reserved_bytes >= 512


def test_the_outputs_of_the_step_before_hide_nothing(device):
    from remat_codegen.verify.beside import compare

    model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.Tanh(), torch.nn.Linear(4096, 4096)).to(device)
    inputs = (torch.zeros(512, 256, device=device),)
    one, two = (compare(model, lambda m: m, inputs, {}, steps=n, device=device).measured_peak_bytes for n in (1, 2))
    assert two >= one - MIB
