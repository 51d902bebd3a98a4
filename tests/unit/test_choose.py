"""The search for tables: never worse than where it starts, and the same each time."""

from __future__ import annotations

import math

import pytest
from graphs import random_graph

from remat_codegen.marked.candidates import Candidate, Candidates
from remat_codegen.marked.choose import Chooser
from remat_codegen.planners.dtr import plan
from remat_codegen.schedule import simulate, without_recomputation


def candidates_of(graph):
    """Each node, and all neighbours."""
    able = [n.id for n in graph.forward_nodes if n.recomputable]
    single = [Candidate(n, n, (n,), ("node", n % 3)) for n in able]
    pairs = [Candidate(n, n + 1, (n,), ("pair", n % 2)) for n in able if n + 1 in able]
    return Candidates([*single, *pairs])


def chooser_of(seed, share):
    """A search, and a planner's schedule for the same limit."""
    graph, profile = random_graph(seed, 10)
    limit = int(share * simulate(graph, profile, without_recomputation(graph)).peak_bytes)
    schedule = plan(graph, profile, limit).schedule or without_recomputation(graph)
    return Chooser(graph, profile, candidates_of(graph), lambda order: limit), schedule


@pytest.mark.parametrize("seed", range(6))
def test_what_is_found_is_no_worse_than_where_it_starts(seed):
    chooser, schedule = chooser_of(seed, 0.7)
    found = chooser.search(schedule)
    starts = [chooser.price(rows) for rows in chooser.starts(schedule)]
    assert all(found.over_bytes <= start.over_bytes for start in starts)
    assert all(found.rank(math.inf) <= s.rank(math.inf) for s in starts)


@pytest.mark.parametrize("seed", range(3))
def test_the_same_search_finds_the_same(seed):
    chooser, schedule = chooser_of(seed, 0.7)
    again, _ = chooser_of(seed, 0.7)
    assert chooser.search(schedule) == again.search(schedule)
    assert chooser.tried == again.tried


def test_tables_are_priced_once():
    chooser, schedule = chooser_of(0, 0.7)
    rows = chooser.first(schedule)
    assert chooser.price(rows) is chooser.price(rows[::-1])
    assert chooser.tried <= 1


def test_a_step_within_its_limit_needs_no_table():
    chooser, schedule = chooser_of(0, 1.0)
    assert chooser.search(schedule).rows == ()


def test_the_largest_within_a_candidate_lie_apart():
    found = Candidates(Candidate(a, b, (a,), (a, b)) for a, b in [(0, 5), (0, 2), (1, 2), (3, 3), (4, 5), (5, 5)])
    assert [(c.first, c.last) for c in found.largest_within(found.all[0])] == [(0, 2), (3, 3), (4, 5)]
