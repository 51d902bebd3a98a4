"""What happens to the lines of a function before they are written."""

import pytest

from remat_codegen.emit.imports import sections
from remat_codegen.emit.lines import Line, drop, tidy


def texts(*lines):
    return [line.text for line in tidy(lines)]


def split(view=True):
    return Line(1, "q, k, v = x.split(C, 2)", ("q", "k", "v"), view)


def test_parts_that_nobody_reads_get_no_name():
    last = Line(1, "return kept.slot(q) + v")
    assert texts(split(), last) == ["q, _, v = x.split(C, 2)", "return kept.slot(q) + v"]


def test_parts_that_hold_memory_are_let_go():
    rest = [Line(1, "h(q)"), drop(1, ("k",)), Line(1, "g(q, q)"), Line(1, "return kept.slot(q) + g(v)")]
    assert texts(split(), *rest) == ["q, k, v = x.split(C, 2)", "h(q)", "del k", "g(q, q)", rest[-1].text]


def test_parts_that_nobody_lets_go_before_the_end_get_no_name():
    rest = [Line(1, "h(q, q)"), Line(1, "g(k, k)"), drop(1, ("q", "k", "v"))]
    assert texts(split(), *rest) == ["q, k, _ = x.split(C, 2)", "h(q, q)", "g(k, k)"]


@pytest.mark.parametrize("view", [True, False])
def test_what_nobody_reads_at_all_is_run_where_it_does_something(view):
    others = [Line(1, "y = f(x)", ("y",)), Line(1, "g(y)"), Line(1, "return y")]
    kept = [] if view else ["x.split(C, 2)"]
    assert texts(*others[:2], split(view), others[2]) == ["y = f(x)", "g(y)", *kept, "return y"]


def test_an_unpacked_single_result_stays_unpacked():
    lines = [Line(1, "a, = f(x)", ("a",)), Line(1, "g(a)"), Line(1, "return h(a)")]
    assert texts(*lines)[0] == "a, = f(x)"


def test_letters_in_texts_are_no_names():
    """einsum's subscripts look like sizes."""
    lines = [Line(1, "b, l, d = x.shape", ("b", "l", "d")), Line(1, "y = x.view(l, -1)", ("y",))]
    last = Line(1, "return torch.einsum('b l d, y l -> b d', [x, y])")
    assert texts(*lines, last) == ["_, l, _ = x.shape", "return torch.einsum('b l d, y l -> b d', [x, x.view(l, -1)])"]


def test_imports_of_one_module_share_a_line():
    lines = ["from torch import nn", "from torch import (einsum, Tensor,)", "from torch import nn as N", "import math"]
    assert sections(lines) == [["import math"], ["from torch import Tensor, einsum, nn", "from torch import nn as N"]]
