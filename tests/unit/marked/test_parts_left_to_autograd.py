"""What a part leaves to a node of autograd is that node's while it computes: nobody else takes that memory for the value."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from remat_codegen import parts

LATE = ("a", "a/late", "a/twice", "a/twice/late", "a/thrice/late", "a/fourfold")


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(x) * x


class Double(nn.Module):
    def forward(self, x):
        return x * 2.0


class Squashed(nn.Module):
    def forward(self, x):
        return torch.exp(x).tanh()


class OverItsValue(torch.autograd.Function):
    """Writes the gradient where the value was saved, as some kernels do to save memory."""

    @staticmethod
    def forward(ctx, value):
        ctx.save_for_backward(value)
        return (value * value / 2).sum()

    @staticmethod
    def backward(ctx, gradient):
        [value] = ctx.saved_tensors
        return value.mul_(gradient * 3)


class Returning(nn.Module):
    """Gives what it computes with, too."""

    def __init__(self):
        super().__init__()
        self.lin, self.a = nn.Linear(4, 4), Sine()

    def forward(self, x):
        value = self.a(self.lin(x))
        return value, (value * value).sum()


class Overwriting(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.a, self.b = nn.Linear(4, 4), Double(), Squashed()

    def forward(self, x):
        value = self.a(self.lin(x))
        z = self.b(value)
        return OverItsValue.apply(value) + z.sum()


class OverOneOfTwo(torch.autograd.Function):
    """Writes a gradient over one of the values that it saved, as fused products do."""

    @staticmethod
    def forward(ctx, one, other):
        ctx.save_for_backward(one, other)
        return one * other

    @staticmethod
    def backward(ctx, gradient):
        one, other = ctx.saved_tensors
        of_other = gradient * one
        return one.copy_(gradient * other), of_other


class Gated(nn.Module):
    """The last value that its backward reads is a part's own, which runs again for that."""

    def __init__(self, function=OverOneOfTwo.apply):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(torch.exp(x), x) if self.function is torch.mul else self.function(x, torch.exp(x))


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.a, self.b, self.c = nn.Linear(4, 4), Sine(), Gated(), Squashed()

    def forward(self, x):
        value = self.a(self.lin(x))
        z = self.c(value)
        return (self.b(value) + z).sum()


class ReturningBefore(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.a, self.b = nn.Linear(4, 4), Sine(), Gated(torch.mul)

    def forward(self, x):
        value = self.a(self.lin(x))
        return value, self.b(value).sum()


class ReadTwice(torch.autograd.Function):
    """Reads what it saved, changes that, and reads it again."""

    @staticmethod
    def forward(ctx, value):
        ctx.save_for_backward(value)
        return value * value / 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.saved_tensors[0].mul_(2)
        return gradient * ctx.saved_tensors[0]


class Seen(nn.Module):
    """A function that writes over its value, or reads it again, is given a view of a part's result."""

    VIEWS = (lambda value: value.t(), lambda value: value[:2], lambda value: value.reshape(-1))

    def __init__(self, view, function):
        super().__init__()
        self.lin, self.a, self.b = nn.Linear(4, 4), Sine(), Squashed()
        self.view, self.function = view, function

    def forward(self, x):
        value = self.a(self.lin(x))
        z = self.function.apply(self.view(value)).sum()
        return z + (value * value).sum() + self.b(value).sum()


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.i, self.l = Squashed(), nn.Linear(4, 4)

    def forward(self, x):
        return self.l(self.i(x)).sin() * x.cos()


class Viewing(nn.Module):
    """A part with another one within it is given a view of a late part's result, which others read before."""

    def __init__(self):
        super().__init__()
        self.lin, self.a, self.o = nn.Linear(4, 4), Sine(), Outer()

    def forward(self, x):
        value = self.a(self.lin(x))
        before = (value * value).sum() + value.sin().sum()
        return self.o(value.reshape(2, 8)[:, :4]).sum() + before


def planned(kind, plan):
    torch.manual_seed(0)
    model = kind()
    return (parts.adopt(model, {"": plan}) if plan else model), torch.randn(4, 4)


def gradients(model):
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("kind, plan", [*((Returning, a) for a in LATE), *((ReturningBefore, f"{a} b") for a in LATE)])
def test_whoever_holds_a_value_may_change_it_once_autograd_has_read_it(kind, plan):
    def trained(plan, changes):
        model, x = planned(kind, plan)
        value, loss = model(x)
        loss.backward(retain_graph=True)
        model.zero_grad()
        with torch.no_grad():
            value.mul_(2 if changes else 1)
        loss.backward()
        return gradients(model)

    assert all(map(torch.equal, trained(plan, True), trained(plan, False)))


@pytest.mark.parametrize("plan", [f"{a} b" for a in LATE[1:]])
def test_a_backward_that_writes_over_its_value_changes_nobody_else_s(plan):
    def trained(plan):
        model, x = planned(Overwriting, plan)
        model(x).backward()
        return gradients(model)

    assert all(map(torch.equal, trained(plan), trained(None)))


@pytest.mark.parametrize("b", ["b", "b/inside", "b/twice"])
@pytest.mark.parametrize("a", LATE[1:])
def test_nor_does_one_that_has_a_part_run_again_first(a, b):
    def trained(plan):
        model, x = planned(Both, plan)
        model(x).backward()
        return gradients(model)

    assert all(map(torch.equal, trained(f"{a} {b} c"), trained(None)))


@pytest.mark.parametrize("plan", LATE[1:])  # the first is refused
def test_a_backward_that_changes_what_it_reads_twice_gets_no_changed_value(plan):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.a = nn.Linear(4, 4), Sine()

        def forward(self, x):
            return ReadTwice.apply(self.a(self.lin(x))).sum()

    def trained(function, plan):
        model, x = planned(Twice, plan)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ReadTwice, "backward", function)
            model(x).backward()
        return gradients(model)

    changing = ReadTwice.backward
    fresh = staticmethod(lambda ctx, gradient: gradient * ctx.saved_tensors[0])
    assert all(map(torch.equal, trained(staticmethod(changing), plan), trained(fresh, None)))


@pytest.mark.parametrize("outer", ["o", "o/inside", "o/twice", "o/shared", "o/inside/twice"])
@pytest.mark.parametrize("a", LATE)
def test_parts_within_get_views_of_what_is_late(a, outer):
    def trained(plan):
        model, x = planned(Viewing, plan)
        model(x).backward()
        return gradients(model)

    assert all(map(torch.equal, trained(f"{a} {outer} o.i"), trained(None)))


def test_who_looks_from_outside_of_a_backward_pass_takes_nothing_away():
    model, x = planned(Returning, "a/twice/late")
    value, loss = model(x)
    saved = loss.grad_fn.next_functions[0][0]._saved_self
    assert torch.equal(saved, value)
    loss.backward()
    other, _ = planned(Returning, None)
    other(x)[1].backward()
    assert all(map(torch.equal, gradients(model), gradients(other)))


@pytest.mark.parametrize("plan", [*LATE, *(f"{a} b" for a in LATE), "a/shared b/twice"])
@pytest.mark.parametrize("view", Seen.VIEWS)
@pytest.mark.parametrize("function", [OverItsValue, ReadTwice])
def test_what_is_written_by_a_view_is_nobody_else_s_or_refused(function, view, plan):
    class Fresh(function):
        @staticmethod
        def backward(ctx, gradient):
            [value] = ctx.saved_tensors
            return value * gradient * (3 if function is OverItsValue else 1)

    def trained(function, plan):
        model, x = planned(lambda: Seen(view, function), plan)
        model(x).backward()
        return gradients(model)

    try:
        found = trained(function, plan)
    except RuntimeError as error:
        assert "in place" in str(error)
        return
    assert all(map(torch.allclose, found, trained(Fresh, None)))
