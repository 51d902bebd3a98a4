"""A part that runs again stops where the last thing is there that is missed: by then, Python holds what the rest would read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from second_edition import found_in, imported_file, planned_peak, text_of, traced_module, trained

from remat_codegen.marked.candidates import Row

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)

    def gaussian(self, x, mean, logs):
        return ((2 * logs).sin() + (x - mean).detach() ** 2 / torch.exp(2 * x)).sum(1)

    def forward(self, x):
        x = self.last(self.first(x))
        found = self.gaussian(x, torch.zeros_like(x), torch.zeros_like(x))
        return found, x.detach().repeat(1, 8)  # which the caller has while the part runs again
"""
SLACK_BYTES = 64
FOUND = {"the call": "Net.forward", "what it returns": "Net.gaussian"}


@pytest.mark.parametrize("function", FOUND.values(), ids=FOUND)
def test_what_waits_on_the_stack_counts(function: str, tmp_path: Path) -> None:
    """Of `sin(...)` and the square nothing is missed, nor of the quotient: both wait for it while exp is computed."""
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    torch.manual_seed(0)
    traced = traced_module(imported_file(path).Net().train(), (torch.randn(96, 64),), {}, path)
    found = found_in(traced)
    texts = [v for v in found.tree.vertices if found.is_marked(v) and v.text is not None and v.text.function.name == function]
    largest = max((c for v in texts if (c := found.candidate((v,))) is not None), key=len)
    rows = (Row(largest),)
    result = trained(traced, text_of(traced, found, rows), tmp_path)
    assert result.identical, result.differences
    assert abs(result.measured_peak_bytes - planned_peak(traced, found, rows)) <= SLACK_BYTES
