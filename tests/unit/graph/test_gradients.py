"""Which gradients a step holds, and where autograd adds them: as the record tells, and as the allocator does."""

from __future__ import annotations

import pytest
import torch
from emitted import model_of
from torch import nn

from remat_codegen.profile import clock
from remat_codegen.profile import measure as measuring
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.memory import peak
from remat_codegen.schedule import simulate, without_recomputation
from remat_codegen.trace.training import Run

SIZE = 256 * 512 * 4  # of the values, in bytes
SMALL = 2048


class Made(nn.Module):
    """A linear layer, and what is made of its result."""

    def __init__(self, function):
        super().__init__()
        self.first, self.function = nn.Linear(8, 512), function

    def forward(self, x):
        return self.function(self.first(x))


class Both(torch.autograd.Function):
    """Its own backward adds to a gradient that it hands on as it is, too."""

    @staticmethod
    def forward(ctx, one, other):
        return one * 2 + other * 3

    @staticmethod
    def backward(ctx, grad):
        kept = grad * 2
        return kept, kept + grad


def waiting(y):
    """The gradient of a sum is that of both terms: where one is added to, the other still waits."""
    other, mine = y.tanh(), y * 2
    late = mine.sin()
    return ((other + mine) * late).exp()


def custom(y):
    return Both.apply(y.tanh(), y.sigmoid()).exp()


def twice(y):
    return y.sin() * y.cos()


def three_times(y):
    return (y.sin() * y.cos()).exp() * y.tanh()


def residual(y):
    return (y + y.sin()).exp()


def parts(y):
    return sum(y[:, i : i + 128].sin().exp() for i in range(0, 512, 128))


def expanded(y):
    return y.sum() + y.sin().sum()


def in_place(y):
    z = y.sin()
    z += y.cos()
    return z.exp()


def cast_to_its_own_type(y):
    z = y.to(torch.float32)
    return y.sin() * z.cos()


class Looking(nn.Module):
    """Uses a parameter more than once in what may be one node."""

    def __init__(self, function):
        super().__init__()
        self.first, self.p, self.function = nn.Linear(64, 64), nn.Parameter(torch.randn(2048, 64)), function

    def forward(self, x):
        return self.function(self.first(x), self.p)


def gain_and_bias(y, p):
    return nn.functional.layer_norm(y, (64,), p[0], p[1])


def rows(y, p):
    return torch.cat([p[0:2], p[5:7], p[9:11]]).sum(0) * y


def scaled(y, p):
    return (y * p[0] + p[1]).tanh()


def with_alpha(y, p):
    return torch.add(torch.add(y.repeat(8, 1), p, alpha=2), p, alpha=3) * 2


def begun_elsewhere(y, p):
    return (torch.add(torch.add(y.repeat(8, 1), p, alpha=2), p, alpha=3).tanh() * p).exp() * p[0]


def first_row(y, p):
    first = y[:1] + y.mean(0)
    first = first + nn.functional.layer_norm(first, (64,)).repeat(1, 32) @ p
    return torch.cat([first, y[1:]])


LOOKING = [gain_and_bias, rows, scaled, with_alpha, begun_elsewhere, first_row]
ALL = [twice, three_times, residual, waiting, custom, parts, expanded, in_place, cast_to_its_own_type]


def gradients(function):
    record = model_of(Made(function), (torch.randn(256, 8),), {}).record
    return [g for g in record.gradients if g.nbytes == SIZE]


def test_a_second_gradient_is_added_to_the_first():
    found = [g for g in gradients(twice) if g.added]
    assert len(found) == 1 and len(found[0].of) == 1


def test_parts_are_added_to_the_first():
    assert [len(g.added) for g in gradients(parts) if g.added] == [3]


def test_what_somebody_else_waits_for_is_not_added_to_in_place():
    """The sum takes the place of neither: both gradients live on."""
    kept = [g for g in gradients(waiting) if len(g.of) > 1]
    assert kept and not any(g.added for g in kept)


@pytest.mark.parametrize("function", [*ALL, *LOOKING], ids=lambda function: function.__name__)
def test_the_peak_is_the_measured_one(function, monkeypatch):
    monkeypatch.setattr(clock, "MEASURED_SECONDS", 0.0)  # times do not matter here
    model, args = (
        (Looking(function), (torch.randn(256, 64),)) if function in LOOKING else (Made(function), (torch.randn(256, 8),))
    )
    traced = model_of(model, args, {})
    profile = measuring.Measured("cpu", Cache("cpu", enabled=False)).of(traced)
    simulated = simulate(traced.graph, profile, without_recomputation(traced.graph)).peak_bytes
    run = Run(model, args, {}, (), traced.record.loss)
    run.step()
    run.outputs = None
    measured = peak(run.step).allocated_bytes
    assert measured <= simulated + SMALL
    assert simulated <= 1.08 * measured + SMALL
