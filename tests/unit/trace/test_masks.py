"""Masks as indices: how many rows they take depends on data, so that the plan counts all of them."""

from __future__ import annotations

import pytest

from remat_codegen.ask.request import Request
from remat_codegen.run import pipeline
from remat_codegen.show.results import Progress

MODEL = """
import torch
from torch import nn


class Masked(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.inner, self.row = nn.Linear(d, d), nn.Parameter(torch.randn(d))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(3))

    def forward(self, x, mask):
        h = self.inner(x)
        h[mask] = self.row
        for block in self.blocks:
            h = h + block(h)
        h = h.clone()
        h[h[..., 0] > 0] = self.inner(self.row)
        h[:, :, :4][mask] = 0.5
        return h


def rarely():
    return torch.randn(8, 16, 32), torch.rand(8, 16) < 0.1


def always():
    return torch.randn(8, 16, 32), torch.ones(8, 16, dtype=torch.bool)
"""


@pytest.mark.parametrize("inputs", ["rarely", "always"])
@pytest.mark.parametrize("budget", ["60%", "100%"])
def test_masks_as_indices_are_exact_and_within_budget(inputs, budget, write_file, tmp_path):
    file = write_file(MODEL)
    request = Request(f"{file}:Masked", budget, tmp_path / "masked.py", inputs=f"{file}:{inputs}", verify=True)
    assert pipeline.generate(request, Progress(None)).verify.ok
