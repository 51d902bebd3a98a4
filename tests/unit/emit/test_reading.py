"""What the user's source says where an operation comes from."""

from __future__ import annotations

import ast
import linecache

import pytest
import torch

from remat_codegen.emit.reading import (
    Shape,
    bounds_in,
    calls_in,
    function_around,
    imports_math,
    may_be,
    operands_in,
    shape_of,
    statement_around,
)
from remat_codegen.emit.sources import tree_of
from remat_codegen.trace import Operation, Ref, Source


def expression(text):
    return ast.parse(text, mode="eval").body


@pytest.fixture
def written(tmp_path):
    """Writes a function's body, below `def f(self, x):` on line 1, and reads it again as at a line."""

    def write(body, line=2, head="def f(self, x):\n"):
        path = tmp_path / "source.py"
        path.write_text(head + "".join(f"    {text}\n" for text in body.split("\n")))
        source = Source(str(path), line, "")
        return function_around(source), source

    return write


def operation(source, name="view", tensors=1):
    target = getattr(torch.ops.aten, name).default
    return Operation(0, target, (*[Ref(i) for i in range(tensors)], 3), (), (), False, "", "", source)


WHOLE = Shape("x", (), ".shape", True)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        pytest.param("x.shape", WHOLE, id="the whole shape"),
        pytest.param("x.size()", WHOLE, id="the same by a call"),
        pytest.param("x.shape[1]", Shape("x", (1,), ".shape[1]"), id="one size"),
        pytest.param("x.size(1)", Shape("x", (1,), ".shape[1]"), id="one size by a call"),
        pytest.param("x.size()[1]", Shape("x", (1,), ".shape[1]"), id="one size of the whole by a call"),
        pytest.param("x.shape[-1]", Shape("x", (-1,), ".shape[-1]"), id="one size from the end"),
        pytest.param("x.shape[:2]", Shape("x", (0, 1), ".shape[:2]"), id="the first sizes"),
        pytest.param("x.shape[:n]", None, id="not: sizes up to what only the run knows"),
        pytest.param("x.shape[:-1]", None, id="not: sizes up to one from the end"),
        pytest.param("x.shape[:0]", None, id="not: no size at all"),
        pytest.param("x.shape[1:]", None, id="not: sizes from the second"),
        pytest.param("x.shape[:4:2]", None, id="not: every other size"),
        pytest.param("x.shape[i]", None, id="not: a size that only the run knows"),
        pytest.param("x.shape['a']", None, id="not: an index that is no number"),
        pytest.param("x.shape[:2][0]", None, id="not: a size of the first sizes"),
        pytest.param("self.x.shape", None, id="not: the shape of what is no name"),
        pytest.param("x.y().shape", None, id="not: the shape of what a call returns"),
        pytest.param("x.size(dim=1)", None, id="not: a size that is asked for by keyword"),
        pytest.param("x.size(0, 1)", None, id="not: a call of more arguments than size takes"),
        pytest.param("x.stride()", None, id="not: what is no size"),
        pytest.param("x", None, id="not: a name"),
    ],
)
def test_expressions_that_ask_for_a_shape(text, shape):
    assert shape_of(expression(text)) == shape


@pytest.mark.parametrize(
    ("body", "found"),
    [
        pytest.param("B, T = x.shape", [(("B", "T"), (0, 1))], id="a whole shape has as many sizes as names"),
        pytest.param("B, T = x.shape[:2]", [(("B", "T"), (0, 1))], id="the first sizes, with a name for each"),
        pytest.param("B = x.shape[0]", [(("B",), (0,))], id="one size, with a name"),
        pytest.param(
            "B, _ = x.shape\n_, T = x.shape", [(("B", "_"), (0, 1)), (("_", "T"), (0, 1))], id="what is left out, often"
        ),
        pytest.param("if x:\n    B, T = x.shape", [(("B", "T"), (0, 1))], id="in a branch"),
        pytest.param("B, T, C = x.shape[:2]", [], id="not: more names than sizes"),
        pytest.param("B, T = x.shape\nB = 1", [], id="not: a name that is bound once more"),
        pytest.param("B = x.shape", [], id="not: one name for a whole shape"),
        pytest.param("B = x.shape[:1]", [], id="not: one name for the first sizes"),
        pytest.param("B, self.T = x.shape", [], id="not: an attribute among the names"),
        pytest.param("B, *T = x.shape", [], id="not: a name for the rest"),
        pytest.param("B = C = x.shape[0]", [], id="not: two targets"),
        pytest.param("B, T = y", [], id="not: what is no shape"),
    ],
)
def test_shapes_that_are_unpacked(written, body, found):
    function, _ = written(body)
    assert [(u.names, u.shape.dimensions) for u in function.unpackings] == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        pytest.param("a = 1", {"a": "1"}, id="what one assignment gives a name"),
        pytest.param("a = 1\na = 2", {}, id="not: what two do"),
        pytest.param("a = 1\na += 2", {}, id="not: what is changed in place"),
        pytest.param("a = 1\nfor a in x: pass", {}, id="not: what a loop binds, too"),
        pytest.param("a = b = 1", {}, id="not: what has two targets"),
        pytest.param("a, b = 1, 2", {}, id="not: what is unpacked"),
        pytest.param("a: int = 1", {}, id="not: what is annotated"),
    ],
)
def test_names_that_stand_for_what_they_were_assigned(written, body, found):
    function, _ = written(body)
    assert {name: ast.unparse(s.value) for name, s in function.assigned.items()} == found


CLASS = """class A:
  def __init__(self):
    self.heads = self.size = 1
  def change(self):
    self.size = 2
  def f(self, x):
"""


@pytest.mark.parametrize(
    ("body", "found"),
    [
        pytest.param("x.view(1, self.heads)", {"heads"}, id="what a view is given"),
        pytest.param("x.reshape(2 * self.heads)", {"heads"}, id="a part of what a reshape is given"),
        pytest.param("x.view(self.size)", set(), id="not: what another method sets"),
        pytest.param("x.mul(self.heads)", set(), id="not: what is computed with"),
        pytest.param("x.view(1)\nself.heads", set(), id="not: what stands beside"),
        pytest.param("self.heads = 2\nx.view(self.heads)", set(), id="not: what the function itself sets"),
    ],
)
def test_attributes_that_shapes_depend_on(written, body, found):
    function, _ = written(body, 7, CLASS)
    assert function.shaping == found


def test_the_innermost_function_is_the_one_around_a_line(written):
    _, source = written("def g():\n    return 1\nreturn 2")
    at = [function_around(Source(source.file, line, "")) for line in (1, 3, 4)]
    assert [(f.first, f.last) for f in at] == [(1, 4), (2, 3), (1, 4)]


def test_outside_of_functions_and_without_a_source_there_is_none(written):
    _, source = written("return 1", head="a = 1\ndef f():\n")
    assert function_around(Source(source.file, 1, "")) is None and function_around(None) is None


def test_the_innermost_statement_is_the_one_around_an_operation(written):
    function, source = written("if x:\n    a = (\n        x.view(3))\nb = 1", 4)
    found = statement_around(function, operation(source))
    assert ast.unparse(found) == "a = x.view(3)"


@pytest.mark.parametrize(
    ("body", "name", "tensors", "found"),
    [
        pytest.param("y = x.view(a, 3)", "view", 1, [["a", "3"]], id="a method's arguments"),
        pytest.param("y = x.view((a, 3))", "view", 1, [["a", "3"]], id="those of a tuple among them"),
        pytest.param("y = x.view([a], 3)", "view", 1, [["a", "3"]], id="those of a list among them"),
        pytest.param("y = torch.sum(x, a)", "sum", 1, [["a"]], id="a function's, but for its tensors"),
        pytest.param("y = F.softmax(x, a)", "softmax", 1, [["a"]], id="those of F, too"),
        pytest.param("y = torch.nn.functional.softmax(x, a)", "softmax", 1, [["a"]], id="by the full name, too"),
        pytest.param("y = softmax(x, a)", "softmax", 1, [["a"]], id="under its name alone, too"),
        pytest.param("y = x.add(z, a)", "add", 2, [["a"]], id="a method's tensors stand among its arguments, but for one"),
        pytest.param("y = x.view(a).view(b)", "view", 1, [["b"], ["a"]], id="every call of that name in the statement"),
        pytest.param("y = x.clamp(a)", "clamp_", 1, [["a"]], id="in place or not"),
        pytest.param("y = x.reshape(a)", "view", 1, [], id="not: another name"),
        pytest.param("z = 1\ny = x.view(a)", "view", 1, [], id="not: another statement"),
    ],
)
def test_calls_that_may_have_led_to_an_operation(written, body, name, tensors, found):
    function, source = written(body)
    kinds = {"sum": torch.ops.aten.sum.default, "softmax": torch.ops.aten.softmax.int, "add": torch.ops.aten.add.Tensor}
    target = kinds.get(name) or getattr(torch.ops.aten, name).default
    given = Operation(0, target, (*[Ref(i) for i in range(tensors)], 3), (), (), False, "", "", source)
    assert [[ast.unparse(part) for part in call] for call in calls_in(function, given)] == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        pytest.param("y = x[a]", ["a"], id="an index"),
        pytest.param("y = x[a:b:c]", ["a", "b", "c"], id="the bounds of a slice"),
        pytest.param("y = x[:, a:, b]", ["a", "b"], id="of each dimension"),
        pytest.param("y = x[1:a]", ["a"], id="but for numbers, which are there anyway"),
        pytest.param("y = x[a][b]", ["b", "a"], id="of every index in the statement"),
        pytest.param("y = x.view(a)", [], id="not: what stands between other brackets"),
        pytest.param("z = 1\ny = x[a]", [], id="not: another statement"),
    ],
)
def test_bounds_that_may_have_led_to_an_operation(written, body, found):
    function, source = written(body)
    assert [ast.unparse(b) for b in bounds_in(function, operation(source))] == found


def test_operands_are_those_of_the_operation_s_statement(written):
    function, source = written("z = x * b\ny = x * a", 3)
    given = Operation(0, torch.ops.aten.mul.Tensor, (Ref(0), 3), (), (), False, "", "", source)
    assert [ast.unparse(side) for side in operands_in(function, given)] == ["a", "x"]


@pytest.mark.parametrize(
    ("argument", "number", "possible"),
    [
        pytest.param("3", 3, True, id="the same number"),
        pytest.param("4", 3, False, id="not: another number"),
        pytest.param("a + 1", 3, True, id="what only the run knows"),
    ],
)
def test_what_an_argument_may_be(argument, number, possible):
    assert may_be(expression(argument), number) is possible


@pytest.mark.parametrize(
    ("text", "is_math"),
    [
        pytest.param("import math", True, id="the module under its name"),
        pytest.param("import os, math", True, id="beside others"),
        pytest.param("import math as m", False, id="not: under another name"),
        pytest.param("from math import sqrt", False, id="not: what is in it"),
        pytest.param("def f():\n    import math", False, id="not: in a function"),
        pytest.param("import other as math", False, id="not: another module under its name"),
    ],
)
def test_whether_math_is_the_module(text, is_math):
    assert imports_math(ast.parse(text)) is is_math


def test_a_file_has_one_tree_for_as_long_as_it_is_the_same(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("a = 1\n")
    assert tree_of(str(path)) is tree_of(str(path))


@pytest.mark.parametrize(
    "content",
    [pytest.param("def (:", id="a text that is no Python"), pytest.param(None, id="a file that is not there")],
)
def test_what_is_no_python_has_an_empty_tree(content, tmp_path):
    path = tmp_path / "a.py"
    if content is not None:
        path.write_text(content)
    assert tree_of(str(path)).body == []


def test_a_file_that_has_changed_is_read_anew(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("a = 1\n")
    first = tree_of(str(path))
    path.write_text("a = 1\nb = 2\n")
    linecache.checkcache(str(path))
    assert len(first.body) == 1 and len(tree_of(str(path)).body) == 2
