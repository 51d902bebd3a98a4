"""An autograd.Function that returns what it was given, as RWKV's for its logits: it has a gradient for something else."""

from __future__ import annotations

import pytest

from remat_codegen.ask.request import Request
from remat_codegen.run import marked, pipeline
from remat_codegen.show.results import Progress

QUIET = Progress(None)
NET = """import torch
import torch.nn.functional as F
from torch import nn


class Tamed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss, y):
        ctx.save_for_backward(y)
        return loss

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        largest, at = torch.max(y, -1, keepdim=True)
        return grad, torch.zeros_like(y).scatter_(-1, at, 1e-4 * largest)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x):
        return x + self.down(self.up(x).tanh())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.Sequential(Block(), Block(), Block()), nn.Linear(32, 20)

    def forward(self, x, targets):
        y = self.head(self.blocks(x))
        return Tamed.apply(F.cross_entropy(y, targets), y)
"""


@pytest.mark.parametrize("edition", [1, 2])
def test_it_is_part_of_what_made_that(edition, tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    inputs = "float32[256,32];int64[256]<20"
    request = Request("net.py:Net", "70%", tmp_path / "file.py", inputs=inputs, edition=edition)
    (pipeline if edition == 1 else marked).generate(request, QUIET)
    assert pipeline.verify(request.output_path, "net.py:Net", inputs=inputs, steps=2, progress=QUIET).ok
