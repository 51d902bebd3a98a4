"""rk-Checkmate against brute force on tiny graphs, and what the solver layer promises."""

import pytest
from graphs import Op, budgets, least_time, random_graph, training_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_codegen.planners.base import milp, rk_checkmate
from remat_codegen.planners.base.judge import judge
from remat_codegen.planners.base.result import Status
from remat_codegen.schedule import Compute, simulate, validate, with_forgets, without_recomputation
from remat_codegen.schedule.order import saved_bytes, without_dead_runs


def plain_peak(graph, profile):
    return simulate(graph, profile, without_recomputation(graph)).peak_bytes


@settings(derandomize=True, max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(2, 5), once=st.booleans())
def test_time_equals_brute_force(seed, count, once):
    graph, profile = random_graph(seed, count, once)
    peak = plain_peak(graph, profile)
    for budget in budgets(peak // 2, peak, 4):
        plan, expected = rk_checkmate.plan(graph, profile, budget), least_time(graph, profile, budget)
        if expected is None:
            assert plan.status is Status.INFEASIBLE and plan.schedule is None
        else:
            assert (plan.status, plan.time_ns, plan.bound_ns) == (Status.OPTIMAL, expected, expected)
            assert plan.peak_bytes <= budget
            judge(graph, profile, plan.schedule)


@settings(derandomize=True, max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(2, 5))
def test_least_peak_is_the_edge_of_what_is_feasible(seed, count):
    graph, profile = random_graph(seed, count)
    found = rk_checkmate.solve(graph, profile, None, minimise_peak=True)
    least = simulate(graph, profile, with_forgets(graph, found.order)).peak_bytes
    assert least_time(graph, profile, least) is not None
    assert least_time(graph, profile, least - 1) is None


@settings(derandomize=True, max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), limit=st.integers(0, 10))
def test_saved_bytes_are_limited(seed, limit):
    graph, profile = random_graph(seed, 5)
    found = rk_checkmate.solve(graph, profile, None, limit)
    # Every op can run again, except the last one, whose value the caller gets: its phantom has to be kept.
    phantoms = sum(graph.data[d].nbytes for d in graph.forward_nodes[-1].writes if d not in graph.outputs)
    assert (found.order is None) == (phantoms > limit)
    assert found.order is None or saved_bytes(graph, found.order) <= limit


def test_saved_counts_what_is_held_over_the_loss_but_not_what_the_loss_reads():
    graph, _ = training_graph([Op((), 4), Op((0,), 3, 2, (0, 1)), Op((1,), 1)])
    assert saved_bytes(graph, range(len(graph.nodes))) == 4 + 3 + 2


@settings(derandomize=True, max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_recomputation_in_the_forward_stages_never_costs_more(seed):
    graph, profile = random_graph(seed, 4)
    budget = plain_peak(graph, profile) - 2
    restricted = rk_checkmate.plan(graph, profile, budget)
    free = rk_checkmate.plan(graph, profile, budget, recompute_in_forward=True)
    if restricted.schedule is not None:
        assert free.time_ns <= restricted.time_ns and free.peak_bytes <= budget
    if free.schedule is not None:
        validate(graph, free.schedule)


def test_a_node_that_runs_once_is_never_run_again():
    ops = [Op((), 9, 0, (), 1, recomputable=False), Op((0,), 9, 0, (0, 1)), Op((1,), 9, 0, (1, 2)), Op((2,), 1)]
    graph, profile = training_graph(ops)
    found = rk_checkmate.solve(graph, profile, None, 9)  # room for one value, and only v0 cannot be rebuilt
    assert [found.order.count(i) for i in range(4)] == [1, 2, 2, 1]
    assert rk_checkmate.solve(graph, profile, None, 8).status is Status.INFEASIBLE


def test_sizes_beyond_the_units_round_up():
    graph, profile = random_graph(3, 5)
    big = [d.__class__(d.id, d.name, d.kind, d.nbytes * 10**9 + 7 * d.id) for d in graph.data]
    graph = graph.__class__(graph.nodes, tuple(big), graph.loss, graph.outputs)
    for budget in budgets(plain_peak(graph, profile) * 6 // 10, plain_peak(graph, profile), 5):
        plan = rk_checkmate.plan(graph, profile, budget)
        assert plan.schedule is None or plan.peak_bytes <= budget


def test_dead_runs_are_dropped():
    graph, _ = training_graph([Op((), 4), Op((0,), 3, 0, (0,)), Op((1,), 1)])
    order = [0, 1, 2, 3, 0, 1, 4, 0, 5, 6]  # v0 is rebuilt twice, v1 for nobody
    assert without_dead_runs(graph, order) == (0, 1, 2, 3, 4, 0, 5, 6)


@pytest.mark.parametrize("solver", ["HIGHS", "CBC"])
def test_solvers_agree_and_are_silent(solver, capfd):
    program = milp.Program(solver)
    items = [program.binary() for _ in range(12)]
    program.at_most([(x, -(i % 5 + 3)) for i, x in enumerate(items)], -23)
    result = program.minimise([(x, i % 7 + 1) for i, x in enumerate(items)], 10, 0)
    choices = [[i for i in range(12) if bits >> i & 1] for bits in range(1 << 12)]
    best = min(sum(i % 7 + 1 for i in c) for c in choices if sum(i % 5 + 3 for i in c) >= 23)
    assert (result.status, result.objective, result.bound, result.gap) == (Status.OPTIMAL, best, best, 0)
    assert sum(result.values[x.idx] * (i % 5 + 3) for i, x in enumerate(items)) >= 23
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("solver", ["HIGHS", "CBC"])
def test_infeasible_programs(solver):
    program = milp.Program(solver)
    program.at_most([(program.binary(), -1)], -2)
    assert program.minimise([], 10, 0).status is Status.INFEASIBLE
    constant = milp.Program(solver)
    constant.at_most([(1, 5)], 4)
    assert constant.minimise([], 10, 0).status is Status.INFEASIBLE


def test_a_stopped_solver_hands_over_its_incumbent(monkeypatch):
    graph, profile = random_graph(11, 5)

    def stopped(self, terms, seconds, gap, original=milp.Program.minimise):
        result = original(self, terms, seconds, gap)
        return milp.Result(Status.TIME_LIMIT, result.objective, 0.0, 1.0, result.values)

    monkeypatch.setattr(milp.Program, "minimise", stopped)
    plan = rk_checkmate.plan(graph, profile, plain_peak(graph, profile))
    assert plan.status is Status.TIME_LIMIT
    assert [s.node for s in plan.schedule.steps if isinstance(s, Compute)][-1] == len(graph.nodes) - 1
