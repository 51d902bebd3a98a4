"""One kind of block in two ways: within the budget, and cheaper to read than what it replaces."""

import math

import pytest
from graphs import chain_graph
from test_rockmate import COARSE, check, plain, ways

from remat_codegen.planners import rockmate
from remat_codegen.planners.brevity import alike
from remat_codegen.planners.brevity.twofold import twofold
from remat_codegen.planners.chain.chain import of_options
from remat_codegen.planners.chain.rk_rotor import Backward, Forward
from remat_codegen.planners.chain.ways import PRICE, length, price

GRAPH, PROFILE = chain_graph([0, 1] * 12)
PEAK = plain(GRAPH, PROFILE).peak_bytes
STEP = sum(PROFILE.time_ns)


@pytest.fixture(scope="module")
def chain():
    return of_options(GRAPH, PROFILE, COARSE)


@pytest.mark.parametrize("percent", [50, 60, 70, 80, 90])
def test_one_kind_in_two_ways(chain, percent):
    budget = PEAK * percent // 100
    found = twofold(chain, budget, math.inf, STEP, math.inf)
    check(GRAPH, PROFILE, budget, found)
    assert sorted(ways(GRAPH, found.schedule))[:-1] == [1] * 3
    assert max(ways(GRAPH, found.schedule)) <= 2


def test_nothing_dearer_or_slower_than_allowed(chain):
    budget = PEAK * 7 // 10
    found = twofold(chain, budget, math.inf, STEP, math.inf)
    assert twofold(chain, budget, found.time_ns, STEP, math.inf).time_ns <= found.time_ns
    assert twofold(chain, budget, math.inf, STEP, found.time_ns) is None
    faster = twofold(chain, budget, found.time_ns - 1, STEP, math.inf)
    assert faster is None or faster.time_ns < found.time_ns


def test_nothing_where_nothing_fits(chain):
    assert twofold(chain, PEAK // 20, math.inf, STEP, math.inf) is None


def test_the_price_counts_each_function_once(chain):
    blocks = range(len(chain.families))
    last = [len(f.options) - 1 for f in chain.families]
    operations = [*map(Forward, blocks), *(Backward(b, last[b]) for b in reversed(blocks))]
    nodes = sum(length(f, {(len(f.options) - 1, False)}) for f in chain.distinct)
    assert price(chain, operations, 100, STEP) == pytest.approx(100 + PRICE * STEP * nodes)


def test_rockmate_takes_it_where_it_costs_little(monkeypatch):
    monkeypatch.setattr(alike, "_regular", lambda *given: None)
    most = 0
    for percent in range(50, 95, 5):
        budget = PEAK * percent // 100
        found = rockmate.plan(GRAPH, PROFILE, budget, grid=COARSE)
        check(GRAPH, PROFILE, budget, found)
        monkeypatch.setattr(alike, "twofold", lambda *given: None)
        before = rockmate.plan(GRAPH, PROFILE, budget, grid=COARSE)
        monkeypatch.setattr(alike, "twofold", twofold)
        assert sum(ways(GRAPH, found.schedule)) <= sum(ways(GRAPH, before.schedule))
        assert before.time_ns * 0.98 <= found.time_ns <= before.time_ns * 1.025
        most = max(most, sum(ways(GRAPH, before.schedule)) - sum(ways(GRAPH, found.schedule)))
    assert most > 0
