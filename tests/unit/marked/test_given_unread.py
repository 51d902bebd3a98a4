"""A module's call has all that it is given until it runs again, also what nobody reads: of a position embedding's input, the
shape is enough, and it may be taken out of a list."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from second_edition import found_in, imported_file, planned_peak, text_of, traced_module, trained

from remat_codegen.marked.candidates import Row

MODEL = """
from types import SimpleNamespace

import torch
from torch import nn


class Positions(nn.Module):
    def forward(self, x, scale=1.0):
        steps = torch.arange(x.shape[-1], dtype=torch.float32)
        return (steps[None] / (1 + torch.arange(64)[:, None])).sin() * scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv1d(16, 64, 3, padding=1), nn.Conv1d(64, 64, 3, padding=1)
        self.positions, self.last = Positions(), nn.Conv1d(64, 16, 1)
        self.shift = nn.Parameter(torch.ones(64 * 512))

    def begun(self, x):
        levels = {"low": self.first(x)}
        levels["high"] = self.second(levels["low"].sin())
        return levels["high"].flatten(1) + self.shift, CALL

    def placed_last(self, pair):
        return self.placed(pair[1])

    def placed(self, x):
        return (torch.arange(x.shape[-1], dtype=torch.float32)[None] / (1 + torch.arange(64)[:, None])).sin() * 2.0

    def forward(self, x):
        high, where = self.begun(x)
        x = (high.unflatten(1, (64, -1)).cos() * where).sin()
        for _ in range(3):
            x = x.exp().tanh()
        return self.last(x)


class Alone(Net):
    def begun(self, x):
        low = self.first(x)
        high = self.second(low.sin())
        return high.flatten(1) + self.shift, self.positions(high)
"""
CALLS = {
    "out of a dict": ("Net", 'self.positions(levels["high"])'),
    "by name": ("Net", 'self.positions(scale=2.0, x=levels["high"])'),
    "out of an expression": ("Net", "self.positions([*levels.values()][-1][:, :, :])"),
    "alone": ("Alone", "None"),
    "to a method": ("Net", 'self.placed(levels["high"])'),
    "in a product": ("Net", '1.0 * self.placed(levels["high"])'),
    "in a tuple": ("Net", 'self.placed_last((levels["low"], levels["high"]))'),
    "with a star": ("Net", 'self.placed(*[levels["high"]])'),
    "of an object": ("Net", "self.placed(SimpleNamespace(**levels).high)"),
    "twice": ("Net", 'self.placed(levels["high"]) * self.positions(levels["high"])'),
}
SLACK_BYTES = 512
FURTHER = {"by name", "out of an expression", "with a star"}


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] if c in FURTHER else []) for c in CALLS])
def test_what_is_given_and_not_read_is_held(case: str, tmp_path: Path) -> None:
    name, call = CALLS[case]
    path = tmp_path / "net.py"
    path.write_text(MODEL.replace("CALL", call))
    torch.manual_seed(0)
    traced = traced_module(getattr(imported_file(path), name)().train(), (torch.randn(8, 16, 512),), {}, path)
    found = found_in(traced)
    graph = traced.graph
    where = [c for c in found.candidates.all if graph.nodes[c.first].name == "arange" and graph.nodes[c.last].name == "mul"]
    assert where
    others = [
        c for c in found.candidates.all if graph.nodes[c.first].name.startswith(("sin", "cos", "mul")) and c.first == c.last
    ]
    for candidate in where:
        rows = (Row(candidate), *(Row(c) for c in others if c.first > candidate.last))
        result = trained(traced, text_of(traced, found, rows), tmp_path)
        assert result.identical, result.differences
        planned = planned_peak(traced, found, rows)
        assert planned * 0.98 <= result.measured_peak_bytes <= planned + SLACK_BYTES
