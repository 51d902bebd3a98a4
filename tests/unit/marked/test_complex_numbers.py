"""Complex numbers: autograd saves conjugates, and parts are given them, as views of what they are the conjugates of."""

from __future__ import annotations

import random

import pytest
import torch
from second_edition import found_in, imported_file, known_times, planned_peak, random_rows, text_of, traced_module, trained

from remat_codegen.ask.request import Request
from remat_codegen.run import marked
from remat_codegen.run.pipeline import verify
from remat_codegen.show.results import Progress

QUIET = Progress(None)
MODEL = """
import torch
from torch import nn


class Correlation(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        q, k = torch.fft.rfft(self.q(x), dim=1), torch.fft.rfft(self.k(x), dim=1)
        lags = torch.fft.irfft(q * torch.conj(k), n=x.shape[1], dim=1)
        back = k.conj()
        near = (q.mH @ back).abs().softmax(-1)
        turned = torch.view_as_real((back * q).resolve_conj()).square().sum(-1)
        return self.o(lags.tanh() * (self.v(x) @ near)) * turned.mean(1, keepdim=True).sin()


class Net(nn.Module):
    def __init__(self, layers=3, width=32):
        super().__init__()
        self.layers = nn.ModuleList(Correlation(width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def example_inputs():
    return (torch.randn(4, 32, 32, generator=torch.Generator().manual_seed(0)),)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("complex") / "correlation.py"
    found.write_text(MODEL)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_any_parts_are_exact_and_take_what_the_simulator_says(path, seed, tmp_path):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    net = imported_file(path)
    traced = traced_module(net.Net().train(), net.example_inputs(), {}, path)
    found = found_in(traced)
    rows = [row for row in random_rows(found, rng, rng.choice([0.3, 0.6, 1.0])) if not row.late]
    compared = trained(traced, text_of(traced, found, rows), tmp_path)
    assert compared.identical, compared.differences
    assert compared.measured_peak_bytes <= planned_peak(traced, found, rows) + 4096


def test_conjugates_are_within_budget(path, tmp_path, monkeypatch):
    known_times(monkeypatch, linear=40_000)
    output = tmp_path / "correlation_remat.py"
    marked.generate(Request(f"{path}:Net", "60%", output, edition=2), QUIET)
    found = verify(output, f"{path}:Net", steps=2, progress=QUIET)
    assert found.ok, found.failures()
