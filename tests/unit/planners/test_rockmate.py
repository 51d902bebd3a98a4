"""Rockmate's promises: within the budget, faster with more of it, and a minimum that can be had."""

from itertools import pairwise

import pytest
from graphs import Op, budgets, chain_graph, least_time, random_graph, training_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_codegen.planners import rockmate
from remat_codegen.planners.base import milp, rk_checkmate
from remat_codegen.planners.base.deadline import Effort
from remat_codegen.planners.base.judge import restrict
from remat_codegen.planners.base.result import Status
from remat_codegen.planners.chain.chain import family_of
from remat_codegen.planners.chain.options import Grid
from remat_codegen.schedule import simulate, validate, with_forgets, without_recomputation

COARSE = Grid(saved_levels=4, peak_levels=2, search_work=4_000)


def plain(graph, profile):
    return simulate(graph, profile, without_recomputation(graph))


def check(graph, profile, budget, found):
    assert found.peak_bytes <= budget
    timeline = simulate(graph, profile, found.schedule)
    assert (timeline.peak_bytes, timeline.time_ns) == (found.peak_bytes, found.time_ns)
    validate(graph, found.schedule)
    restrict(graph, found.schedule)


def walk(graph, profile, count, **options):
    """Plans from the minimum to all there is; returns them after checking what holds for every graph."""
    minimum = rockmate.plan(graph, profile, 0, **options).minimum_bytes
    peak = plain(graph, profile).peak_bytes
    plans = [rockmate.plan(graph, profile, b, **options) for b in budgets(minimum, peak, count)]
    for budget, found in zip(budgets(minimum, peak, count), plans, strict=True):
        check(graph, profile, budget, found)
    times = [p.time_ns for p in plans]
    assert all(later <= earlier * 1.02 for earlier, later in pairwise(times))
    assert times[-1] == plain(graph, profile).time_ns
    below = rockmate.plan(graph, profile, minimum - 1, **options)
    assert (below.status, below.schedule, below.minimum_bytes) == (Status.INFEASIBLE, None, minimum)
    return plans


@settings(derandomize=True, max_examples=10, deadline=None)
@given(seeds=st.lists(st.integers(0, 3), min_size=2, max_size=6))
def test_chains(seeds):
    graph, profile = chain_graph(seeds)
    walk(graph, profile, 6, grid=COARSE)


@settings(derandomize=True, max_examples=5, deadline=None)
@given(seeds=st.lists(st.integers(0, 3), min_size=2, max_size=2))
def test_no_chain_is_faster_than_the_optimum(seeds):
    graph, profile = chain_graph(seeds)
    peak = plain(graph, profile).peak_bytes
    for budget in budgets(peak * 3 // 4, peak, 3):
        found = rockmate.plan(graph, profile, budget, grid=COARSE)
        best = least_time(graph, profile, budget)
        assert found.schedule is None or (best is not None and best <= found.time_ns)


@settings(derandomize=True, max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), once=st.booleans())
def test_a_graph_of_one_block_is_planned_exactly(seed, once):
    graph, profile = random_graph(seed, 5, once)
    for budget in budgets(plain(graph, profile).peak_bytes * 2 // 3, plain(graph, profile).peak_bytes, 3):
        found = rockmate.plan(graph, profile, budget, grid=Grid(gap=0))
        assert (found.time_ns if found.schedule else None) == least_time(graph, profile, budget)


@settings(derandomize=True, max_examples=3, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_large_graphs_are_searched(seed):
    graph, profile = random_graph(seed, 70)
    plans = walk(graph, profile, 5, grid=COARSE)
    assert plans[0].status is Status.FEASIBLE and plans[0].peak_bytes < plans[-1].peak_bytes


def test_large_blocks_in_a_chain_are_searched(monkeypatch):
    graph, profile = chain_graph([1, 2, 2, 3])
    monkeypatch.setattr(rk_checkmate, "solve", None)
    walk(graph, profile, 4, grid=Grid(largest=2, search_work=4_000))


def test_equal_blocks_are_solved_once(monkeypatch):
    def count(seeds):
        family_of.cache_clear()
        calls = []
        original = rk_checkmate.solve
        monkeypatch.setattr(rk_checkmate, "solve", lambda *a, **k: calls.append(1) or original(*a, **k))
        graph, profile = chain_graph(seeds)
        rockmate.plan(graph, profile, plain(graph, profile).peak_bytes * 3 // 4, grid=COARSE)
        monkeypatch.setattr(rk_checkmate, "solve", original)
        return len(calls)

    assert count([1, 2, 2, 3]) == count([1, *[2] * 10, 3]) > 0


def test_a_fitting_step_is_left_alone():
    graph, profile = chain_graph([1, 2])
    found = rockmate.plan(graph, profile, plain(graph, profile).peak_bytes)
    assert (found.status, found.schedule) == (Status.OPTIMAL, without_recomputation(graph))


def test_an_infeasible_budget_is_answered_with_the_minimum():
    graph, profile = chain_graph([1, 2, 2])
    found = rockmate.plan(graph, profile, 1, grid=COARSE)
    assert found.status is Status.INFEASIBLE and found.schedule is None
    assert rockmate.plan(graph, profile, found.minimum_bytes, grid=COARSE).schedule is not None


def test_the_time_limit_is_told(monkeypatch):
    def stopped(self, terms, seconds, gap, original=milp.Program.minimise):
        result = original(self, terms, seconds, gap)
        return milp.Result(Status.TIME_LIMIT, result.objective, 0.0, 1.0, result.values)

    family_of.cache_clear()
    monkeypatch.setattr(milp.Program, "minimise", stopped)
    graph, profile = chain_graph([1, 2, 2])
    found = rockmate.plan(graph, profile, plain(graph, profile).peak_bytes - 1, grid=COARSE)
    family_of.cache_clear()
    assert found.status is Status.TIME_LIMIT and found.schedule is not None
    assert "ran out of time" in " ".join(found.notes)


def test_same_inputs_same_plan():
    graph, profile = chain_graph([1, 2, 2, 3])
    budget = plain(graph, profile).peak_bytes * 3 // 4
    first = rockmate.plan(graph, profile, budget, grid=COARSE)
    family_of.cache_clear()
    rockmate._search.cache_clear()
    assert rockmate.plan(graph, profile, budget, grid=COARSE) == first


def test_nodes_that_run_once_stay_single():
    ops = []
    for block in range(4):
        at = len(ops)
        entering = (at - 1,) if block else ()
        ops.append(Op(entering, 8, 0, (at,), 3, recomputable=block % 2 == 0))
        ops.append(Op((at,), 8, 2, (at, at + 1), 3))
        ops.append(Op((*entering, at + 1), 2, 0, (), 1))
    graph, profile = training_graph(ops, [3] * 4)
    plans = walk(graph, profile, 4, grid=COARSE)
    assert plans[0].peak_bytes < plans[-1].peak_bytes


def test_what_several_blocks_read_stays():
    """A mask made in the first block and read by all of them crosses the cuts (appendix A.4)."""
    ops = [Op((), 1, time=1)]
    for block in range(4):
        at = len(ops)
        entering = () if block == 0 else (at - 1,)
        ops.append(Op((0, *entering), 8, 0, (0, at), 3))
        ops.append(Op((at,), 8, 2, (at, at + 1), 3))
        ops.append(Op((*entering, at + 1), 2, 0, (), 1))
    graph, profile = training_graph(ops, [4, 3, 3, 3])
    walk(graph, profile, 4, grid=COARSE)


def test_progress_is_reported():
    family_of.cache_clear()
    graph, profile = chain_graph([1, 2, 3])
    seen = []
    rockmate.plan(
        graph, profile, plain(graph, profile).peak_bytes - 1, grid=COARSE, effort=Effort(progress=lambda *a: seen.append(a))
    )
    assert seen[0] == ("solving blocks", 0, 3)
    assert all(done <= total for _, done, total in seen)


def test_recomputation_before_the_loss_is_refused():
    graph, _ = chain_graph([1, 2])
    with pytest.raises(ValueError, match="before the loss"):
        restrict(graph, with_forgets(graph, [0, 0, *range(1, len(graph.nodes))]))
