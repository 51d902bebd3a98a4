"""Losses compute all numbers before they reduce them, in memory that their result keeps; fake tensors do not say so."""

from __future__ import annotations

import pytest
import torch
from emitted import model_of
from torch import nn
from torch.nn import functional as F

LOSSES = {
    "mse": lambda y, t: F.mse_loss(y, t),
    "mse_broadcast": lambda y, t: F.mse_loss(y, t[:1], reduction="sum"),
    "mse_each": lambda y, t: F.mse_loss(y, t, reduction="none"),
    "smooth_l1": lambda y, t: F.smooth_l1_loss(y, t, reduction="sum"),
    "cross_entropy": lambda y, t: F.binary_cross_entropy(torch.sigmoid(y), torch.sigmoid(t)),
    "with_logits": lambda y, t: F.binary_cross_entropy_with_logits(y, torch.sigmoid(t)),
    "margin": lambda y, t: F.soft_margin_loss(y, t.sign()),
    "huber": lambda y, t: F.huber_loss(y, t),
    "l1": lambda y, t: F.l1_loss(y, t),
    "kl": lambda y, t: F.kl_div(y, t, reduction="batchmean"),
}


class Lossy(nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.linear, self.loss = nn.Linear(16, 32), loss

    def forward(self, x, t):
        return self.loss(self.linear(x), t)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", LOSSES)
def test_results_take_what_their_memory_takes(name):
    model, args = Lossy(LOSSES[name]), (torch.randn(8, 16), torch.randn(8, 32))
    traced = model_of(model, args, {})
    result = traced.record.variables[traced.trace.outputs[0].variable]
    assert traced.record.storages[result.storage].nbytes == model(*args).untyped_storage().nbytes()
