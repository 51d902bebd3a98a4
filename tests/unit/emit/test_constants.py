"""Which names at the top of a user's file stand for something that nothing can change."""

from __future__ import annotations

import ast

import pytest

from remat_codegen.emit.constants import constants_in, full_name

IMPORTS = {"torch": "torch", "math": "math", "os": "os", "environ": "os.environ", "init": "torch.nn.init"}


def constants(text):
    return constants_in(ast.parse(text).body, IMPORTS)


@pytest.mark.parametrize(
    ("value"),
    [
        pytest.param("1", id="a number"),
        pytest.param("'a'", id="a text"),
        pytest.param("f'{[1]}'", id="a formatted text"),
        pytest.param("[1] == [2]", id="a comparison"),
        pytest.param("(1, ('a', None))", id="a tuple of such"),
        pytest.param("-1 + 2 * 3", id="arithmetic of such"),
        pytest.param("1 if [] else 2", id="a choice between such, whatever decides"),
        pytest.param("'a' or 'b'", id="one of such"),
        pytest.param("math.pi", id="what math brings"),
        pytest.param("torch.float16", id="a type of numbers"),
        pytest.param("torch.bool", id="the type of truth values"),
        pytest.param("int(something)", id="what int makes of anything"),
        pytest.param("len([1])", id="a length"),
        pytest.param("math.sqrt(something)", id="what math computes"),
        pytest.param("os.environ.get('A', something)", id="a variable of the environment"),
        pytest.param("environ.get('A')", id="the same under the name that was imported"),
        pytest.param("torch.device('cpu')", id="a device"),
        pytest.param("torch.cuda.is_available()", id="what CUDA says of itself"),
    ],
)
def test_values_that_nothing_can_change(value):
    assert constants(f"A = {value}") == {"A"}


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("[1]", id="a list"),
        pytest.param("{}", id="a dictionary"),
        pytest.param("([1], 2)", id="a tuple with a list in it"),
        pytest.param("1 if x else []", id="a choice of which one can be changed"),
        pytest.param("f(1)", id="what a function of the file returns"),
        pytest.param("torch.zeros(2)", id="a tensor"),
        pytest.param("torch.nn", id="a module of PyTorch"),
        pytest.param("other", id="a name of which nothing is known"),
        pytest.param("lambda: 1", id="a function without a name"),
        pytest.param("x[0]", id="an element"),
    ],
)
def test_values_that_something_can_change(value):
    assert constants(f"A = {value}") == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("A = 1\nB = A\nC = (B, A)", {"A", "B", "C"}, id="names for constants are constants"),
        pytest.param("A = []\nB = A\nC = (B, 1)", set(), id="names for what changes are none"),
        pytest.param("B = A\nA = 1", {"A", "B"}, id="the order does not matter"),
        pytest.param("A = B\nB = A", {"A", "B"}, id="what was only ever assigned itself is nothing that changes"),
        pytest.param("A = 1\nA = []", set(), id="every assignment counts"),
        pytest.param("A = B = 1", {"A", "B"}, id="all targets of an assignment are bound"),
        pytest.param("A: int = 1", {"A"}, id="an annotated name is bound"),
        pytest.param("A: int", set(), id="an annotation alone gives no value"),
        pytest.param("A = 1\nA += 2", {"A"}, id="a constant may be added to a constant"),
        pytest.param("A = 1\nA += x", set(), id="something else may not"),
        pytest.param("A, B = 1, 2", set(), id="of what is unpacked nothing is known"),
        pytest.param("if x:\n    A = 1\nelse:\n    A = 2", {"A"}, id="branches count"),
        pytest.param("for A in x: pass", set(), id="what a loop binds is none"),
        pytest.param("B = [A for A in x]", set(), id="what a comprehension binds is none"),
        pytest.param("with x as A: pass", set(), id="what with binds is none"),
        pytest.param("if x:\n    def A(): pass", set(), id="a function in a branch is none"),
        pytest.param("A = 1\ndef A(): pass", set(), id="a name that is also a function's is none"),
        pytest.param("A = 1\nclass A: pass", set(), id="a name that is also a class's is none"),
        pytest.param("def f():\n    A = []\nA = 1", {"A"}, id="what a function binds is its own"),
        pytest.param("if (A := 1): pass", {"A"}, id="a name that is assigned on the way is bound"),
    ],
)
def test_every_statement_that_binds_a_name_counts(text, found):
    assert constants(text) == found


@pytest.mark.parametrize(
    ("text", "name"),
    [
        pytest.param("init.normal_", "torch.nn.init.normal_", id="the name of the import in front"),
        pytest.param("x.y", "x.y", id="a name that nothing imported stays"),
        pytest.param("f().y", "", id="what is no name has none"),
    ],
)
def test_full_names_begin_with_what_was_imported(text, name):
    assert full_name(ast.parse(text, mode="eval").body, IMPORTS) == name
