"""What files compare with where modules have hooks: some numbers of each value, which count."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from graphs import Op, training_graph
from second_edition import found_in, imported_file, planned_peak, random_rows, text_of, traced_module, trained

from remat_codegen.marked.demand import Held, Keeps, Part, run_of

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, layers=8, width=16):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        for layer in self.layers:
            layer.register_forward_hook(lambda module, given, result: None)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x)).exp()
        return x.sum(-1)
"""
SLACK_BYTES = 1024  # numbers are compared as complex ones of double precision


@pytest.mark.parametrize("seed", range(6))
def test_what_is_compared_counts(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    torch.manual_seed(0)
    traced = traced_module(imported_file(path).Net().train(), (torch.randn(480, 16),), {}, path)
    found = found_in(traced)
    rows = random_rows(found, random.Random(seed), (0.3, 0.6, 1.0)[seed % 3])
    result = trained(traced, text_of(traced, found, rows), tmp_path)
    assert result.identical, result.differences
    assert result.measured_peak_bytes <= planned_peak(traced, found, rows) + SLACK_BYTES


def test_each_place_has_a_sample_until_its_value_is_read() -> None:
    """What f1 gives leaves its part; what f2 gives, f3 has saved in theirs."""
    graph, _ = training_graph([Op((i - 1,) if i else (), 4, 0, (i - 1,) if i else ()) for i in range(5)])
    ran = run_of(graph, [Part(1, 1), Part(2, 3, Keeps.RESULT)], Held(samples={1: 1, 2: 10}))
    found = [(graph.nodes[node].name, ran.beside_bytes.get(position, 0)) for position, node in enumerate(ran.order)]
    assert found[:3] == [("f0", 0), ("f1", 1), ("f2", 11)]
    assert found[7:] == [("f1", 11), ("f2", 11), ("b3", 11), ("b2", 1), ("b1", 0), ("b0", 0)]
