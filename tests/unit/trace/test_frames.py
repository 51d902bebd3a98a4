"""What variables of the model's code hold while an operation runs: nobody reads it any more, and it is not free."""

from __future__ import annotations

import pytest
import torch
from emitted import model_of
from torch import nn


class Holding(nn.Module):
    """`made` is the result of a linear layer; the last operation, a cosine, runs while somebody may hold it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def last(self, x):
        x = x + 1
        return x.cos()


class ByName(Holding):
    def forward(self, x):
        made = self.linear(x)
        return self.last(made)


class ByNobody(Holding):
    def forward(self, x):
        return self.last(self.linear(x))


class ByDeletedName(Holding):
    def forward(self, x):
        made = self.linear(x)
        after = made + 1
        del made
        return after.cos()


class ByADict(Holding):
    def forward(self, x):
        seen = {"made": [self.linear(x)]}
        return self.last(seen["made"][0])


class ByADecorator(Holding):
    """`no_grad` keeps the arguments of what it wraps."""

    @torch.no_grad()
    def without(self, x):
        x = x + 1
        return x.cos()

    def forward(self, x):
        return self.without(self.linear(x)) * self.linear.weight.sum()


@pytest.mark.parametrize(
    ("kind", "holds"),
    [
        pytest.param(ByName, True, id="a name holds it"),
        pytest.param(ByADict, True, id="a container in a variable holds it"),
        pytest.param(ByADecorator, True, id="a decorator's arguments hold it"),
        pytest.param(ByNobody, False, id="what is handed on and rebound is held by nobody"),
        pytest.param(ByDeletedName, False, id="a name that is deleted holds nothing"),
    ],
)
def test_who_holds_a_result_while_another_operation_runs(kind, holds):
    trace = model_of(kind().train(), (torch.randn(2, 4),), {}).trace
    (linear,) = [op for op in trace.operations if op.base == "linear"]
    (last,) = [op for op in trace.operations if op.base == "cos"]
    assert (linear.id in last.held) == holds


class InATuple(nn.Module):
    """The first of the two waits for the second in the tuple; then `first` has it, which nobody reads."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def both(self, x):
        return self.one(x), self.other(x.sin())

    def forward(self, x):
        first, second = self.both(x)
        return second.cos()


def test_what_a_variable_gets_is_held_from_when_it_is_made():
    operations = model_of(InATuple().train(), (torch.randn(2, 4),), {}).trace.operations
    (first, second), (cos,) = ([op for op in operations if op.base == base] for base in ("linear", "cos"))
    assert all(first.id in op.held for op in operations[first.id + 1 : cos.id + 1])
    assert second.id in cos.held and first.held.count(first.id) == 0
