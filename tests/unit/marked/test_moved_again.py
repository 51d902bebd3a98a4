"""What a model's own checkpoints move twice in a step is named, for a file moves it once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from second_edition import traced_module
from torch import nn
from torch.utils.checkpoint import checkpoint

from remat_codegen.marked.changed import moved_again
from remat_codegen.run.marked import _note_moved_again

FILE = Path(__file__)


class Block(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.lin, self.norm, self.act = nn.Linear(8, 8), norm, nn.GELU()

    def forward(self, x):
        return self.norm(self.act(self.lin(x)))


class Net(nn.Module):
    def __init__(self, run, norm):
        super().__init__()
        self.block, self.run = Block(norm), run

    def forward(self, x):
        return self.run(self.block, x)


again = partial(checkpoint, use_reentrant=False)


def traced(run, norm):
    return traced_module(Net(run, norm), (torch.randn(4, 8, requires_grad=True),), {}, FILE)


def test_statistics_within_a_checkpoint_are_named():
    found = traced(again, nn.BatchNorm1d(8))
    moved = moved_again(found.model.trace, found.model.record)
    line = next(n for n, text in enumerate(FILE.read_text().splitlines(), start=1) if "return self.run(self.block" in text)
    assert moved == {"block.norm": f"{FILE.name}:{line}"}
    told = list[str]()
    _note_moved_again(found, SimpleNamespace(note=told.append))
    assert len(told) == 1 and "buffers of block.norm: the model does so twice in a step, the file once" in told[0]


@pytest.mark.parametrize(
    "run, norm",
    [
        (again, nn.LayerNorm(8)),
        (lambda block, x: block(x), nn.BatchNorm1d(8)),
        (partial(checkpoint, use_reentrant=True), nn.BatchNorm1d(8)),
    ],
)
def test_nothing_else_is(run, norm):
    found = traced(run, norm)
    assert not moved_again(found.model.trace, found.model.record)
