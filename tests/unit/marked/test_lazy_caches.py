"""Models that make constants when they first run, and keep them in dicts and lists of modules: masks, tables of angles."""

from __future__ import annotations

import copy

import pytest
import torch
from second_edition import imported_file

from remat_codegen.ask.request import Request
from remat_codegen.marked import proof
from remat_codegen.run import marked
from remat_codegen.run.pipeline import verify
from remat_codegen.run.traced import trace_target
from remat_codegen.show.results import Progress
from remat_codegen.verify.beside import load_generated

SOURCE = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self._masks, self._angles = {}, []

    def mask(self, size):
        if size not in self._masks:
            self._masks[size] = torch.ones(size, size).tril()
        return self._masks[size]

    def angles(self, size):
        if not self._angles:
            self._angles.append(torch.arange(32) / 32)
        return self._angles[0]

    def forward(self, x):
        h = torch.tanh(self.up(torch.sin(x + self.angles(x.shape[1]))))
        return x + self.mask(x.shape[1]) @ self.down(torch.cos(torch.exp(-h.square())))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def example_inputs():
    return (torch.rand(16, 24, 32),)
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    folder = tmp_path_factory.mktemp("caches")
    (folder / "model.py").write_text(SOURCE)
    request = Request(f"{folder / 'model.py'}:Net", "50%", folder / "out.py", edition=2)
    marked.generate(request, Progress(None))
    return request.output_path


def test_such_models_have_marks_and_take_other_sizes(output):
    assert "blocks." in output.read_text().partition("PLAN = {")[2].partition("}")[0]
    assert verify(output, f"{output.parent / 'model.py'}:Net", steps=2, progress=Progress(None)).ok
    theirs = imported_file(output.parent / "model.py").Net().train()
    ours = load_generated(output).rematerialize(copy.deepcopy(theirs))
    for batch, length in ((16, 24), (5, 24), (3, 11)):
        x = torch.rand(batch, length, 32)
        losses = [net(x) for net in (theirs, ours)]
        assert torch.equal(*losses)
        for loss in losses:
            loss.backward()
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(theirs.parameters(), ours.parameters(), strict=True))


def test_a_proof_leaves_nothing_in_the_model(output):
    traced = trace_target(Request(f"{output.parent / 'model.py'}:Net", "50%", output), Progress(None))
    module, text = traced.target.module, output.read_text()
    assert proof.difference(text, module, traced.target.args, {}, traced.model.trace) is None
    assert all((block._masks, block._angles) == ({}, []) for block in module.blocks)
