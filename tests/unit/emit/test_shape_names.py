"""Where lines about shapes stand in a function, and which numbers of an operation are spelled."""

from __future__ import annotations

import ast
import importlib.util
import sys

import pytest
import torch

from remat_codegen.emit.lines import Line
from remat_codegen.emit.names import Namer
from remat_codegen.emit.shapes import BlockSizes, ShapeNames, Spelled, insert, spelled
from remat_codegen.trace.tracing import trace


@pytest.mark.parametrize(("value", "kind"), [(3, int), (0.5, float), (-0.0, float)])
def test_a_spelled_number_is_that_number(value, kind):
    found = spelled(value, "text")
    assert isinstance(found, kind) and isinstance(found, Spelled) and repr(kind(found)) == repr(value) and found.text == "text"


def lines(*texts):
    """Lines, each with the depth of its indent; those of `x = ...` define x."""
    made = []
    for text in texts:
        bare = text.lstrip()
        name = bare.partition(" = ")[0]
        made.append(Line((len(text) - len(bare)) // 4, bare, (name,) if " = " in bare else ()))
    return made


@pytest.mark.parametrize(
    ("given", "name", "found"),
    [
        pytest.param(
            ["x = f()", "y = g(B)"], "x", ["x = f()", "ask", "y = g(B)"], id="behind the line that defines the tensor"
        ),
        pytest.param(["w = f()", "y = g(B)"], "x", ["ask", "w = f()", "y = g(B)"], id="first, where the tensor is given"),
        pytest.param(
            ["with c:", "    x = f()", "    z = h()", "y = g(B)"],
            "x",
            ["with c:", "    x = f()", "    z = h()", "ask", "y = g(B)"],
            id="behind the with around that",
        ),
        pytest.param(
            ["with c:", "    x = f()", "    y = g(B)"],
            "x",
            ["with c:", "    x = f()", "    ask", "    y = g(B)"],
            id="within it, where a size is read there",
        ),
        pytest.param(
            ["x = f()", "kept.stop('x', x)", "kept.slot('x', x)", "y = g(B)"],
            "x",
            ["x = f()", "kept.stop('x', x)", "kept.slot('x', x)", "ask", "y = g(B)"],
            id="behind its stop and its slot",
        ),
        pytest.param(
            ["x = f()", "kept.forget_saved('x')", "y = g(B)"],
            "x",
            ["x = f()", "kept.forget_saved('x')", "ask", "y = g(B)"],
            id="behind what forgets what was saved of it",
        ),
        pytest.param(
            ["yield 1", "w = f()", "yield 2", "y = g(B)", "yield 3"],
            None,
            ["yield 1", "w = f()", "yield 2", "ask", "y = g(B)", "yield 3"],
            id="a kept shape: behind the last wait before it is read",
        ),
        pytest.param(
            ["w = f()", "y = g(B)"], None, ["ask", "w = f()", "y = g(B)"], id="a kept shape: first, where nothing waits"
        ),
    ],
)
def test_where_a_line_about_a_shape_stands(given, name, found):
    made = lines(*given)
    insert(made, "ask", ("B",), name)
    assert ["    " * line.depth + line.text for line in made] == found


SOURCE = """
import math

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads, self.other = 2, 4

    def forward(self, x, mask):
        B, T, C = x.shape
        _, S = mask.shape
        h = x.sin()
        a = h.view(B, T, self.heads, C // self.heads)
        b = h.view(2, 3, self.heads, 4)
        c = h * (1 / math.sqrt(C))
        d = h * self.other
        e = h.view(x.shape[0], -1)
        f = mask[:, :T]
        g = h.view(B * S // S, T * C)
        return sum(t.sum() for t in (a, b, c, d, e, f, g))
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    path = tmp_path_factory.mktemp("shapes") / "model_with_shapes.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return trace(module.Model(), (torch.randn(2, 3, 8), torch.ones(5, 4)), {})


def names_of(traced, again=False, module="m", block=None):
    """The names of sizes of a function, in which results are called r0, r1, and so on, and inputs by their names."""

    def name(variable):
        given = traced.variables[variable]
        return given.path or f"r{variable}"

    operations = [op.id for op in traced.operations]
    return ShapeNames(traced, operations, Namer(), name, lambda path: module, block or BlockSizes(), again)


def at(traced, text, base):
    """The operation of a line."""
    (operation,) = [op for op in traced.operations if op.source and op.source.text.strip().startswith(text) and op.base == base]
    return operation


def texts(operation):
    """The numbers of an operation, as they are written."""
    leaves = [n for a in operation.args for n in (a if isinstance(a, (list, tuple)) else [a])]
    return [n.text if isinstance(n, Spelled) else n for n in leaves if isinstance(n, (int, float))]


def everything(variable):
    return True


@pytest.mark.parametrize(
    ("line", "base", "found"),
    [
        pytest.param("a =", "view", ["B", "T", "m.heads", "C // m.heads"], id="sizes and attributes as the source has them"),
        pytest.param("b =", "view", ["2", "3", "m.heads", "4"], id="numbers stay numbers"),
        pytest.param("c =", "mul", ["(1 / math.sqrt(C))"], id="a factor, in brackets where it needs them"),
        pytest.param("d =", "mul", [4], id="not an attribute on which no shape depends: it may be changed"),
        pytest.param("e =", "view", ["x.shape[0]", "-1"], id="what is asked of an input where it is read"),
        pytest.param("f =", "slice", [1, 0, "T"], id="the bounds of an index, but not its dimension"),
    ],
)
def test_numbers_are_spelled_as_in_the_source(traced, line, base, found):
    operation = at(traced, line, base) if base != "slice" else [op for op in traced.operations if op.base == "slice"][-1]
    assert texts(names_of(traced).spelled(operation, everything)) == found


def test_an_attribute_of_a_module_that_is_not_at_hand_stays_a_number(traced):
    assert texts(names_of(traced, module=None).spelled(at(traced, "a =", "view"), everything))[2:] == [2, 4]


def test_where_sizes_may_change_or_shapes_are_changed_in_place_all_stay_numbers(traced):
    names = names_of(traced)
    names.fixed = False
    operation = at(traced, "a =", "view")
    assert names.spelled(operation, everything) is operation


def test_a_tensor_that_is_not_at_hand_is_not_asked_in_a_first_run(traced):
    operation = at(traced, "a =", "view")
    assert texts(names_of(traced).spelled(operation, lambda v: False)) == [2, 3, "m.heads", 4]


def asked(names, available=everything):
    found = lines("w = f(B, T, C)")
    names.ask(found, available)
    return [line.text for line in found]


def test_sizes_that_are_spelled_are_asked_for_once(traced):
    names = names_of(traced)
    for line in ("a =", "g ="):
        names.spelled(at(traced, line, "view"), everything)
    found = lines("w = f(B, T, C, S)")
    names.ask(found, everything)
    assert [line.text for line in found] == ["_, S = mask.shape", "B, T, C = x.shape", "w = f(B, T, C, S)"]


def test_sizes_that_nobody_reads_get_no_name(traced):
    names = names_of(traced)
    names.spelled(at(traced, "a =", "view"), everything)
    found = lines("w = f(B)")
    names.ask(found, everything)
    assert [line.text for line in found] == ["B, _, _ = x.shape", "w = f(B)"]


def test_a_second_run_without_the_tensor_recalls_the_shape_that_the_first_keeps(traced):
    block = BlockSizes()
    again, first = names_of(traced, True, block=block), names_of(traced, block=block)
    operation = at(traced, "a =", "view")
    assert texts(again.spelled(operation, lambda v: False)) == ["B", "T", "m.heads", "C // m.heads"]
    assert asked(again) == ["B, T, C = kept.shapes['x']", "w = f(B, T, C)"]
    first.spelled(operation, everything)
    assert asked(first) == ["B, T, C = kept.shapes['x'] = x.shape", "w = f(B, T, C)"]


def test_a_first_run_that_asks_nothing_keeps_the_shape_all_the_same(traced):
    block = BlockSizes()
    names_of(traced, True, block=block).spelled(at(traced, "a =", "view"), lambda v: False)
    first = names_of(traced, block=block)
    assert asked(first) == ["kept.shapes['x'] = x.shape", "w = f(B, T, C)"]
    assert asked(first, lambda v: False) == [
        "kept.shapes['x'] = (2, 3, 8)",
        "w = f(B, T, C)",
    ], "or what it was, without the tensor"


def test_all_lines_are_python(traced):
    names = names_of(traced)
    for operation in traced.operations:
        for text in texts(names.spelled(operation, everything)):
            ast.parse(str(text))
