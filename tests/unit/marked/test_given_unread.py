"""A module's call has all that it is given until it runs again, also what nobody reads: of a position embedding's input, the
shape is enough, and it may be taken out of a list."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from second_edition import found_in, imported_file, planned_peak, text_of, traced_module, trained

from remat_codegen.marked.candidates import Row

MODEL = """
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

    def forward(self, x):
        levels = {"low": self.first(x)}
        levels["high"] = self.second(levels["low"].sin())
        where = CALL
        return self.last((levels["high"].cos() * where).sin())


class Alone(Net):
    def forward(self, x):
        low = self.first(x)
        high = self.second(low.sin())
        where = self.positions(high)
        return self.last((high.cos() * where).sin())
"""
CALLS = {
    "out of a dict": ("Net", 'self.positions(levels["high"])'),
    "by name": ("Net", 'self.positions(scale=2.0, x=levels["high"])'),
    "out of an expression": ("Net", "self.positions([*levels.values()][-1][:, :, :])"),
    "alone": ("Alone", "None"),
}
SLACK_BYTES = 512


@pytest.mark.parametrize("case", CALLS)
def test_what_is_given_and_not_read_is_held(case: str, tmp_path: Path) -> None:
    name, call = CALLS[case]
    path = tmp_path / "net.py"
    path.write_text(MODEL.replace("CALL", call))
    torch.manual_seed(0)
    traced = traced_module(getattr(imported_file(path), name)().train(), (torch.randn(8, 16, 512),), {}, path)
    found = found_in(traced)
    graph = traced.graph
    where = [c for c in found.candidates.all if any(v.called == ("positions", 0) for v in c.vertices)]
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
