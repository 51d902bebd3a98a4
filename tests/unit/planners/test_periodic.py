"""Segments of equal length: few ways for a block to run, within the budget, and nothing slower than allowed."""

import math

import pytest
from graphs import chain_graph
from test_rockmate import COARSE, check, plain, ways

from remat_codegen.planners import rockmate
from remat_codegen.planners.brevity import alike
from remat_codegen.planners.brevity.periodic import periodic
from remat_codegen.planners.chain.chain import of_options

GRAPH, PROFILE = chain_graph([0, 1] * 12)
PEAK = plain(GRAPH, PROFILE).peak_bytes


@pytest.fixture(scope="module")
def chain():
    return of_options(GRAPH, PROFILE, COARSE)


@pytest.mark.parametrize("percent", [15, 20, 25, 30, 40, 50])
def test_few_ways_to_run(chain, percent):
    budget = PEAK * percent // 100
    _, found = periodic(chain, budget, math.inf, 0)
    check(GRAPH, PROFILE, budget, found)
    assert max(ways(GRAPH, found.schedule)) <= 2  # those of the last segment run once less
    fastest = rockmate.plan(GRAPH, PROFILE, budget, grid=COARSE)
    assert fastest.time_ns / (1 + alike.FORM) <= found.time_ns < 1.25 * fastest.time_ns


def test_nothing_slower_than_allowed(chain):
    budget = PEAK * 3 // 10
    time_ns = periodic(chain, budget, math.inf, 0)[1].time_ns
    assert periodic(chain, budget, time_ns, 0)[1].time_ns == time_ns
    faster = periodic(chain, budget, time_ns - 1, 0)
    assert faster is None or faster[1].time_ns < time_ns


def test_nothing_where_nothing_fits(chain):
    assert periodic(chain, PEAK // 20, math.inf, 0) is None


def test_rockmate_takes_it_where_it_costs_little(monkeypatch):
    budget = PEAK * 36 // 100
    before = rockmate.plan(GRAPH, PROFILE, budget, grid=COARSE)
    assert max(ways(GRAPH, before.schedule)) > 2
    monkeypatch.setattr(alike, "FORM", 0.15)
    found = rockmate.plan(GRAPH, PROFILE, budget, grid=COARSE)
    check(GRAPH, PROFILE, budget, found)
    assert max(ways(GRAPH, found.schedule)) <= 2
