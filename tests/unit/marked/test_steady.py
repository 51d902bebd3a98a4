"""What an update leaves as it was: rows where that costs next to nothing, and marks."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from graphs import random_graph
from test_choose import candidates_of, chooser_of

from remat_codegen.marked.candidates import Candidate, Candidates, Row
from remat_codegen.marked.demand import Again, Keeps
from remat_codegen.marked.steady import ANEW, STEADY, Before, steadied, stretches


def rows_at(*spans, keeps=Keeps.NOTHING):
    return tuple(Row(Candidate(first, last, (first,), ("node", first % 3)), keeps) for first, last in spans)


def test_tables_differ_in_stretches_that_overlap_with_no_others():
    now, before = rows_at((0, 0), (2, 5), (7, 7), (9, 9)), rows_at((0, 0), (3, 3), (5, 6), (8, 8))
    found = stretches(now, before)
    assert [(s.now, s.before) for s in found] == [
        (rows_at((2, 5)), rows_at((3, 3), (5, 6))),
        (rows_at((7, 7)), ()),
        ((), rows_at((8, 8))),
        (rows_at((9, 9)), ()),
    ]
    assert stretches(now, now) == [] and len(stretches(now, ())) == 4
    assert stretches(rows_at((3, 3)), rows_at((0, 0)))[1].kind == stretches(rows_at((6, 6)), rows_at((0, 0)))[1].kind


def test_another_option_is_a_difference():
    [stretch] = stretches(rows_at((1, 1)), rows_at((1, 1), keeps=Keeps.RESULT))
    assert stretch.now[0].candidate == stretch.before[0].candidate


@pytest.mark.parametrize("seed", range(8))
def test_what_was_before_stays_wherever_that_is_as_good(seed):
    """Nothing that is left could still be put back: tried for all sets of stretches."""
    chooser, schedule = chooser_of(seed, 0.7)
    best = chooser.search([schedule])
    others, _ = chooser_of(seed, 0.6)
    before = others.search([schedule]).rows
    steady = steadied(best, before, chooser.price)
    assert steady.over_bytes <= best.over_bytes and steady.time_ns <= (1 + STEADY) * best.time_ns
    left = stretches(steady.rows, before)
    assert len(left) <= len(stretches(best.rows, before))
    for stretch in left:
        kept = tuple(r for r in steady.rows if r not in stretch.now)
        found = chooser.price((*kept, *stretch.before))
        assert found is None or found.over_bytes > best.over_bytes or found.time_ns > (1 + STEADY) * best.time_ns


@pytest.mark.parametrize("seed", range(4))
def test_a_table_that_is_still_good_stays_whole(seed):
    chooser, schedule = chooser_of(seed, 0.7)
    best = chooser.search([schedule])
    assert {*steadied(best, best.rows[::-1], chooser.price).rows} == {*best.rows}
    assert chooser.search([schedule], before=best.rows).rank(0.0) <= best.rank(0.0)


def test_a_search_may_be_for_the_marks_that_there_are():
    graph, _ = random_graph(0, 10)
    plain = candidates_of(graph).all
    marked = [Candidate(c.first, c.last, c.vertices, c.key, ((("f", c.first), ()),)) for c in plain if c.first != c.last]
    every = Candidates([*(c for c in plain if c.first == c.last), *marked])
    row = Row(marked[0], again=Again.TWICE)
    assert Before((), frozenset()).possible(every.all).all == [c for c in every.all if not c.marks]
    some = Before(((row,),), frozenset(marked[0].marks)).possible(every.all)
    assert {c for c in some.all if c.marks} == {c for c in marked if c.marks == marked[0].marks}
    assert ANEW.rows(0) == () and Before(((row,),)).rows(0) == (row,) and Before(((row,),)).rows(1) == ()


def test_the_same_nodes_marked_otherwise_are_another_table():
    """Both take the same, so that nothing is in the way of the marks that there were."""
    chooser, schedule = chooser_of(0, 0.7)
    best = chooser.search([schedule])
    mark = ((("f", 1), ()),)
    before = tuple(replace(r, candidate=replace(r.candidate, marks=mark, vertices=(99,))) for r in best.rows)
    assert best.rows and {*steadied(best, before, chooser.price).rows} == {*before}
    priced = chooser.price(before)
    assert (priced.time_ns, priced.peak_bytes) == (best.time_ns, best.peak_bytes) and priced.cost_ns > best.cost_ns


def test_rows_of_two_tables_are_told_apart_by_all_their_options():
    for one, other in itertools.combinations([rows_at((1, 1)), rows_at((1, 2)), rows_at((1, 1), keeps=Keeps.SAVED)], 2):
        assert len(stretches(one, other)) == 1
