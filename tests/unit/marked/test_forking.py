"""Of parts that make one value together, one may give something to several others: when they run again, it stays for all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from second_edition import found_in, imported_file, planned_peak, text_of, traced_module, trained

from remat_codegen.marked.candidates import Row
from remat_codegen.marked.choose import parts_of
from remat_codegen.marked.demand import Again

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.last = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        x = x - x.mean(1, keepdim=True)
        deviation = torch.sqrt(x.var(1, keepdim=True) + 1e-5)
        x /= deviation
        return self.last(torch.sin(torch.cos(self.embed(x)))) * deviation
"""
SLACK_BYTES = 512


def test_parts_that_give_to_several_run_again_once(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    torch.manual_seed(0)
    traced = traced_module(imported_file(path).Net().train(), (torch.randn(64, 32),), {}, path)
    found = found_in(traced)
    forking = [c for c in found.candidates.all if c.forks]
    assert forking
    for candidate in forking:
        assert len(candidate.vertices) > 2
        with pytest.raises(ValueError, match="gives to several"):
            parts_of([Row(candidate, again=Again.TWICE)])
        after = [c for c in found.candidates.all if c.first > candidate.last and not c.forks]
        rows = (Row(candidate), Row(after[0]))
        result = trained(traced, text_of(traced, found, rows), tmp_path)
        assert result.identical, result.differences
        assert result.measured_peak_bytes <= planned_peak(traced, found, rows) + SLACK_BYTES
