"""Operations that ask other tensors for a shape or a type only."""

from __future__ import annotations

import sys

import pytest
import torch
from emitted import droppable, emit, load, model_of, rebuilding
from torch import nn

from remat_codegen.trace import trace
from remat_codegen.verify.beside import compare


class Views(nn.Module):
    """Each of them looks at what it is called on, long after the other tensor is forgotten."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        x = self.a(x).exp()
        row = self.b(x.mean(1, keepdim=True)).sigmoid()
        y = (x * row).tanh().type_as(x)
        wide = row.mean(-1, keepdim=True).sin()
        y = y * wide.expand_as(y)
        flat = y.flatten(1).cos()
        y = flat.view_as(y) + flat.reshape_as(x) + row.double().cos().to(x)
        one, other = torch.broadcast_tensors(wide.exp(), y.sin())
        across, down = torch.meshgrid(y[0, 0].cos(), x[1, :, 0].sin(), indexing="xy")
        i, j = torch.meshgrid(y[0, 0].exp(), x[1, :, 0].tanh(), indexing="ij")
        return one * other, across * down, i + j.exp()


INPUT = torch.linspace(-1, 1, 48).reshape(2, 4, 6)


def test_a_view_needs_only_what_it_looks_at(tmp_path):
    model = Views()
    traced = model_of(model, (INPUT,), {})
    assert not {"aten.type_as.default", "aten.meshgrid.indexing"} & {op.name for op in traced.trace.operations}
    text = emit(model, (INPUT,), {}, traced, rebuilding(traced.graph, set(droppable(traced.graph))), None)
    assert compare(model, load(text, tmp_path).rematerialize, (INPUT,), {}).identical


def test_sizes_that_may_change_are_asked_of_the_other_tensor():
    found = trace(Views(), (INPUT,), {}, dynamic=((INPUT, 0), (INPUT, 1)))
    names = {op.name for op in found.operations}
    assert "aten.expand.default" in names and "aten.broadcast_tensors.default" not in names


class Indexed(nn.Module):
    """PyTorch leaves out the `:` of an index, where it knows the size, but for one that stands alone."""

    def forward(self, x):
        last = x[:, -1] * x[:, None, 0, :]
        x = x[:, :, 1:].clone()
        x[:, 0] = 1
        return last, x * x[:].sin()


@pytest.mark.parametrize("places", [(), (0,), (0, 1), (0, 1, 2)])
def test_no_slice_of_all_that_there_is(places):
    found = trace(Indexed(), (INPUT,), {}, dynamic=tuple((INPUT, place) for place in places))
    sliced = [op.args[1:] for op in found.operations if op.name == "aten.slice.Tensor"]
    assert sliced == [(2, 1, sys.maxsize), (0, 0, sys.maxsize)]


@pytest.mark.parametrize("indexing", ["ij", "xy"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_meshgrid_of_any_number(indexing, count, tmp_path):
    class Grid(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.arange(5.0))

        def forward(self, x):
            parts = [(self.weight[: k + 2] * x).sin() for k in range(count)]
            return sum(part.exp() for part in torch.meshgrid(*parts, indexing=indexing))

    model, args = Grid(), (torch.tensor(0.5),)
    traced = model_of(model, args, {})
    text = emit(model, args, {}, traced, rebuilding(traced.graph, set(droppable(traced.graph))), None)
    assert compare(model, load(text, tmp_path).rematerialize, args, {}).identical


class Latents(nn.Module):
    """A view of a parameter that blocks of other modules read."""

    def __init__(self):
        super().__init__()
        self.start = nn.ParameterDict({"latents": nn.Parameter(torch.linspace(0, 1, 12).reshape(3, 4))})
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)) for _ in range(4)])

    def forward(self, x):
        x, latents = x + 1, self.start["latents"].expand(5, -1, -1)
        for layer in self.layers:
            x = (layer(x).exp() + latents).tanh()
        return x


def test_a_view_of_a_parameter_reaches_blocks_that_stand_elsewhere(tmp_path):
    model, args = Latents(), (torch.linspace(-1, 1, 60).reshape(5, 3, 4),)
    traced = model_of(model, args, {})
    assert len(traced.graph.blocks) > 2
    text = emit(model, args, {}, traced, rebuilding(traced.graph, set(droppable(traced.graph))), None)
    assert compare(model, load(text, tmp_path).rematerialize, args, {}).identical
