"""How methods of modules are found: only those that are looked up on the module itself meet marks."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from torch import nn

from remat_codegen.marked.lookups import Lookups, Way
from remat_codegen.trace.places import Function
from remat_codegen.trace.tracing import trace


def given(run, x):
    return run(x)


def picked(module):
    return module


def around(method):
    @functools.wraps(method)
    def inner(self, x):
        return method(self, x)

    return inner


class Base(nn.Module):
    def by_super(self, x):
        return x.sin()


class Child(nn.Module):
    def forward(self, x):
        return x.cos()

    def of_child(self, x):
        return x.tanh()

    def of_item(self, x):
        return x.sinh()

    def in_loop(self, x):
        return x.cosh()

    def of_name(self, x):
        return x.exp()

    def of_call(self, x):
        return x.log1p()

    def of_other(self, x):
        return x.erf()


class Named(Child):
    pass


class ByClass(Child):
    def forward(self, x):
        return x.asinh()


class Aliased(Child):
    def another(self, x):
        return x.atan()

    forward = another


class Wrapped(Child):
    @around
    def forward(self, x):
        return x.erfc()


class Model(Base):
    def __init__(self):
        super().__init__()
        self.child, self.named, self.called, self.same = Child(), Named(), ByClass(), Child()
        self.layers = nn.ModuleList([Child(), Child()])
        self.aliased, self.wrapped = Aliased(), Wrapped()

    def forward(self, x):
        x = self.plain(x).relu()
        x = type(self).by_type(self, x)
        x = super().by_super(x)
        x = Model.by_name(self, x)
        x = self.__class__.by_attribute(self, x)
        x = x + self.prop
        taken = self.taken
        x = taken(x)
        choice = self.choice if len(x) else self.plain
        x = choice(x)
        if len(x):
            either = self.either
        else:
            either = picked
        x = either(x)
        x = given(self.handed, x)
        x = given(lambda y: self.inside(y), x)
        x = self.child(x)
        x = ByClass.forward(self.called, x)
        x = self.wrapped(self.aliased(x))
        x = self.child.of_child(x)
        x = self.layers[0].of_item(x)
        for layer in self.layers:
            x = layer.in_loop(x)
        named = self.child
        x = named.of_name(x)
        x = picked(self.child).of_call(x)
        x = self.decorated(x)
        x = self.twice(x)
        x, y = map(functools.partial(self.mapped), (x, x))
        x = torch.stack([*map(self.spread, (x, y))]).sum(0)
        items = map(self.later, (x, y))
        x, y = items
        return Model.twice(self, x + y)

    def plain(self, x):
        return x + 1

    def by_type(self, x):
        return x + 2

    def by_name(self, x):
        return x + 3

    def by_attribute(self, x):
        return x + 4

    @property
    def prop(self):
        return torch.ones(2) + 5

    def taken(self, x):
        return x + 6

    def either(self, x):
        return x + 7

    def choice(self, x):
        return x + 12

    def handed(self, x):
        return x + 8

    def inside(self, x):
        return x + 9

    def mapped(self, x):
        return x + 13

    def spread(self, x):
        return x + 14

    def later(self, x):
        return x + 15

    @around
    def decorated(self, x):
        return x + 10

    def twice(self, x):
        return x + 11


@pytest.fixture(scope="module")
def lookups():
    model = Model()
    return Lookups(trace(model, (torch.randn(2),), {}), dict(model.named_modules()), lambda file: Path(file).read_text())


def function(name):
    return Function(__file__, name, 0)


@pytest.mark.parametrize(
    ("name", "module", "ways"),
    [
        pytest.param("Model.plain", "", {Way.MODULE}, id="on self it is the module's"),
        pytest.param("Model.by_type", "", {Way.OTHER}, id="on the class, by type, it is not"),
        pytest.param("Base.by_super", "", {Way.OTHER}, id="by super it is not"),
        pytest.param("Model.by_name", "", {Way.OTHER}, id="on a class of the file it is not"),
        pytest.param("Model.by_attribute", "", {Way.OTHER}, id="on the class of self it is not"),
        pytest.param("Model.prop", "", {Way.OTHER}, id="a property is the class's"),
        pytest.param("Model.taken", "", {Way.MODULE}, id="by a name that was given it, it is"),
        pytest.param("Model.choice", "", {Way.MODULE}, id="by a name for one of two of self, it is"),
        pytest.param("Model.either", "", {Way.UNKNOWN}, id="by a name that was given this or another, nobody knows"),
        pytest.param("Model.handed", "", {Way.MODULE}, id="handed to a function, whoever called that says"),
        pytest.param("Model.inside", "", {Way.MODULE}, id="in a function without a name it is, on self"),
        pytest.param("Child.forward", "child", {Way.MODULE}, id="a module that is called looks up its forward on itself"),
        pytest.param("Wrapped.forward", "wrapped", {Way.MODULE}, id="also with a decorator around it"),
        pytest.param("Aliased.another", "aliased", {Way.OTHER}, id="not under another name, which the class has"),
        pytest.param("ByClass.forward", "called", {Way.OTHER}, id="a forward of a class is the class's"),
        pytest.param("Child.of_child", "child", {Way.MODULE}, id="on an attribute of self it is that module's"),
        pytest.param("Child.of_item", "layers.0", {Way.MODULE}, id="on an element of a list of self it is"),
        pytest.param("Child.in_loop", "layers.1", {Way.MODULE}, id="on what a loop goes through it is"),
        pytest.param("Child.of_name", "child", {Way.MODULE}, id="on a name for an attribute of self it is"),
        pytest.param("Child.of_call", "child", {Way.UNKNOWN}, id="on what a call returns, nobody knows"),
        pytest.param("Model.mapped", "", {Way.MODULE}, id="given to map, whose items several names take, it is"),
        pytest.param("Model.spread", "", {Way.MODULE}, id="given to map, whose items a list takes, it is"),
        pytest.param("Model.later", "", {Way.UNKNOWN}, id="given to map elsewhere, nobody knows"),
        pytest.param("Model.decorated", "", {Way.MODULE}, id="a decorator around it does not matter"),
        pytest.param("Model.twice", "", {Way.MODULE, Way.OTHER}, id="one that is found in two ways has both"),
    ],
)
def test_how_a_method_is_found(lookups, name, module, ways):
    assert lookups.found[__file__, name, module] == ways


@pytest.mark.parametrize(
    ("name", "module", "met", "surely"),
    [
        pytest.param("Model.plain", "", True, True, id="what is found on the module is met"),
        pytest.param("Model.by_type", "", False, False, id="what is found elsewhere is not"),
        pytest.param("Model.either", "", True, False, id="where nobody knows it may be"),
        pytest.param("Model.twice", "", False, False, id="what is found in both ways is not always"),
        pytest.param("Model.never", "", True, True, id="of what never ran nothing speaks against it"),
        pytest.param("Model.plain.<locals>.f", "", True, True, id="a function inside is met where its method is"),
        pytest.param("Model.by_type.<locals>.f", "", False, False, id="and is not where that is not"),
    ],
)
def test_whether_marks_in_a_method_are_met(lookups, name, module, met, surely):
    assert lookups.is_met(function(name), module, sure=False) is met
    assert lookups.is_met(function(name), module, sure=True) is surely
