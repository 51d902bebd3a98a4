"""What forward leaves in plain objects: a table that the first step makes may be anywhere, while a state, by which the next
step goes, is for files with marks alone."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from second_edition import imported_file

import remat_codegen
from remat_codegen.errors import UnsupportedError

SOURCE = """
import torch
from torch import nn


class Held:
    def __init__(self):
        self.size, self.tensor, self.steps = 0, None, 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.ModuleList([nn.Linear(8, 64) for _ in range(4)])
        self.narrow = nn.ModuleList([nn.Linear(64, 8) for _ in range(4)])
        self.held = Held()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        x = self.first(x)
        self.seen.add_(1)
        for wide, narrow in zip(self.wide, self.narrow):
            x = x + narrow(torch.tanh(wide(x)))
        self.last(x)
        return x


class Table(Net):
    def first(self, x):
        if self.held.size < len(x):
            self.held.size, self.held.tensor = len(x), torch.arange(len(x)).float().sin()[:, None]
        return x * self.held.tensor[: len(x)]

    def last(self, x):
        pass


class State(Net):
    def first(self, x):
        return x if self.held.tensor is None else x + self.held.tensor

    def last(self, x):
        self.held.tensor = x.detach().mean(0, keepdim=True)


class Counter(Net):
    def first(self, x):
        self.held.steps += 1
        return x * self.held.steps

    def last(self, x):
        pass


class Logger(Net):
    def first(self, x):
        self.held.steps += 1
        return x

    def last(self, x):
        self.held.tensor = x.detach()
"""


@pytest.fixture(scope="module")
def nets(tmp_path_factory):
    path = tmp_path_factory.mktemp("nets") / "held_nets.py"
    path.write_text(SOURCE)
    yield imported_file(path)
    sys.modules.pop("held_nets", None)


def steps(model, times=3):
    """What some steps return, and their gradients."""
    generator, found = torch.Generator().manual_seed(0), []
    for _ in range(times):
        model.zero_grad()
        out = model(torch.randn(64, 8, generator=generator))
        out.square().sum().backward()
        found += [out.detach(), *(p.grad.clone() for p in model.parameters())]
    return found


def trained(nets, name, edition):
    """The steps of a model, and of a file of it."""
    torch.manual_seed(0)
    model = getattr(nets, name)()
    expected = steps(copy.deepcopy(model))
    found = remat_codegen.plan(model, torch.randn(64, 8), budget="75%", edition=edition, cache=False, progress=False)
    assert found.overhead > 0 and ("PLAN = " in found.source) == (edition == 2)
    return expected, steps(found.module())


@pytest.mark.parametrize("name", ["Table", "State", "Counter", "Logger"])
def test_files_with_marks_do_what_the_model_does(nets, name):
    expected, got = trained(nets, name, 2)
    assert all(a.equal(b) for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize("name", ["Table", "Logger"])
def test_functions_do_where_the_next_step_is_the_same(nets, name):
    expected, got = trained(nets, name, 1)
    assert all(a.equal(b) for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize("name, changed", [("State", "Held.tensor"), ("Counter", "Held.steps")])
def test_functions_are_refused_where_it_is_not(nets, name, changed):
    with pytest.raises(UnsupportedError, match=f"forward changes {changed}, by which the next step may go"):
        trained(nets, name, 1)
