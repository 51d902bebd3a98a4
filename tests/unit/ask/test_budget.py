"""Reading --budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_codegen.ask.budget import check_units, format_bytes, parse_budget
from remat_codegen.errors import BudgetError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1GiB", 2**30),
        ("1 GiB", 2**30),
        ("1gib", 2**30),
        (" 800MiB ", 800 * 2**20),
        ("1.5GB", 1_500_000_000),
        ("1.5gb", 1_500_000_000),
        (".5KiB", 512),
        ("2TB", 2 * 10**12),
        ("1024", 1024),
        ("1024B", 1024),
        ("1", 1),
    ],
)
def test_bytes(text, nbytes):
    assert parse_budget(text).resolve(unmodified_peak=7) == nbytes


@pytest.mark.parametrize(("text", "resolved"), [("40%", 400), ("100%", 1000), ("0.1 %", 1), ("33.33%", 333)])
def test_share_of_the_unmodified_peak_is_rounded_down(text, resolved):
    assert parse_budget(text).resolve(unmodified_peak=1000) == resolved


UNREADABLE = [
    "",
    "GiB",
    "-1GiB",
    "-5",
    "+5",
    "nan",
    "inf",
    "nan%",
    "1e9",
    "1,5GB",
    "1_000",
    "0x10",
    "1GiB2",
    "1 G iB",
    "one",
    "%",
    "1%%",
]
UNREADABLE += ["1..5GB", "9" * 9000, "1\nGiB\n2", "１GiB", "²GiB"]
NO_AMOUNT = ["0", "0GiB", "0%", "1ZiB", "12.5", "0.5B", "101%", "9" * 30]


@pytest.mark.parametrize("text", UNREADABLE + NO_AMOUNT)
def test_anything_else_is_refused_in_one_line(text):
    with pytest.raises(BudgetError) as caught:
        parse_budget(text)
    line = caught.value.line()
    assert "\n" not in line and len(line) < 200
    assert "budget" in line


def test_half_a_unit_gets_a_proposal():
    with pytest.raises(BudgetError, match="1GiB or 1GB"):
        parse_budget("1G")


@given(st.integers(1, 2**60))
def test_whole_bytes_are_exact(nbytes):
    assert parse_budget(str(nbytes)).resolve(1) == nbytes


@given(st.text(max_size=12))
def test_any_text_is_a_budget_or_a_budget_error(text):
    try:
        assert parse_budget(text).resolve(2**40) >= 0
    except BudgetError as error:
        assert "\n" not in error.line()


def test_a_small_number_without_a_unit_was_meant_otherwise():
    for text in ("50%", "50MiB", "1024", "1KiB", "40%,1GiB"):
        check_units(text)
    for text in ("50", "1GiB,50", "1023"):
        with pytest.raises(BudgetError, match=r"is less than any model needs; write .*% or .*MiB if you mean that"):
            check_units(text)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (431 * 2**20, "431.0 MiB"),
        (2**30, "1.00 GiB"),
        (2**30 - 1, "1.00 GiB"),
        (1023 * 2**20, "1023.0 MiB"),
        (2**41, "2048.00 GiB"),
    ],
)
def test_sizes_for_people(nbytes, text):
    assert format_bytes(nbytes) == text
