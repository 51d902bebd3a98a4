"""A plan and its seal in a file's first lines."""

from __future__ import annotations

import pytest
from graphs import orders
from hypothesis import given
from hypothesis import strategies as st

from remat_codegen.errors import PlanFileError
from remat_codegen.header.plan_line import COLUMNS, decode_plan, encode_plan, plan_in, plan_lines
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.header.seal import is_sealed, seal


def saved(order: tuple[int, ...], notes: tuple[str, ...] = (), bound: float | None = None) -> SavedPlan:
    return SavedPlan("ab" * 32, "rockmate", "optimal", "1GiB", 1, 2, 3, 0.25, bound, "cpu", order, notes)


@given(orders(), st.lists(st.text(), max_size=3), st.none() | st.floats(0, 1))
def test_a_plan_comes_back_from_its_lines(order, notes, bound):
    plan = saved(order, tuple(notes), bound)
    assert decode_plan(encode_plan(plan)) == plan
    lines = plan_lines(plan)
    text = seal("\n".join(["# one", *lines, "x = 1\n"]))
    assert plan_in(text) == plan
    assert is_sealed(text) and not is_sealed(text + " ")
    assert all(len(line) <= COLUMNS and line.isascii() and line.isprintable() for line in lines)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version":1}', "[" * 100_000, "nan"])
def test_hostile_plans_are_refused(text):
    with pytest.raises(PlanFileError):
        decode_plan(text)
