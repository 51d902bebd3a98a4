"""How a call of the model reaches the traced inputs, and how what it returns is put together again."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from remat_codegen.emit.calls import arguments, passed_on, result
from remat_codegen.errors import UnsupportedError
from remat_codegen.torch_seam import pytree
from remat_codegen.trace import Ref

T = torch.zeros(2)
Pair = namedtuple("Pair", "low high")


@dataclass
class Output:
    low: torch.Tensor
    high: torch.Tensor


class Odd(dict):
    """A mapping that tells pytree its keys."""


class Box:
    """Something with one tensor in it, which it calls by a key of its own."""

    def __init__(self, held):
        self.held = held


pytree.register_pytree_node(Output, lambda o: ([o.low, o.high], ["low", "high"]), lambda v, c: Output(*v))
pytree.register_pytree_node(Odd, lambda o: (list(o.values()), list(o)), lambda v, c: Odd(zip(c, v, strict=True)))
pytree.register_pytree_node(
    Box, lambda o: ([o.held], None), lambda v, c: Box(*v), flatten_with_keys_fn=lambda o: ([("a key", o.held)], None)
)


def called(forward, *args, bound=None, **kwargs):
    """The arguments of a call: name, expression, and whether it is a tensor. Tensors are variables in their order."""
    leaves = pytree.tree_leaves((args, kwargs))
    inputs = tuple(i if isinstance(leaf, torch.Tensor) else None for i, leaf in enumerate(leaves))
    found = arguments(SimpleNamespace(inputs=inputs), forward, args, kwargs, bound)
    return [(a.name, a.expression, "tensor" if a.variable is not None else a.value) for a in found]


@pytest.mark.parametrize(
    ("forward", "args", "kwargs", "found"),
    [
        pytest.param(lambda x: x, (T,), {}, [("x", "x", "tensor")], id="a tensor by its parameter"),
        pytest.param(lambda x: x, (), {"x": T}, [("x", "x", "tensor")], id="also by keyword"),
        pytest.param(lambda *, x: x, (), {"x": T}, [("x", "x", "tensor")], id="also by keyword only"),
        pytest.param(
            lambda x: x, ((T, [T]),), {}, [("x[0]", "x[0]", "tensor"), ("x[1][0]", "x[1][0]", "tensor")], id="elements"
        ),
        pytest.param(
            lambda x: x, ({"a": T, 2: T},), {}, [("x['a']", "x['a']", "tensor"), ("x[2]", "x[2]", "tensor")], id="by key"
        ),
        pytest.param(lambda x: x, (Pair(T, 1),), {}, [("x.low", "x.low", "tensor"), ("x.high", "x.high", 1)], id="by field"),
        pytest.param(
            lambda *xs: xs, (T, T), {}, [("xs[0]", "xs[0]", "tensor"), ("xs[1]", "xs[1]", "tensor")], id="any number of them"
        ),
        pytest.param(
            lambda a, *xs: xs, (T, T), {}, [("a", "a", "tensor"), ("xs[0]", "xs[0]", "tensor")], id="those after the named"
        ),
        pytest.param(lambda **xs: xs, (), {"a": T}, [("xs['a']", "xs['a']", "tensor")], id="any names"),
        pytest.param(lambda x, n: x, (T, 3), {}, [("x", "x", "tensor"), ("n", "n", 3)], id="a number with its value"),
        pytest.param(lambda x, n=3: x, (T,), {}, [("x", "x", "tensor"), ("n", "n", 3)], id="a default that was not given"),
        pytest.param(lambda x, n=3: x, (T, 4), {}, [("x", "x", "tensor"), ("n", "n", 4)], id="not the default where one was"),
        pytest.param(lambda x, n=None: x, (T,), {}, [("x", "x", "tensor"), ("n", "n", None)], id="a default of None"),
        pytest.param(lambda x, n=(): x, (T,), {}, [("x", "x", "tensor")], id="not: a default that is more than a value"),
        pytest.param(lambda x, n=float("nan"): x, (T,), {}, [("x", "x", "tensor")], id="not: a default that equals nothing"),
        pytest.param(lambda x, n: x, (T, float("nan")), {}, [("x", "x", "tensor")], id="not: a number that equals nothing"),
    ],
)
def test_how_a_leaf_of_a_call_is_reached(forward, args, kwargs, found):
    assert called(forward, *args, **kwargs) == found


def test_where_parameters_are_not_at_hand_they_are_found_in_a_dictionary():
    found = called(lambda x, n=3: x, (T,), bound="given")
    assert found == [("x[0]", "given['x'][0]", "tensor"), ("n", "given['n']", 3)]


def test_a_key_that_cannot_be_written_down_is_refused():
    with pytest.raises(UnsupportedError, match="key of the type object"):
        called(lambda x: x, {object(): T})


def test_an_input_that_cannot_be_reached_is_refused():
    with pytest.raises(UnsupportedError, match="input of the kind"):
        called(lambda x: x, Box(T))


@pytest.mark.parametrize(
    ("forward", "text"),
    [
        pytest.param(lambda x, y=1: x, "x, y", id="by place"),
        pytest.param(lambda x, /, y: x, "x, y", id="also where there is no other way"),
        pytest.param(lambda x, *, y: x, "x, y=y", id="by name where that is the only way"),
        pytest.param(lambda *a, **k: a, "*a, **k", id="any number of them"),
    ],
)
def test_how_forward_s_parameters_are_handed_on(forward, text):
    assert passed_on(forward) == text


def returned(value):
    leaves, spec = pytree.tree_flatten(value)
    outputs = tuple(Ref(i) if isinstance(leaf, torch.Tensor) else leaf for i, leaf in enumerate(leaves))
    return result(SimpleNamespace(outputs=outputs, output_spec=spec), lambda v: f"t{v}", lambda kind: kind.__name__)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(T, "t0", id="a tensor"),
        pytest.param((T, T), "(t0, t1)", id="a tuple"),
        pytest.param((T,), "(t0,)", id="a tuple of one"),
        pytest.param((), "()", id="a tuple of nothing"),
        pytest.param([T, (T, 1)], "[t0, (t1, 1)]", id="a list, with values that are no tensors"),
        pytest.param({"a": T, 1: None}, "{'a': t0, 1: None}", id="a dictionary"),
        pytest.param(Pair(T, T), "Pair(t0, t1)", id="a tuple with names, by its class"),
        pytest.param(OrderedDict(a=T), "OrderedDict({'a': t0})", id="an ordered dictionary, by its class"),
        pytest.param(Output(T, T), "Output(low=t0, high=t1)", id="a dataclass, by its fields"),
        pytest.param(Odd(a=T), "Odd(a=t0)", id="another mapping, by its keys"),
        pytest.param(Odd({"a-b": T}), "Odd(**{'a-b': t0})", id="keys that are no names"),
        pytest.param(Odd({"class": T}), "Odd(**{'class': t0})", id="keys that are keywords"),
    ],
)
def test_what_forward_returns_is_put_together_again(value, text):
    assert returned(value) == text


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(Box(T), id="something that is neither a mapping nor a dataclass"),
        pytest.param(Odd({1: T}), id="a mapping with keys that are no texts"),
    ],
)
def test_what_cannot_be_put_together_is_refused(value):
    with pytest.raises(UnsupportedError, match=r"a model that returns a \w+ is not supported"):
        returned(value)
