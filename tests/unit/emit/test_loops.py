"""Equal statements in a row are written as loops that run the same statements."""

import random

import pytest

from remat_codegen.emit.loops import affine, compress, number

VARIABLES = ("i", "j")


def lines(*calls):
    return [f"f(h[{number(k)}], {name})" for name, k in calls]


def ran(written):
    """The calls that the written lines make, in order."""
    calls = []
    exec("\n".join(written), {"f": lambda k, name: calls.append((name, k)), "h": range(1000), "a": "a", "b": "b", "c": "c"})
    return calls


def test_an_even_run_is_a_loop():
    assert compress(lines(*[("a", 9 - 2 * k) for k in range(4)]), VARIABLES) == ["for i in range(4):", "    f(h[9 - 2 * i], a)"]


def test_a_run_in_a_run_is_a_loop_in_a_loop():
    calls = [c for k in range(3) for c in [*(("a", 6 * k + n) for n in range(5)), ("b", k)]]
    expected = ["for i in range(3):", "    for j in range(5):", "        f(h[6 * i + j], a)", "    f(h[i], b)"]
    assert compress(lines(*calls), VARIABLES) == expected


def test_a_loop_of_chance_is_passed_over_for_the_one_that_leaves_fewer_lines():
    blocks = [("a", 11), *(c for k in range(8, 0, -1) for c in [("b", k), ("a", k)])]
    written = compress(lines(*blocks), VARIABLES)
    assert written == ["f(h[11], a)", "for i in range(8):", "    f(h[8 - i], b)", "    f(h[8 - i], a)"]


def test_without_a_name_to_count_with_nothing_is_a_loop():
    calls = [("a", k) for k in range(3)]
    assert compress(lines(*calls), ()) == ["f(h[0], a)", "f(h[1], a)", "f(h[2], a)"]


@pytest.mark.parametrize("seed", range(50))
def test_loops_run_what_was_given(seed):
    draw = random.Random(seed)
    calls = []
    for _ in range(draw.randint(1, 5)):
        body = [(draw.choice("abc"), draw.randint(30, 60), draw.randint(-2, 2)) for _ in range(draw.randint(1, 4))]
        repeated = [(name, start + step * k) for k in range(draw.randint(1, 6)) for name, start, step in body]
        calls += [(name, k + 12 * again) for again in range(draw.randint(1, 3)) for name, k in repeated]
    written = compress(lines(*calls), VARIABLES)
    assert ran(written) == calls
    assert len(written) <= len(calls)


@pytest.mark.parametrize(
    ("value", "text"),
    [((3,), "3"), ((0, 0), "0"), ((0, 1), "i"), ((2, 3), "3 * i + 2"), ((9, -1), "9 - i"), ((9, -4, 2), "9 - 4 * i + 2 * j")],
)
def test_numbers_as_people_write_them(value, text):
    assert affine(value, VARIABLES) == text
