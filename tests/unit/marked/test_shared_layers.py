"""Layers of one list that several modules have under other names, as TabNet shares its linear ones: they are marked."""

from __future__ import annotations

from pathlib import Path

import torch
from second_edition import found_in, imported_file, text_of, traced_module, trained

from remat_codegen.marked import proof
from remat_codegen.marked.candidates import Row
from remat_codegen.marked.demand import Again, Keeps

MODEL = """
import torch
from torch import nn


class Gated(nn.Module):
    def __init__(self, fc):
        super().__init__()
        self.fc, self.norm = fc, nn.LayerNorm(32)

    def forward(self, x):
        x = self.norm(self.fc(x))
        return x[..., :16] * torch.sigmoid(x[..., 16:])


class Block(nn.Module):
    def __init__(self, shared_layers):
        super().__init__()
        self.shared_layers = shared_layers
        self.layers = nn.ModuleList()
        for fc in shared_layers:
            self.layers.append(Gated(fc))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        shared = nn.ModuleList([nn.Linear(16, 32, bias=False), nn.Linear(16, 32, bias=False)])
        self.blocks = nn.ModuleList(Block(shared) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""


def test_shared_layers_are_the_same_calls(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    traced = traced_module(imported_file(path).Net().train(), (torch.randn(64, 16),), {}, path)
    found = found_in(traced)
    rows = tuple(Row(c, Keeps.NOTHING, Again.ONCE) for c in found.candidates.all if len(c) == 1 and len(c.vertices) == 1)
    text = text_of(traced, found, rows)
    target = traced.target
    assert proof.difference(text, target.module, target.args, target.kwargs, traced.model.trace) is None
    assert trained(traced, text, tmp_path).identical
