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
