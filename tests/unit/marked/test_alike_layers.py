"""What tables say of layers of equal code, and which tables say less, or the same in a better order."""

from __future__ import annotations

from itertools import pairwise

import pytest

from remat_codegen.marked.candidates import Candidate, Candidates, Row
from remat_codegen.marked.demand import Again, Keeps
from remat_codegen.marked.layers import Layers, said_of

# Four layers of two pieces each, `norm` and `mlp`, and a head that is there once.
NORM = [Candidate(3 * i, 3 * i, (f"norm{i}",), "norm") for i in range(4)]
MLP = [Candidate(3 * i + 1, 3 * i + 2, (f"mlp{i}",), "mlp") for i in range(4)]
HEAD = Candidate(12, 12, ("head",), "head")
LAYERS = Layers(Candidates([*NORM, *MLP, HEAD]))


def rows(*candidates):
    return tuple(Row(c) for c in candidates)


def names(tables):
    """What tables hold, as sets of names."""
    return [{r.candidate.vertices[0] for r in table} for table in tables]


@pytest.mark.parametrize(
    ("candidate", "layer"),
    [
        pytest.param(NORM[2], (4, 2), id="of so many, the one at its place"),
        pytest.param(MLP[2], (4, 2), id="columns of one list share their layers"),
        pytest.param(HEAD, None, id="what is there once is in none"),
    ],
)
def test_which_layer_a_candidate_is_in(candidate, layer):
    assert LAYERS.of.get(candidate) == layer


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param(Row(NORM[0]), Row(NORM[3]), True, id="of another layer the same"),
        pytest.param(Row(NORM[0]), Row(MLP[0]), False, id="of other code something else"),
        pytest.param(Row(NORM[0]), Row(NORM[1], Keeps.RESULT), False, id="what is kept is part of it"),
        pytest.param(Row(NORM[0]), Row(NORM[1], again=Again.TWICE), False, id="so is how often it runs again"),
        pytest.param(Row(NORM[0]), Row(NORM[1], late=True), False, id="so is when it is forgotten"),
    ],
)
def test_what_a_table_says_by_a_row(one, other, same):
    assert (said_of(one) == said_of(other)) is same


@pytest.mark.parametrize(
    ("table", "different"),
    [
        pytest.param((), 0, id="nothing of no layer"),
        pytest.param(rows(*NORM), 1, id="the same of all"),
        pytest.param(rows(NORM[0], NORM[3]), 1, id="the same of some"),
        pytest.param(rows(NORM[0], NORM[1], MLP[1]), 2, id="more of one than of another"),
        pytest.param(rows(HEAD), 0, id="what is no layer does not count"),
    ],
)
def test_how_many_different_things_a_table_says(table, different):
    assert LAYERS.different(table) == different


def test_tables_with_one_thing_less_say_of_some_layers_what_they_say_of_others():
    table = rows(NORM[0], NORM[1], MLP[1], HEAD)
    assert names(LAYERS.united(table)) == [{"norm0", "mlp0", "norm1", "mlp1", "head"}, {"norm0", "norm1", "head"}]


@pytest.mark.parametrize(
    "table",
    [pytest.param(rows(*NORM), id="where it says one thing"), pytest.param(rows(HEAD), id="where it says nothing of layers")],
)
def test_there_is_nothing_to_unite(table):
    assert list(LAYERS.united(table)) == []


def test_what_is_united_keeps_the_options():
    table = (Row(NORM[0], Keeps.RESULT), Row(NORM[1]))
    assert [{(r.candidate, r.keeps) for r in found} for found in LAYERS.united(table)] == [
        {(NORM[0], Keeps.NOTHING), (NORM[1], Keeps.NOTHING)},
        {(NORM[0], Keeps.RESULT), (NORM[1], Keeps.RESULT)},
    ]


def test_layers_exchange_what_is_said_so_that_equal_ones_stand_side_by_side():
    table = (*rows(NORM[0], NORM[2], HEAD), Row(NORM[1], Keeps.RESULT), Row(NORM[3], Keeps.RESULT))
    breaks = []
    for found in LAYERS.sorted(table):
        kept = [next(r.keeps for r in found if r.candidate == c) for c in NORM]
        breaks.append(sum(a != b for a, b in pairwise(kept)))
        assert sorted(kept) == sorted([Keeps.NOTHING, Keeps.RESULT] * 2) and Row(HEAD) in found
    assert breaks == [1, 1, 2, 2], "those first that stand side by side the most; no table that is as it was, or worse"


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(rows(*NORM), id="they are all alike"),
        pytest.param((*rows(*NORM[:2]), *(Row(c, Keeps.RESULT) for c in NORM[2:])), id="equal ones stand side by side"),
        pytest.param(rows(HEAD), id="there are no layers"),
    ],
)
def test_nothing_is_exchanged_where(table):
    assert list(LAYERS.sorted(table)) == []


@pytest.mark.parametrize(
    ("last", "where"),
    [
        pytest.param(False, {"norm0", "norm1", "mlp0", "head"}, id="of the first"),
        pytest.param(True, {"norm2", "norm3", "mlp3", "head"}, id="of the last"),
    ],
)
def test_stairs_say_everything_as_often(last, where):
    assert names([LAYERS.stairs(rows(NORM[1], HEAD, NORM[3], MLP[1]), last)]) == [where]


def test_lower_stairs_have_a_step_less():
    table = rows(NORM[0], NORM[1], MLP[0], HEAD)
    norms = [{"mlp0", "head"}, {"norm0", "mlp0", "head"}, {"norm0", "norm1", "norm2", "norm3", "mlp0", "head"}]
    mlps = [{"norm0", "norm1", *(f"mlp{i}" for i in range(n)), "head"} for n in (0, 2, 4)]
    assert names(LAYERS.lower_stairs(table, False)) == [*norms, *mlps]
    assert not list(LAYERS.lower_stairs(rows(*NORM, HEAD), False))


def test_tables_are_in_an_order_that_no_hash_decides():
    options = [Row(NORM[0], keeps, again) for keeps in Keeps for again in Again]
    table = (*options, Row(MLP[1]))
    united = next(t for t in LAYERS.united(table) if Row(MLP[1]) not in t)
    assert united == (*options, *(Row(NORM[1], r.keeps, r.again) for r in options))


@pytest.mark.parametrize("last", [False, True])
def test_stairs_say_one_thing_of_each_piece(last):
    table = (*rows(NORM[0], NORM[2]), Row(NORM[1], Keeps.RESULT), Row(NORM[3], Keeps.RESULT), Row(MLP[0]))
    for stairs in (LAYERS.stairs(table, last), *LAYERS.lower_stairs(table, last)):
        assert len({r.candidate for r in stairs}) == len(stairs)
    assert {r.candidate for r in LAYERS.stairs(table, last)} == {*NORM, MLP[-1 if last else 0]}


def test_rows_that_a_table_has_twice_count_once():
    assert names([LAYERS.stairs(rows(*NORM, *NORM), True)]) == names([rows(*NORM)])
