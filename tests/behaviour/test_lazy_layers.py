"""Layers that get their weights when they are first called, by the model's own __init__ for instance."""

from __future__ import annotations

import pytest

from remat_codegen.ask.request import Request
from remat_codegen.run import marked, pipeline
from remat_codegen.show.results import Progress
from remat_codegen.verify.beside import load_generated

QUIET = Progress(None)
NET = """
import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.LazyLinear(4 * width), nn.LazyLinear(width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self(torch.zeros(2, 16, width))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""


@pytest.mark.parametrize("edition", [1, 2])
def test_a_model_may_call_itself_while_it_is_made(edition, tmp_path):
    (tmp_path / "net.py").write_text(NET)
    target, inputs = f"{tmp_path / 'net.py'}:Net", "float32[8,48,32]"
    request = Request(target, "60%", tmp_path / "out.py", inputs=inputs, edition=edition)
    (pipeline if edition == 1 else marked).generate(request, QUIET)
    assert load_generated(request.output_path).Net().blocks[0].up.weight.shape == (128, 32)
    assert pipeline.verify(request.output_path, target, inputs=inputs, steps=2, progress=QUIET).ok
