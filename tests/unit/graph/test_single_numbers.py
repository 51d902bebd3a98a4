"""Single numbers, which a step on the CPU holds beside its data nodes: they are counted, so that no peak is above its plan."""

from __future__ import annotations

import pytest
import torch
from emitted import model_of
from torch import nn

from remat_codegen.ask.request import Request
from remat_codegen.profile.memory import peak_bytes
from remat_codegen.run.priced import priced_model
from remat_codegen.show.results import Progress
from remat_codegen.trace.training import example_loss

LOSS_AND_SEED = 8


class Scaled(nn.Module):
    """`scale` says what is done to a hidden value."""

    def __init__(self, scale):
        super().__init__()
        self.first, self.last, self.scale = nn.Linear(8, 8), nn.Linear(8, 8), scale

    def forward(self, x):
        return self.last(self.scale(self.first(x).tanh()))


@pytest.mark.parametrize(
    ("scale", "numbers"),
    [
        (lambda x: x, 0),
        (lambda x: x * 0.5, 8),
        (lambda x: 0.5 * x / 3, 16),
        (lambda x: x + 0.5 - 3, 0),  # no gradient needs them
        (lambda x: x * x.sum(), 0),  # a value, which the graph has
        (lambda x: x**3, 0),
    ],
)
def test_numbers_that_products_and_quotients_save_are_counted(scale, numbers):
    model = model_of(Scaled(scale), (torch.randn(4, 8),), {})
    assert model.record.single_number_bytes == numbers + LOSS_AND_SEED


def test_a_product_that_is_changed_in_place_later_is_no_obstacle():
    def scale(x):
        y = x.sin()
        z = y * y.detach()
        return z.mul_(2.0)

    assert model_of(Scaled(scale), (torch.randn(4, 8),), {}).record.single_number_bytes == 8 + LOSS_AND_SEED


def test_the_planned_peak_is_not_below_what_is_measured(tmp_path):
    """Many products by numbers, whose 8 bytes each count beside so little."""
    source = tmp_path / "scaled.py"
    source.write_text(SCALED)
    request = Request(f"{source}:Scaled", "100%", None, inputs="float32[4,8]", cache=False)
    found = priced_model(request, Progress(None))
    model = found.traced.target.module
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    given = torch.randn(4, 8)
    measured = peak_bytes(lambda: example_loss(model(given)).backward())
    assert measured <= found.plain_bytes <= measured + LOSS_AND_SEED


SCALED = """
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh() * 0.5 / 3
        return x
"""
