"""Which differences of a generated file from the expected one are told, and how."""

from __future__ import annotations

import pytest

from remat_codegen.readback.compare import differences
from remat_codegen.readback.values import WIDEST, cut, told_apart


def told(text, expected):
    return [(p.line, p.text) for p in differences(text, expected)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("x = 1", "x = 1", id="the same"),
        pytest.param("x  =  (1)  # why", "x = 1", id="layout and comments"),
        pytest.param('"""One."""\nx = 1', '"""Other."""\nx = 1', id="what the file says of itself"),
        pytest.param('def f():\n    """One."""\n    x', "def f():\n    x", id="docstrings"),
        pytest.param("BUDGET_BYTES = 1\nx", "BUDGET_BYTES = 2\nx", id="the budget"),
        pytest.param("PLANNED_PEAK_BYTES = 1\nx", "x", id="the planned peak"),
        pytest.param("x = 'a'", 'x = "a"', id="quotes"),
    ],
)
def test_what_does_not_count(text, expected):
    assert told(text, expected) == []


@pytest.mark.parametrize(
    ("text", "expected", "found"),
    [
        pytest.param("a\nb", "a\nc", [(2, "has `b` where `c` is expected")], id="one statement for another"),
        pytest.param("a\nb\nc", "a\nc", [(2, "has `b`, which does not belong here")], id="one too many"),
        pytest.param(
            "a\nc", "a\nb\nc", [(2, "`b` is missing before this line")], id="one too few, at the line where it would be"
        ),
        pytest.param("a", "a\nb\nc\nd", [(1, "`b`, and 2 more after it, are missing before this line")], id="several too few"),
        pytest.param("", "a", [(1, "`a` is missing before this line")], id="all of them"),
        pytest.param(
            "b\nx", "c\nd", [(1, "has `b` where `c` is expected"), (2, "has `x` where `d` is expected")], id="two for two"
        ),
        pytest.param("a\na", "a\nb\nb\na", [(2, "`b`, and 1 more after it, are missing before this line")], id="in between"),
        pytest.param(
            "def f():\n    a",
            "def f():\n    b",
            [(2, "has `a` where `b` is expected (in f)")],
            id="in a function, with its name",
        ),
        pytest.param(
            "class A:\n    def f(s):\n        a",
            "class A:\n    def f(s):\n        b",
            [(3, "has `a` where `b` is expected (in A.f)")],
            id="in a method, with both names",
        ),
        pytest.param(
            "def f(x): a", "def f(y): a", [(1, "has `def f(x):` where `def f(y):` is expected (in f)")], id="only the head"
        ),
        pytest.param(
            "with a:\n    x", "with b:\n    x", [(1, "has `with a:` where `with b:` is expected")], id="only what is with"
        ),
        pytest.param("if a:\n    x\ny", "if a:\n    x\n    y", [(3, "has `y` where `y` is expected")], id="another depth"),
        pytest.param(
            "if a:\n    x\nelse:\n    y",
            "if a:\n    x\nelse:\n    z",
            [(1, "has `if a: x else: y` where `if a: x else: z` is expected")],
            id="what has a branch besides is compared as a whole",
        ),
    ],
)
def test_how_a_difference_is_told(text, expected, found):
    assert told(text, expected) == found


LONG = "x" * (2 * WIDEST)


@pytest.mark.parametrize(
    ("text", "start", "found"),
    [
        pytest.param("short", 0, "short", id="a short one stays"),
        pytest.param("one\n    two", 0, "one two", id="several lines become one"),
        pytest.param(LONG, 0, "x" * (WIDEST - 3) + "...", id="a long one is cut"),
        pytest.param("abcdef", 3, "...def", id="from somewhere on, with a mark"),
    ],
)
def test_texts_in_messages_have_a_line(text, start, found):
    assert cut(text, start) == found


def test_long_texts_are_cut_around_where_they_begin_to_differ():
    one, other = told_apart(LONG + "a" + LONG, LONG + "b" + LONG)
    assert one != other and "a" in one and "b" in other and len(one) == len(other) == WIDEST


def test_texts_that_differ_early_are_cut_at_their_ends_only():
    one, other = told_apart("a" + LONG, "b" + LONG)
    assert one.startswith("a") and other.startswith("b") and one.endswith("...")
