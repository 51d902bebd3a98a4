"""Somebody changes an output in place before the backward pass: gradients are right, or there is an error, as in PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
from emitted import emit, load, model_of
from torch import nn

from remat_codegen.planners.base.registry import PLANNERS
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.measure import Measured
from remat_codegen.schedule import simulate, without_recomputation

COSTS = Cache("cpu", enabled=False)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x):
        return x + self.narrow(torch.tanh(self.wide(self.norm(x))))


class Features(nn.Module):
    """Gives back what comes from the middle, too, as it is or through a tanh, which saves its result."""

    def __init__(self, bounded):
        super().__init__()
        self.layers, self.bounded = nn.ModuleList([Layer() for _ in range(6)]), bounded

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number == 2:
                x = middle = torch.tanh(x) if self.bounded else x
        return x, middle


def gradients(module, x, changed):
    """Of all parameters, or what was said against the change."""
    out, middle = module(x)
    if changed:
        with torch.no_grad():
            middle.add_(1.0)
    try:
        return torch.autograd.grad(out.sum(), [*module.parameters()])
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("planner", ["rockmate", "chen", "rotor", "all"])
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("percent", [30, 40, 60, 80])
def test_an_output_from_the_middle(planner, bounded, percent, tmp_path):
    torch.manual_seed(0)
    module, x = Features(bounded).train(), torch.randn(64, 32)
    model = model_of(module, (x,), {})
    profile = Measured("cpu", COSTS).of(model)
    plain = simulate(model.graph, profile, without_recomputation(model.graph)).peak_bytes
    schedule = PLANNERS[planner](model.graph, profile, plain * percent // 100).schedule
    if schedule is None:
        return
    made = load(emit(module, (x,), {}, model, schedule, None), tmp_path).rematerialize(copy.deepcopy(module))
    expected = gradients(module, x, changed=False)
    assert all(a.equal(b) for a, b in zip(gradients(made, x, changed=False), expected, strict=True))
    assert "modified by an inplace operation" in gradients(module, x, changed=True)
    assert "changed in place" in gradients(made, x, changed=True)
