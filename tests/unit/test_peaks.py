"""The measured peak of a file that rebuilds everything is the simulated one: what autograd no longer needs is freed."""

from __future__ import annotations

import pytest
import torch
from emitted import droppable, emit, load, model_of, rebuilding
from torch import nn

from remat_codegen.profile import measure as measuring
from remat_codegen.profile.cache import Cache
from remat_codegen.schedule import simulate
from remat_codegen.verify import compare

SMALL = 2048  # what the step allocates beside its tensors


class Wide(nn.Module):
    """Batch norms whose statistics are as large as what they normalise; autograd saves the buffers too."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.BatchNorm1d(2048), nn.ReLU()) for _ in range(3)])
        self.last = nn.Linear(2048, 3)

    def forward(self, x):
        return self.last(self.layers(x))


def test_rebuilt_batch_norms_hold_no_copies_of_their_statistics(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "MEASURED_SECONDS", 0.0)  # times do not matter here
    model, args = Wide(), (torch.randn(2, 2048),)
    traced = model_of(model, args, {})
    schedule = rebuilding(traced.graph, set(droppable(traced.graph)))
    profile = measuring.measure(traced, "cpu", Cache("cpu", enabled=False))
    simulated = simulate(traced.graph, profile, schedule).peak_bytes
    text = emit(model, args, {}, traced, schedule, None)
    found = compare(model, load(text, tmp_path).rematerialize, args, {})
    assert found.identical
    assert found.measured_peak_bytes <= simulated + SMALL


class Choosy(nn.Module):
    """Something that takes numbers of some kinds only, between two layers."""

    def __init__(self, choosy):
        super().__init__()
        self.first, self.last, self.choosy = nn.Linear(8, 8), nn.Linear(8, 8), choosy

    def forward(self, x):
        return self.choosy(self.last(self.first(x).sin())).exp()


@pytest.mark.parametrize(
    "choosy",
    [
        lambda x: nn.functional.binary_cross_entropy(x.sigmoid(), torch.ones(8, 8)),
        lambda x: x * torch.bernoulli(x.detach().sigmoid()),
        lambda x: x.gather(1, torch.multinomial(x.detach().softmax(1), 2)),
        lambda x: torch.linalg.cholesky(x @ x.t() + torch.eye(8)),
    ],
    ids="binary_cross_entropy bernoulli multinomial cholesky".split(),
)
def test_operations_that_refuse_random_numbers_are_measured_with_others(choosy, tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "MEASURED_SECONDS", 0.0)
    model, args = Choosy(choosy), (torch.randn(8, 8),)
    traced = model_of(model, args, {})
    assert min(measuring.measure(traced, "cpu", Cache("cpu", enabled=False)).time_ns) > 0
    schedule = rebuilding(traced.graph, set(droppable(traced.graph)))
    assert compare(model, load(emit(model, args, {}, traced, schedule, None), tmp_path).rematerialize, args, {}).identical
