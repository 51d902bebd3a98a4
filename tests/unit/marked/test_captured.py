"""Functions that a forward pass makes and hands on: what they capture may be another value by the time that a part runs again,
and what they hold of a part's results is lent to nobody."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from emitted import load
from second_edition import found_in, imported_file, random_rows, text_of, traced_module

from remat_codegen.ask.request import Request
from remat_codegen.marked.replays import _handed_on
from remat_codegen.run import marked
from remat_codegen.show.results import Progress
from remat_codegen.trace.reachable import may_change, reachable, tensors_in
from remat_codegen.verify.beside import load_generated

SOURCE = """
import functools

import torch
from torch import nn


class Held:
    def __init__(self, function):
        self.function = function

    def __call__(self, x):
        return self.function(x)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x, gains):
        h = torch.exp(-gains[0](x).square())
        h = torch.sin(self.up(torch.cos(h)))
        return torch.tanh(x + gains[0](self.down(torch.sigmoid(h))))


class Given(Layer):
    def forward(self, x, gain):
        h = torch.exp(-gain(x).square())
        h = torch.sin(self.up(torch.cos(h)))
        return torch.tanh(x + gain(self.down(torch.sigmoid(h))))


class Net(nn.Module):
    ramp, kind = 0.0, Layer

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(self.kind() for _ in range(4))

    def given(self, function):
        return [function]

    def forward(self, x):
        for turn, layer in enumerate(self.layers):
            gain = 1.0 + self.ramp * turn
            x = layer(x, self.given(lambda t: t * gain))
        return x


class InADict(Net):
    def given(self, function):
        return {0: function}


class InAnObject(Net):
    def given(self, function):
        return [Held(function)]


class InAPartial(Net):
    def given(self, function):
        return (functools.partial(function),)


class AsItIs(Net):
    kind = Given

    def given(self, function):
        return function


class InAComprehension(Net):
    def forward(self, x):
        for turn, layer in enumerate(self.layers):
            gain = 1.0 + self.ramp * turn
            x = sum([layer(x, [lambda t: t * gain]) for _ in range(1)])
        return x


class SetByAnother(Net):
    def forward(self, x):
        gain = 1.0

        def bump(turn):
            nonlocal gain
            gain = 1.0 + self.ramp * turn

        for turn, layer in enumerate(self.layers):
            bump(turn)
            x = layer(x, [lambda t: t * gain])
        return x


class BesideMutual(Net):
    def forward(self, x):
        def even(n, t):
            return t if n == 0 else odd(n - 1, t)

        def odd(n, t):
            return torch.sin(t) if n == 0 else even(n - 1, t)

        for turn, layer in enumerate(self.layers):
            gain = 1.0 + self.ramp * turn
            x = layer(torch.tanh(even(turn, x)), [lambda t: t * gain])
        return x


class Holding(Layer):
    def gain(self, x):
        scale = torch.exp(torch.sin(x))
        shift = torch.sigmoid(scale)

        def both():
            yield scale
            yield shift

        return lambda t: t * sum(both())

    def forward(self, x, gains):
        gain = self.gain(x)
        return super().forward(x, [gain])


class Holders(Net):
    kind = Holding


def example_inputs():
    return (torch.randn(256, 32),)
"""
KINDS = "Net InADict InAnObject InAPartial AsItIs InAComprehension SetByAnother BesideMutual Holders".split()


@pytest.mark.parametrize("name", KINDS)
def test_parts_are_exact_whatever_a_function_captures_later(tmp_path, name):
    path, output = tmp_path / f"captured_{name.lower()}.py", tmp_path / "out.py"
    path.write_text(SOURCE)
    found = marked.generate(Request(f"{path}:{name}", "75%", output, edition=2, verify=True), Progress(None)).verify
    assert found.ok, found.failures()
    torch.manual_seed(0)
    model = getattr(imported_file(path), name)().train()
    ours = load_generated(output).rematerialize(copy.deepcopy(model))
    model.ramp = ours.ramp = 0.25  # which was not so when the file was made
    x = torch.randn(256, 32)
    for one in (model, ours):
        one(x).square().mean().backward()
    for mine, theirs in zip(ours.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def test_reachable_goes_through_functions_and_containers_but_not_modules():
    inside, beside, weight = torch.zeros(1), torch.zeros(2), torch.nn.Linear(2, 2)

    def both():
        yield inside
        yield weight.weight

    things = {"a": [lambda: both], "b": frozenset([iter([beside])])}
    assert {id(t) for t in tensors_in(things)} == {id(inside), id(beside)}
    assert both in list(reachable(things))


def test_what_the_call_of_a_module_leads_to_is_not_handed_on():
    """It has all other parts, whose functions capture what they like: they are frozen, too."""

    class Call:
        def __init__(self):
            self.parts = [lambda number=number: number for number in range(2)]

    call = Call()
    run = lambda: call  # noqa: E731
    assert _handed_on(run, ([call],), Call) == [] and len(_handed_on(run, (), type(None))) == 2


def test_what_a_function_around_may_bind_anew():
    given = torch.zeros(1)

    def inner(turns, scale):
        once = 2.0
        for turn in range(turns):
            often = float(turn)
            yield [may_change(f) for f in (lambda: often, lambda: once, lambda: scale, lambda: given)]  # noqa: B023

    assert list(inner(1, 3.0)) == [["often", None, None, None]]


def test_what_is_bound_further_out_or_by_others():
    def outer(*given):
        given, before, late, shared = tuple(given), 1.0, 1.0, 1.0

        def setter():
            nonlocal shared
            shared = 2.0

        def inner():
            functions = lambda: given, lambda: before, lambda: late, lambda: shared
            return [may_change(f) for f in functions]

        found = [inner() for _ in range(1)]
        late = setter()
        return found

    assert outer(1) == [[None, None, "late", "shared"]]


def test_a_function_whose_maker_has_returned_stays_what_it_is():
    def maker():
        for often in range(3):
            found = lambda: often  # noqa: B023, E731
        return found

    assert may_change(maker()) is None


ESCAPES = """
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down, self.fn, self.own = nn.Linear(width, width), nn.Linear(width, width), None, None

    def forward(self, x):
        h = self.up(x)
        if self.fn is None:
            self.fn = lambda t: torch.tanh(t) * torch.sigmoid(t) * torch.exp(-t * t)
            self.own = lambda t: self.down(F.dropout(torch.tanh(t).sin(), 0.1, self.training))
        return x + self.own(self.fn(h))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(8) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""


@pytest.mark.parametrize("seed", range(4))
def test_functions_that_outlive_the_call_which_made_them(tmp_path, seed):
    """Steps with an optimizer between: they belong to the step that runs."""
    path = tmp_path / f"escapes_{seed}.py"
    path.write_text(ESCAPES)
    torch.manual_seed(0)
    theirs = imported_file(path).Net().train()
    x = torch.randn(4, 6, 8)
    traced = traced_module(theirs, (x,), {}, path)
    found = found_in(traced)
    text = text_of(traced, found, random_rows(found, random.Random(seed), 0.8))
    module = imported_file(path)
    torch.manual_seed(0)
    theirs = module.Net().train()
    ours = load(text, tmp_path).rematerialize(copy.deepcopy(theirs))
    for step in range(3):
        for model in (theirs, ours):
            torch.manual_seed(step)
            model.zero_grad()
            model(x + step).square().mean().backward()
            torch.optim.SGD(model.parameters(), 0.1).step()
        assert all(map(torch.equal, theirs.parameters(), ours.parameters()))
