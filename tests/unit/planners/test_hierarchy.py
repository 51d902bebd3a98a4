"""Plans of graphs without separators: valid, within the budget, near the optimum, and never worse than Chen's and DTR's."""

from itertools import pairwise

import pytest
from graphs import budgets, chen, dense_graph, dtr, encoder_decoder_graph, random_graph, unet_graph

from remat_codegen.planners import rockmate
from remat_codegen.planners.base import rk_checkmate
from remat_codegen.planners.base.judge import restrict
from remat_codegen.planners.base.result import Status
from remat_codegen.planners.chain.options import Grid
from remat_codegen.planners.search.hierarchy import Search, family_orders, improve
from remat_codegen.planners.search.merges import spend
from remat_codegen.planners.search.splits import squeeze
from remat_codegen.schedule import simulate, validate, with_forgets, without_recomputation
from remat_codegen.schedule.lives import Limits, Lives, Problem
from remat_codegen.schedule.order import saved_bytes

QUICK = Grid(search_work=6_000)
GRAPHS = {
    "unet-35": lambda: unet_graph(1, 3, 5),
    "unet-150": lambda: unet_graph(2, 7, 10),
    "dense-40": lambda: dense_graph(3, 40, 12),
    "dense-121": lambda: dense_graph(4, 121, 24),
    "encoder-decoder-60": lambda: encoder_decoder_graph(5, 60),
    "encoder-decoder-300": lambda: encoder_decoder_graph(6, 300),
    "random-50": lambda: random_graph(7, 50),
    "random-80-once": lambda: random_graph(8, 80, True),
    "random-200": lambda: random_graph(9, 200),
}


def plain(graph, profile):
    return simulate(graph, profile, without_recomputation(graph))


def of_order(graph, profile, order):
    return simulate(graph, profile, with_forgets(graph, order))


def check_plans(graph, profile, levels=5):
    minimum = rockmate.plan(graph, profile, 0, grid=QUICK).minimum_bytes
    whole = plain(graph, profile)
    simple = of_order(graph, profile, chen(graph))
    times = []
    for budget in budgets(minimum, whole.peak_bytes, levels):
        found = rockmate.plan(graph, profile, budget, grid=QUICK)
        validate(graph, found.schedule)
        restrict(graph, found.schedule)
        timeline = simulate(graph, profile, found.schedule)
        assert (timeline.peak_bytes, timeline.time_ns) == (found.peak_bytes, found.time_ns)
        assert found.peak_bytes <= budget
        if simple.peak_bytes <= budget:
            assert found.time_ns <= simple.time_ns
        evicting = dtr(graph, profile, budget)
        if evicting is not None:
            schedule = with_forgets(graph, evicting)
            validate(graph, schedule)
            assert simulate(graph, profile, schedule).peak_bytes <= budget
            assert found.time_ns <= simulate(graph, profile, schedule).time_ns
        times.append(found.time_ns)
    assert minimum <= simple.peak_bytes
    assert times[-1] == whole.time_ns
    assert all(later <= earlier * 1.02 for earlier, later in pairwise(times))
    below = rockmate.plan(graph, profile, minimum - 1, grid=QUICK)
    assert (below.status, below.schedule, below.minimum_bytes) == (Status.INFEASIBLE, None, minimum)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "encoder-decoder-300" else n for n in GRAPHS])
def test_plans_hold_and_beat_chen_and_dtr(name):
    check_plans(*GRAPHS[name]())


THOUSANDS = {
    "random": lambda: random_graph(1, 1000),
    "encoder-decoder": lambda: encoder_decoder_graph(1, 1000),
    "unet": lambda: unet_graph(1, 10, 48),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", THOUSANDS)
def test_a_thousand_nodes(name):
    check_plans(*THOUSANDS[name](), levels=4)


@pytest.mark.parametrize("name, overhead", [("unet-150", 0.1), ("dense-121", 0.1), ("encoder-decoder-300", 0.1)])
def test_half_of_the_memory_costs_little(name, overhead):
    graph, profile = GRAPHS[name]()
    whole = plain(graph, profile)
    found = rockmate.plan(graph, profile, whole.peak_bytes // 2, grid=QUICK)
    assert found.time_ns <= (1 + overhead) * whole.time_ns


@pytest.mark.parametrize("seed", range(6))
def test_small_graphs_come_close_to_the_optimum(seed):
    graph, profile = random_graph(seed, 11, seed % 2 == 1)
    search, whole = Search(graph, profile), plain(graph, profile).peak_bytes
    for budget in list(budgets(search.least[1], whole, 4))[1:]:
        best = rk_checkmate.solve(graph, profile, budget, seconds=20)
        found = search.best(Limits(budget), 100)
        assert best.status is Status.OPTIMAL
        assert best.bound_ns <= search.problem.time_of(found) <= 1.05 * best.bound_ns


def test_lives_are_what_the_simulator_says():
    for seed in range(10):
        graph, profile = random_graph(seed, 30, seed % 2 == 0)
        search = Search(graph, profile)
        for order in [*search.starts, search.least[0]]:
            timeline = of_order(graph, profile, order)
            assert (timeline.peak_bytes, timeline.time_ns) == (Lives(search.problem, order).peak, search.problem.time_of(order))


def test_limits_hold_over_the_loss_as_well():
    graph, profile = random_graph(3, 40)
    problem = Problem(graph, profile)
    whole = Lives(problem, problem.plain)
    at_loss = int(whole.during[problem.loss])
    for level in (2, 3, 4):
        limits = Limits(whole.peak, at_loss * level // 5)
        order = squeeze(problem, problem.plain, limits)
        assert order is not None and limits.hold(Lives(problem, order))
        spent = spend(problem, order, limits)
        assert limits.hold(Lives(problem, spent)) and problem.time_of(spent) <= problem.time_of(order)
        better = improve(problem, spent, limits, 40)
        assert limits.hold(Lives(problem, better)) and problem.time_of(better) <= problem.time_of(spent)


def test_what_cannot_be_had_is_refused():
    graph, profile = random_graph(3, 40)
    problem = Problem(graph, profile)
    assert squeeze(problem, problem.plain, Limits(0)) is None
    assert Search(graph, profile).best(Limits(0), 10) is None


def test_a_family_trades_what_is_kept_for_time():
    graph, profile = dense_graph(3, 40, 12)
    orders = family_orders(graph, profile)
    for order in orders:
        validate(graph, with_forgets(graph, order))
    saved = {saved_bytes(graph, o) for o in orders}
    assert len(saved) > 5 and min(saved) < max(saved) // 4


def test_same_inputs_same_plan():
    graph, profile = encoder_decoder_graph(5, 60)
    budget = plain(graph, profile).peak_bytes // 2
    first = rockmate.plan(graph, profile, budget, grid=QUICK)
    rockmate._search.cache_clear()
    assert rockmate.plan(graph, profile, budget, grid=QUICK) == first
