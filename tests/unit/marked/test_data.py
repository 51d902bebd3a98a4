"""What forward reads or changes through `x.data`, of which autograd knows nothing: parts are exact beside it."""

from __future__ import annotations

import random

import pytest
import torch
from second_edition import found_in, imported_file, random_rows, text_of, traced_module, trained

from remat_codegen.ask.request import Request
from remat_codegen.marked.changed import past_autograd
from remat_codegen.run import marked
from remat_codegen.show.results import Progress

SOURCE = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.register_buffer("mask", torch.arange(32) % 3 == 0)
        self.scale = nn.Parameter(torch.ones(32))

    def mixed(self, x):
        return torch.tanh(self.down(torch.sin(self.up(x))) * torch.sigmoid(x))


class Reads(Block):
    def forward(self, x):
        h = self.mixed(x / (1 + x.data.abs().max()))
        return x + torch.exp(h) * h.data.sigmoid()


class Writes(Block):
    def forward(self, x):
        energy = self.down(torch.sin(self.up(x)))
        energy.data.masked_fill_(self.mask, 0.25)
        return torch.sin(x) + energy * torch.sigmoid(energy) * energy.exp()


class WritesAView(Block):
    def forward(self, x):
        h = self.down(torch.sin(self.up(x)))
        inside = h.data[:, 4:]
        inside.mul_(0.5)
        return torch.sin(x) + (h * torch.sigmoid(h)).exp()


class WritesParameters(Block):
    def forward(self, x):
        h = torch.sin(self.scale * x) * torch.sigmoid(x)
        self.scale.data.mul_(0.99).add_(0.01 * h.detach().mean(0))
        return x + torch.exp(torch.sin(self.mixed(h) * self.scale))


class Over(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.blocks = nn.ModuleList(kind() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""
MADE = """

def made():
    return Over({})


def example_inputs():
    return (torch.randn(256, 32),)
"""
NAMES = "Reads Writes WritesAView WritesParameters".split()


@pytest.fixture(scope="module", params=NAMES)
def traced(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / f"{request.param.lower()}.py"
    path.write_text(SOURCE)
    module = imported_file(path)
    torch.manual_seed(0)
    model = module.Over(getattr(module, request.param)).train()
    return traced_module(model, (torch.randn(48, 32),), {}, path)


@pytest.mark.parametrize("seed", range(8))
def test_any_table_is_exact(traced, tmp_path, seed):
    found = found_in(traced)
    rows = random_rows(found, random.Random(seed), 0.6 + 0.1 * (seed % 4))
    result = trained(traced, text_of(traced, found, rows), tmp_path)
    assert rows
    assert result.identical, result.differences


@pytest.mark.parametrize(("traced", "some"), [("Reads", False), ("Writes", True), ("WritesAView", True)], indirect=["traced"])
def test_what_is_changed_past_autograd_is_in_no_part(traced, some):
    touched = past_autograd(traced.model.trace, traced.model.record)
    names = {traced.model.trace.operations[op].base for op in touched}
    assert bool(touched) is some
    assert not some or {"linear", "sigmoid"} <= names
    found = found_in(traced)
    for candidate in found.candidates.all:
        operations = {op for v in candidate.vertices for op in found._operations(v)}
        assert touched.isdisjoint(operations)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_has_marks(tmp_path, name):
    path = tmp_path / "net.py"
    path.write_text(SOURCE + MADE.replace("{}", name))
    request = Request(f"{path}:made", "85%", tmp_path / "out.py", edition=2, verify=True)
    found = marked.generate(request, Progress(None)).verify
    assert found.ok, found.failures()
