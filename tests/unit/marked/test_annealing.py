"""Annealing: never worse than where it starts, the same each time, and better than the search where that is stuck."""

from __future__ import annotations

import math
import time

import pytest
from graphs import random_graph
from test_choose import candidates_of, chooser_of

from remat_codegen.marked.annealing import LONGER, annealed
from remat_codegen.marked.choose import Chooser
from remat_codegen.planners.dtr import plan
from remat_codegen.schedule import simulate, without_recomputation

SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_found_is_no_worse_than_the_start(seed):
    chooser, schedule = chooser_of(seed, 0.6)
    for start in chooser.starts([schedule]):
        found = annealed(chooser, start, seed)
        assert found.over_bytes <= start.over_bytes
        assert found.over_bytes < start.over_bytes or found.time_ns <= chooser._slowest_ns(start)
        assert found == chooser.price(found.rows)


def test_the_same_seed_finds_the_same():
    found = []
    for _ in range(2):
        chooser, schedule = chooser_of(0, 0.6)
        found.append((annealed(chooser, chooser.starts([schedule])[0], 3), chooser.tried))
    assert found[0] == found[1]


def test_it_finds_what_the_search_does_not():
    won = 0
    for seed in SEEDS[:4]:
        graph, profile = random_graph(seed, 16)
        limit = int(0.6 * simulate(graph, profile, without_recomputation(graph)).peak_bytes)
        schedule = plan(graph, profile, limit).schedule or without_recomputation(graph)
        chooser = Chooser(graph, profile, candidates_of(graph), lambda order, limit=limit: limit)
        searched = chooser.search([schedule])
        found = annealed(chooser, chooser.begun[0], 0)
        won += found.rank(math.inf) < searched.rank(math.inf)
    assert won


def test_a_number_of_tables_or_the_time_ends_it(monkeypatch):
    chooser, schedule = chooser_of(1, 0.6)
    start, before = chooser.starts([schedule])[0], chooser.tried
    monkeypatch.setattr(chooser, "tables", 20)
    monkeypatch.setattr(chooser, "simpler", lambda best: best)
    monkeypatch.setattr(chooser, "within", lambda best, most: best)
    annealed(chooser, start, 0)
    assert chooser.tried <= before + LONGER * 20
    before = chooser.tried
    assert annealed(chooser, start, 0, time.monotonic() - 1) is start
    assert chooser.tried == before
