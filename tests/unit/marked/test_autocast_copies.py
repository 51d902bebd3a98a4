"""Autocast keeps its copies of parameters until it is left, though parts forget what autograd has saved."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from second_edition import found_in, imported_file, planned_peak, random_rows, text_of, traced_module, trained

from remat_codegen.marked.candidates import Row
from remat_codegen.marked.demand import Keeps

MODEL = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=64, depth=4):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.float()


class Inside(Net):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            for block in self.blocks:
                x = block(x)
        return x.float().repeat(1, 16).sin()


class InEachBlock(Net):
    def forward(self, x):
        for block in self.blocks:
            with torch.autocast("cpu", torch.bfloat16):
                x = block(x)
        return x.float()


class WithoutBetween(Net):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            for block in self.blocks:
                x = block(x)
                with torch.autocast("cpu", enabled=False):
                    x = torch.tanh(x.float())
        return x
"""
WORKSPACE = 0.06  # of the plan were 2.4 to 4.9 % not met on a processor with AVX2 alone: room of products in bfloat16, it seems
CAST = (("cpu", torch.bfloat16),)
NAMES = ["Net", "Inside", "InEachBlock", "WithoutBetween"]
SLACK_BYTES, DRAWN_SLACK_BYTES = 256, 1024


@pytest.mark.parametrize("what", ["", "inside"])
@pytest.mark.parametrize("name, autocast", [("Net", CAST), ("Inside", ()), ("InEachBlock", ()), ("WithoutBetween", ())])
def test_copies_count_until_autocast_is_left(name: str, autocast: tuple, what: str, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    torch.manual_seed(0)
    traced = traced_module(getattr(imported_file(path), name)().train(), (torch.randn(24, 64),), {}, path, autocast=autocast)
    found = found_in(traced)
    calls = {v.called[0]: c for c in found.candidates.all for v in c.vertices[:1] if v.called}
    rows = tuple(Row(calls[f"blocks.{n}.{layer}"], Keeps(what)) for n in range(3) for layer in ("up", "down"))
    result = trained(traced, text_of(traced, found, rows), tmp_path)
    assert result.identical, result.differences
    measured, planned = result.measured_peak_bytes, planned_peak(traced, found, rows)
    assert measured - SLACK_BYTES <= planned <= measured * (1 + WORKSPACE)


@pytest.mark.parametrize("seed", range(4))
def test_tables_drawn_at_random_keep_to_what_is_said(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    torch.manual_seed(0)
    model = getattr(imported_file(path), NAMES[seed])().train()
    traced = traced_module(model, (torch.randn(24, 64),), {}, path, autocast=CAST if seed == 0 else ())
    found = found_in(traced)
    rows = random_rows(found, random.Random(seed), 0.5)
    result = trained(traced, text_of(traced, found, rows), tmp_path)
    assert result.identical, result.differences
    assert result.measured_peak_bytes <= planned_peak(traced, found, rows) + DRAWN_SLACK_BYTES
