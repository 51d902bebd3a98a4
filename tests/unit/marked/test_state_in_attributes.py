"""Forward rebinds an attribute in a loop: parts find there what it was when they first ran, by its place if a part made it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from second_edition import found_in, imported_file, planned_peak, random_rows, text_of, traced_module, trained

from remat_codegen.graph.unread import lost_of
from remat_codegen.marked.candidates import Row

MODEL = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.key, self.first = nn.Linear(9, width), nn.Parameter(torch.ones(width))
        {initial}

    def read(self, key):
        return F.softmax((self.memory * key).sum(-1), dim=1)

    def forward(self, x):
        self.memory = self.first.repeat(x.shape[1], 24, 1)
        loss = 0
        for t in range(x.shape[0]):
            key = self.key(x[t])[:, None]
            weight = self.read(key)
            self.memory = self.memory * (1 - weight[..., None] * key)
            loss = loss + self.memory.mean()
        {end}
        return loss
"""
WAYS = {
    "new, and left": ("pass", "pass"),
    "new, and given up": ("pass", "self.memory = None"),
    "there before, and given up": ("self.memory = None", "self.memory = None"),
    "deleted": ("pass", "del self.memory"),
    "a number before and after": ("self.memory = 1.0", "self.memory = 1.0"),
}
SLACK_BYTES = 64


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("initial", "end"), WAYS.values(), ids=WAYS)
def test_tables_take_what_is_planned(initial: str, end: str, seed: int, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(MODEL.format(initial=initial, end=end))
    torch.manual_seed(0)
    traced = traced_module(imported_file(path).Net().train(), (torch.randn(5, 6, 9),), {}, path)
    found = found_in(traced)
    assert traced.model.trace.operations[-1].attributes
    rows = random_rows(found, random.Random(seed), (0.2, 0.4, 0.7, 1.0)[seed])
    text = text_of(traced, found, rows)
    assert "SET_BY_FORWARD[:] = ['Net.memory']" in text

    result = trained(traced, text, tmp_path)
    assert result.identical, result.differences
    assert result.measured_peak_bytes <= planned_peak(traced, found, rows) + SLACK_BYTES


WRITTEN = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.address, self.wide = nn.Linear(9, width), nn.Linear(9, 512)

    def forward(self, x):
        self.state = torch.zeros(x.shape[1], 64)
        loss = self.wide(x).mean()  # on the way back, its gradient comes last
        for t in range(x.shape[0]):
            loss = loss + self.state.cos().mean()
            weight = torch.softmax(self.address(x[t]).sin().exp(), -1)
            moved = torch.zeros(weight.size())
            for row in range(x.shape[1]):
                moved[row] = weight[row] * 2
            self.state = moved.tanh() * x[t, :, :1]
        return loss
"""


def test_what_was_written_into_a_state_that_nobody_reads_is_there(tmp_path: Path) -> None:
    """The last state is left with its autograd nodes, and with those of what was written into it row by row (as in an NTM)."""
    path = tmp_path / "net.py"
    path.write_text(WRITTEN)
    torch.manual_seed(0)
    traced = traced_module(imported_file(path).Net().train(), (torch.randn(3, 16, 9),), {}, path)
    found, trace = found_in(traced), traced.model.trace
    last = max(op.id for op in trace.operations if op.base == "softmax")
    assert {lost.operation: lost.left for lost in lost_of(trace, traced.model.record)}[last] is not None

    measured = trained(traced, text_of(traced, found, ()), tmp_path).measured_peak_bytes
    assert measured <= planned_peak(traced, found, ()) + SLACK_BYTES


TAKEN = """
import torch
from torch import nn


class Inner(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return self.second(self.first(x).sin()).exp()


class Outer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.gate = Inner(width), None

    def forward(self, x):
        gate, self.gate = self.gate, None
        return torch.sigmoid(self.inner(x * gate)) * gate


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.blocks, self.gate = nn.ModuleList(Outer(width) for _ in range(3)), nn.Linear(width, width)

    def forward(self, x):
        for block in self.blocks:
            block.gate = self.gate(x).sin()
            x = block(x)
        return x
"""


@pytest.mark.parametrize("seed", range(8))
def test_a_part_may_take_what_it_finds_there(seed: int, tmp_path: Path) -> None:
    """Parts within it do not find it any more."""
    path = tmp_path / "net.py"
    path.write_text(TAKEN)
    torch.manual_seed(0)
    traced = traced_module(imported_file(path).Net().train(), (torch.randn(4, 24, 32),), {}, path)
    found = found_in(traced)
    rows = random_rows(found, random.Random(seed), (0.7, 1.0)[seed % 2])
    result = trained(traced, text_of(traced, found, rows), tmp_path)
    assert result.identical, result.differences
    assert result.measured_peak_bytes <= planned_peak(traced, found, rows) + SLACK_BYTES


CELLS = """
import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.decay, self.state = nn.Parameter(torch.tensor(0.5)), None

    def forward(self, x):
        self.state = x.tanh() if self.state is None else self.decay * self.state + x.tanh()
        return {given}


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.first, self.cell, self.last = nn.Linear(9, width), Cell(), nn.Linear(width, 4)

    def forward(self, x):
        self.cell.state, found = None, []
        for t in range(x.shape[0]):
            y = self.cell(self.first(x[t])){read}
            found.append(self.last(y.sin()))
        self.cell.state = None
        return torch.stack(found)

    def read(self, y, state):
        return y * state.cos()
"""


@pytest.mark.parametrize("given", ["self.state.cos().exp()", "self.state"])
@pytest.mark.parametrize("read", ["", "\n            y = self.read(y, self.cell.state)"], ids=["later", "by a variable"])
def test_what_an_attribute_has_is_nothing_that_a_part_makes_again(given: str, read: str, tmp_path: Path) -> None:
    """A part lends what it gives. What it leaves in an attribute autograd holds, where others save that."""
    path = tmp_path / "net.py"
    path.write_text(CELLS.format(given=given, read=read))
    traced = traced_module(imported_file(path).Net().train(), (torch.randn(4, 256, 9),), {}, path)
    found = found_in(traced)
    for candidate in found.candidates.all:
        result = trained(traced, text_of(traced, found, (Row(candidate),)), tmp_path)
        assert result.identical, result.differences
        assert result.measured_peak_bytes <= planned_peak(traced, found, (Row(candidate),)) + SLACK_BYTES
    assert not any(c.key[:1] == (("module", "cell", 1),) for c in found.candidates.all)
