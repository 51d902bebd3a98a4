"""A model that remembers tensors outside of its modules has them as before once it is planned."""

from __future__ import annotations

import sys

import pytest
import torch
from second_edition import imported_file
from torch import nn

import remat_codegen
from remat_codegen.trace import trace

HELPER = """
import functools

import torch


@functools.lru_cache
def ranks(n):
    return torch.arange(n).float()
"""

SOURCE = """
import functools

import cached_helper
import torch
from torch import nn

class Settings(dict):
    __getattr__ = dict.__getitem__  # raises KeyError where it has no such thing


MASK, SETTINGS = None, Settings(width=8)
SEEN = [torch.ones(1)]


@functools.lru_cache(maxsize=None)
def positions(n):
    return torch.sin(torch.arange(n).float())


class Block(nn.Module):
    cache = {"kept": torch.zeros(2)}
    last = None

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def scale(self, n):
        if n not in Block.cache:
            Block.cache[n] = torch.full((n,), 0.5)
        return Block.cache[n]

    def forward(self, x):
        global MASK
        if MASK is None:
            MASK = torch.ones(8) * 2
        Block.last = x.detach()
        SEEN.append(x.mean().detach())
        y = torch.tanh(self.lin(x) * self.scale(8) + positions(8) * MASK)
        return torch.sigmoid(y) * y + cached_helper.ranks(8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "cached_helper", raising=False)
    (tmp_path / "cached_helper.py").write_text(HELPER)
    path = tmp_path / "caching.py"
    path.write_text(SOURCE)
    return imported_file(path)


def test_nothing_without_data_stays(home):
    model, given = home.Net().train(), torch.randn(6, 8)
    kept, first = home.Block.cache["kept"], home.SEEN[0]
    remat_codegen.plan(model, (given,), budget="100%")
    assert home.Block.cache["kept"] is kept and home.SEEN[0] is first
    left = [*home.Block.cache.values(), *home.SEEN, home.MASK, home.Block.last]
    assert all(thing is None or (type(thing) is torch.Tensor and not thing.is_meta) for thing in left)
    result = model(given)
    assert type(result) is torch.Tensor and not result.is_meta
    result.sum().backward()
    assert all(type(p.grad) is torch.Tensor for p in model.parameters())


def test_what_was_remembered_before_stays(home):
    model, given = home.Net().train(), torch.randn(6, 8)
    expected = model(given)
    mask, scale, seen = home.MASK, home.Block.cache[8], list(home.SEEN)
    remat_codegen.plan(model, (given,), budget="100%")
    assert home.MASK is mask and home.Block.cache[8] is scale and home.SEEN[0] is seen[0]
    assert torch.equal(model(given), expected)


class Table:
    """A plain object that remembers a table, and how long it is."""

    def __init__(self):
        self.size, self.waves = 0, None

    def __call__(self, n):
        if n > self.size:
            self.size, self.waves = n, torch.arange(n).float().sin()
        return self.waves[:n]


class Waving(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.lin = Table(), nn.Linear(8, 8)

    def forward(self, x):
        return self.lin(x * self.table(8)) * self.table(8)


def test_a_table_that_the_first_call_makes_is_gone_after_a_trace():
    model, x = Waving(), torch.randn(4, 8)
    first = trace(model, (x,), {})
    assert (model.table.size, model.table.waves) == (0, None)
    assert len(trace(model, (x,), {}).operations) == len(first.operations)
    model(x)
    made = model.table.waves
    assert len(trace(model, (x,), {}).operations) < len(first.operations) and model.table.waves is made
