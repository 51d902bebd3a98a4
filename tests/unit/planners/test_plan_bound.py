"""The lower bound is below every schedule, and above nothing's time but its own."""

from __future__ import annotations

import time

import graphs
import pytest

from remat_codegen.planners.base import rk_checkmate
from remat_codegen.planners.base.bound import bound
from remat_codegen.schedule import simulate, without_recomputation


def need(graph, profile):
    """The peak without recomputation."""
    return simulate(graph, profile, without_recomputation(graph)).peak_bytes


@pytest.mark.parametrize("seed", range(14))
def test_never_above_the_optimum(seed):
    graph, profile = graphs.random_graph(seed, 4 + seed % 4, once=seed % 2 == 1)
    most = need(graph, profile)
    for budget in graphs.budgets(most // 3, most, 5):
        free = rk_checkmate.solve(graph, profile, budget, recompute_in_forward=True)
        for cuts in (None, 1, 2, len(graph.nodes)):
            found = bound(graph, profile, budget, cuts=cuts).time_ns
            if free.order is not None:
                assert found is not None and found <= sum(profile.time_ns[i] for i in free.order)
        restricted = graphs.least_time(graph, profile, budget) if graph.loss <= 5 else None
        if restricted is not None:
            assert bound(graph, profile, budget).time_ns <= restricted


@pytest.mark.parametrize("seed", range(6))
def test_more_cuts_are_never_worse_where_they_contain_the_fewer(seed):
    graph, profile = graphs.random_graph(seed, 8)
    budget = need(graph, profile) * 7 // 10
    loose, tight = (bound(graph, profile, budget, cuts=c).time_ns for c in (1, len(graph.nodes)))
    assert tight is None or (loose is not None and loose <= tight)


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_more_cuts_are_asked_where_one_says_nothing(seed):
    graph, profile = graphs.random_graph(seed, 8)
    budget = need(graph, profile) * 9 // 10
    one, more = bound(graph, profile, budget, cuts=1), bound(graph, profile, budget)
    assert one.time_ns == sum(profile.time_ns) < more.time_ns and more.cuts > 1


def test_more_cuts_are_not_asked_where_the_first_ones_add_nothing():
    graph, profile = graphs.chain_graph([i % 3 for i in range(12)])
    found = bound(graph, profile, need(graph, profile) * 8 // 10)
    few, many = (bound(graph, profile, need(graph, profile) * 8 // 10, cuts=c) for c in (4, 16))
    assert found.cuts <= 4 and found.time_ns == few.time_ns == many.time_ns


def test_exact_where_one_value_must_go():
    graph, profile = graphs.training_graph(
        [graphs.Op((), 4, saves=(0,), time=3), graphs.Op((0,), 4, saves=(1,), time=5), graphs.Op((1,), 1, time=1)]
    )
    whole = need(graph, profile)
    assert bound(graph, profile, whole).time_ns == sum(profile.time_ns)
    assert bound(graph, profile, 1).time_ns is None


def test_falls_with_the_budget():
    graph, profile = graphs.chain_graph([1, 2, 3, 1, 2, 3])
    most = need(graph, profile)
    found = [bound(graph, profile, b, cuts=6).time_ns for b in graphs.budgets(most // 2, most, 6)]
    known = [f for f in found if f is not None]
    assert known == sorted(known, reverse=True) and known[-1] == sum(profile.time_ns)


def test_fast_on_a_deep_chain():
    graph, profile = graphs.chain_graph([i % 3 for i in range(60)])
    started = time.monotonic()
    found = bound(graph, profile, need(graph, profile) // 2)
    assert time.monotonic() - started < 15  # 10 s, and room for a busy machine
    assert found.time_ns is not None and found.time_ns > sum(profile.time_ns)


def test_the_same_whatever_the_clock_says(monkeypatch):
    graph, profile = graphs.random_graph(3, 12)
    budget = need(graph, profile) * 7 // 10
    first = bound(graph, profile, budget)
    clock = iter(range(0, 10**9, 1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    assert bound(graph, profile, budget) == first
