"""What autograd saves for gradients that nobody asks for, and how long that is there."""

from __future__ import annotations

import pytest
import torch
from emitted import model_of
from torch import nn

from remat_codegen.graph.unread import lost_of


class Teaching(nn.Module):
    """The teacher's two products are saved for nobody, up to where its result is detached."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def teacher(self, x):
        return (x.sin() * self.weight).cos().exp()

    def forward(self, x):
        return x * self.weight + self.teacher(x).detach()


class Looking(Teaching):
    """A number is made of it, and the gradient ends there."""

    def forward(self, x):
        return x * self.weight + self.teacher(x).argmax()


class Without(Teaching):
    def forward(self, x):
        with torch.no_grad():
            found = self.teacher(x)
        return x * self.weight + found


class Waiting(Teaching):
    """The tuple has it until it is indexed."""

    def both(self, x):
        return self.teacher(x), (x * self.weight).tanh()

    def forward(self, x):
        return self.both(x)[1].neg()


class Keeping(Teaching):
    """A variable has it while all else runs."""

    def forward(self, x):
        unread = self.teacher(x)  # noqa: F841
        return x.neg() * self.weight


def lost_in(kind):
    model = model_of(kind().train(), (torch.randn(4, 8),), {})
    operations = model.trace.operations
    return {operations[one.operation].base: operations[one.until].base for one in lost_of(model.trace, model.record)}


@pytest.mark.parametrize(
    ("kind", "until"),
    [(Teaching, "detach"), (Looking, "argmax"), (Waiting, "tanh"), (Keeping, "mul")],
)
def test_what_is_saved_for_nobody_is_there_as_long_as_somebody_has_the_result(kind, until):
    found = lost_in(kind)
    assert {"cos", "exp"} <= set(found) <= {"mul", "cos", "exp"}
    assert set(found.values()) == {until}


def test_nothing_is_saved_where_no_gradients_are_made():
    assert not lost_in(Without)
