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


class ByAListThatALossHasLookedAt(Holding):
    """`l1_loss` broadcasts its arguments: what that gives of tensors of equal shapes are the same tensors."""

    def forward(self, x):
        made = [self.linear(x)]
        loss = torch.nn.functional.l1_loss(made[0], x)
        return self.last(loss)


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
        pytest.param(ByAListThatALossHasLookedAt, True, id="a list that a loss has looked at still holds it"),
        pytest.param(ByADecorator, True, id="a decorator's arguments hold it"),
        pytest.param(ByNobody, False, id="what is handed on and rebound is held by nobody"),
        pytest.param(ByDeletedName, False, id="a name that is deleted holds nothing"),
    ],
)
def test_who_holds_a_result_while_another_operation_runs(kind, holds):
    trace = model_of(kind().train(), (torch.randn(2, 4),), {}).trace
    (linear,) = [op for op in trace.operations if op.base == "linear"]
    (last,) = [op for op in trace.operations if op.base == "cos"]
    made = {linear.id} | {op.id for op in trace.operations if op.base == "expand" and set(linear.made) & set(op.reads)}
    assert (not made.isdisjoint(last.held)) == holds


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


class Waiting(Holding):
    """What the linear layer makes waits in an expression while the cosine is computed, and no variable ever has it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def last(self, x):
        return (x * self.weight).cos()

    def both(self, x):
        return self.linear(x), self.last(x)


class InATupleThatIsIndexed(Waiting):
    def forward(self, x):
        return self.both(x)[1]


class AsAnArgument(Waiting):
    def second(self, first, second):
        del first
        return second + 1

    def forward(self, x):
        return self.second(
            self.linear(x),
            self.last(x),
        )


class InAnOuterTuple(Waiting):
    def made(self, x):
        return self.linear(x)

    def both(self, x):
        return {"made": self.made(x), "last": self.last(x)}

    def forward(self, x):
        return self.both(x)["last"]


class InAComprehension(Waiting):
    def forward(self, x):
        return [f(x) for f in (self.linear, self.last)][-1]


class BeforeItIsComputed(Waiting):
    def forward(self, x):
        return (self.last(x), self.linear(x))[0]


class GivenBack(Waiting):
    """By a call that nothing is made in."""

    def same(self, x):
        return x

    def forward(self, x):
        return (self.same(self.linear(x)), self.last(x))[1]


class Detached(Waiting):
    """torch.export leaves out a detach that nobody reads."""

    def forward(self, x):
        return (self.linear(x).detach(), self.last(x))[1]


class DetachedInAVariable(Waiting):
    def forward(self, x):
        found = self.linear(x).detach()  # noqa: F841
        return self.last(x)


class WhoseItemIsDropped(Waiting):
    """The first of the tuple is gone when the sum's other side is computed."""

    def both(self, x):
        return self.linear(x), x + 1

    def forward(self, x):
        return self.both(x)[1] + self.last(x)


class Compared(Waiting):
    def forward(self, x):
        return self.linear(x) is not None and self.last(x)


class InAStatementWithin(Waiting):
    def first(self, x):
        self.linear(x)
        return x

    def forward(self, x):
        a, b = self.first(x), self.last(x)
        return a + b


class DroppedByAnIndex(Waiting):
    def forward(self, x):
        return self.last((x.sin(), self.linear(x))[0])


class InAStatementOfItsOwn(Waiting):
    def forward(self, x):
        self.linear(x)
        return self.last(x)


class InALoop(Waiting):
    """There, `y` holds it: the name is bound again only after the last."""

    def forward(self, x):
        for f in (self.linear, self.last):
            y = f(x)
        return y


class OfEachRound(Waiting):
    def forward(self, x):
        for f in (self.linear, self.last):
            found = (x.sin(), f(x))[0] if f is self.linear else f(x)
        return found


@pytest.mark.parametrize(
    ("kind", "waits"),
    [
        *((kind, True) for kind in (InATupleThatIsIndexed, AsAnArgument, InAnOuterTuple, InAComprehension, InALoop)),
        *((kind, True) for kind in (GivenBack, Detached, DetachedInAVariable)),
        *((kind, False) for kind in (BeforeItIsComputed, DroppedByAnIndex, InAStatementOfItsOwn, OfEachRound)),
        *((kind, False) for kind in (WhoseItemIsDropped, Compared, InAStatementWithin)),
    ],
)
def test_a_result_that_nobody_reads_waits_while_its_expression_is_computed(kind, waits):
    operations = model_of(kind().train(), (torch.randn(2, 4),), {}).trace.operations
    (linear,) = [op for op in operations if op.base == "linear"]
    assert all((linear.id in op.held) == waits for op in operations if op.base == "cos")
