"""Every planner, on random graphs: valid, writable by the emitter, within budget or INFEASIBLE."""

from __future__ import annotations

import time

import graphs
import pytest

from remat_codegen.graph.ir import Kind
from remat_codegen.planners import best, checkmate, chen, dtr, knapsack, mincut, none_and_all, rockmate, rotor
from remat_codegen.planners.base import rk_checkmate
from remat_codegen.planners.base.deadline import Effort, stoppable
from remat_codegen.planners.base.judge import restrict
from remat_codegen.planners.base.registry import PLANNERS
from remat_codegen.planners.base.result import Status
from remat_codegen.planners.chain.options import Grid
from remat_codegen.planners.chain.rk_rotor import Table
from remat_codegen.planners.search import improve
from remat_codegen.schedule import Compute, simulate, validate, without_recomputation
from remat_codegen.schedule.lives import Lives, Problem
from remat_codegen.schedule.order import fixed, without_dead_runs

QUICK = {"auto": {"work_per_node": 20}, "checkmate": {"effort": Effort(per_solve=10.0)}, "rockmate": {"grid": Grid(4, 2)}}
SLOW = {"best"}


def need(graph, profile):
    """The peak without recomputation."""
    return simulate(graph, profile, without_recomputation(graph)).peak_bytes


def plainly_without_dead_runs(graph, order):
    """One after the other, the repeated runs of which nothing is read before it is written again."""
    order = list(order)
    for position in reversed(range(len(order))):
        node = graph.nodes[order[position]]
        if order[position] in order[:position] and not any(is_read(graph, d, order[position + 1 :]) for d in node.writes):
            del order[position]
    return tuple(order)


def is_read(graph, data, order):
    """Whether a data node is read in an order before a run that writes it anew; a gradient is added to, which reads it."""
    for node in (graph.nodes[i] for i in order):
        if data in node.reads or (data in node.writes and graph.data[data].kind is Kind.GRADIENT):
            return True
        if data in node.writes:
            return False
    return data in graph.outputs


def check(graph, profile, budget, plan):
    """What must hold of any plan."""
    if plan.schedule is None:
        assert plan.status is Status.INFEASIBLE
        assert plan.minimum_bytes is None or plan.minimum_bytes > budget
        return
    validate(graph, plan.schedule)
    restrict(graph, plan.schedule)
    timeline = simulate(graph, profile, plan.schedule)
    assert (timeline.time_ns, timeline.peak_bytes) == (plan.time_ns, plan.peak_bytes)
    assert plan.peak_bytes <= budget and plan.time_ns >= sum(profile.time_ns)


@pytest.mark.parametrize("name", [n for n in PLANNERS if n not in SLOW])
def test_valid_and_within_budget(name):
    for seed in range(6):
        graph, profile = graphs.random_graph(seed, 4 + seed % 3, once=seed % 2 == 1)
        most = need(graph, profile)
        for budget in graphs.budgets(most // 2, most, 3):
            plan = PLANNERS[name](graph, profile, budget, **QUICK.get(name, {}))
            check(graph, profile, budget, plan)
            optimum = graphs.least_time(graph, profile, budget) if graph.loss <= 5 else None
            if plan.schedule is not None and optimum is not None:
                assert plan.time_ns >= optimum
                assert plan.time_ns == optimum or plan.status is not Status.OPTIMAL
            if plan.schedule is not None and graph.loss <= 5:
                assert optimum is not None


@pytest.mark.parametrize("name", [n for n in PLANNERS if n not in {"best", "checkmate", "rockmate"}])
def test_chains_and_the_same_plan_twice(name):
    graph, profile = graphs.chain_graph([1, 2, 3, 1])
    most = need(graph, profile)
    for budget in graphs.budgets(most // 2, most, 4):
        plan = PLANNERS[name](graph, profile, budget)
        check(graph, profile, budget, plan)
        assert PLANNERS[name](graph, profile, budget).schedule == plan.schedule


def test_best_is_never_worse_than_any():
    for graph, profile in (graphs.random_graph(3, 7), graphs.chain_graph([1, 2, 1])):
        most = need(graph, profile)
        for budget in graphs.budgets(most * 6 // 10, most, 3):
            best = PLANNERS["best"](graph, profile, budget, effort=Effort.lasting(20.0))
            check(graph, profile, budget, best)
            others = [PLANNERS[n](graph, profile, budget, **QUICK.get(n, {})) for n in PLANNERS if n != "best"]
            times = [p.time_ns for p in others if p.schedule is not None]
            assert not times or (best.schedule is not None and best.time_ns <= min(times))


def test_the_ends():
    graph, profile = graphs.chain_graph([1, 2])
    most = need(graph, profile)
    assert none_and_all.none(graph, profile, most).status is Status.OPTIMAL
    assert none_and_all.none(graph, profile, most - 1).minimum_bytes == most
    rebuilt = none_and_all.all_(graph, profile, most)
    assert rebuilt.schedule is not None and rebuilt.peak_bytes < most


@pytest.mark.parametrize("seed", range(5))
def test_rotor_is_the_best_sequence_of_its_options(seed):
    graph, profile = graphs.chain_graph([seed, seed + 1, seed, seed + 2])
    links = rotor.chain_of(graph, profile).links
    families = [link.family for link in links]
    assert all(len(f.options) <= 2 for f in families)
    most = need(graph, profile)
    times = Table(links, 1, 2 * most).time_ns
    for budget in graphs.budgets(most // 3, 2 * most, 8):
        oracle = graphs.best_sequence(families, budget)
        assert times[budget] == (float("inf") if oracle is None else oracle)
    plan = rotor.plan(graph, profile, most - 1, slots=4000)
    check(graph, profile, most - 1, plan)
    assert plan.schedule is not None


@pytest.mark.parametrize("seed", range(4))
def test_rockmate_is_never_worse_than_rotor(seed):
    graph, profile = graphs.chain_graph([seed, seed + 1, seed + 1, seed])
    most = need(graph, profile)
    for budget in graphs.budgets(most // 2, most, 5):
        one, other = rotor.plan(graph, profile, budget), rockmate.plan(graph, profile, budget)
        if one.schedule is not None:
            assert other.schedule is not None and other.time_ns <= one.time_ns


def test_segments_follow_the_square_root():
    count = 64
    ops = [graphs.Op((i - 1,) if i else (), 4, saves=(i,), time=1, back=1) for i in range(count)]
    graph, profile = graphs.training_graph(ops)
    plan = chen.plan(graph, profile, 10**6, segments=8)
    assert plan.time_ns - sum(profile.time_ns) <= count
    assert plan.peak_bytes <= 4 * (8 + 8 + 4) < need(graph, profile) / 2
    assert chen.plan(graph, profile, 10**6, segments=1).time_ns == sum(profile.time_ns)
    assert chen.plan(graph, profile, plan.peak_bytes).time_ns <= plan.time_ns


@pytest.mark.parametrize("heuristic", dtr.HEURISTICS)
def test_dtr_in_all_its_settings(heuristic):
    for seed in range(8):
        graph, profile = graphs.random_graph(seed, 10, once=seed % 2 == 1)
        for budget in graphs.budgets(need(graph, profile) // 2, need(graph, profile), 4):
            for options in ({}, {"eager": False}, {"ignore_small": True}, {"sampling": True, "seed": 3}):
                check(graph, profile, budget, dtr.plan(graph, profile, budget, heuristic=heuristic, **options))
            free = dtr.plan(graph, profile, budget, heuristic=heuristic, recompute_in_forward=True)
            if free.schedule is not None:
                validate(graph, free.schedule)
                assert free.peak_bytes <= budget


def test_dtr_neighbourhoods():
    ops = [graphs.Op((i - 1,) if i else (), 4, saves=(i,), time=i + 1) for i in range(5)]
    graph, profile = graphs.training_graph(ops)
    for heuristic, expected in (("dtr", [2 + 3, 2 + 3]), ("msps", [0, 2 + 3]), ("eq", [5, 5])):
        runtime = dtr.Runtime(graph, profile, 10**6, dtr.Settings(heuristic))
        runtime.resident[:5] = [True] * 5
        for data in (1, 2):
            runtime._evict(data)
        sizes = [runtime.score.of(d) * 4 * (1 if heuristic == "msps" else runtime.clock + 1) for d in (0, 3)]
        assert sizes == [1 + expected[0], 4 + expected[1]]
    with pytest.raises(ValueError, match="no heuristic"):
        dtr.plan(graph, profile, 1, heuristic="fifo")


def test_dtr_runs_out_of_memory():
    graph, profile = graphs.chain_graph([1, 2])
    plan = dtr.plan(graph, profile, 1)
    assert plan.status is Status.INFEASIBLE and "out of memory" in plan.notes[0]


@pytest.mark.parametrize("seed", range(6))
def test_the_cut_saves_the_fewest_bytes(seed):
    graph, _ = graphs.random_graph(seed, 6, once=seed % 2 == 1)
    runs_once = fixed(graph)
    early = [d for d, p in enumerate(graph.producers) if p[0] < graph.loss]
    wanted = {d for n in graph.nodes[graph.loss :] for d in n.reads if d in early}

    def enough(saved):
        pending, seen = [d for d in wanted if d not in saved], set()
        while pending:
            data = pending.pop()
            producer = graph.producers[data][0]
            if producer in runs_once and data not in saved:
                return False
            if data not in seen:
                seen.add(data)
                pending.extend(d for d in graph.nodes[producer].reads if d not in saved)
        return True

    outputs = set(graph.outputs)
    free = [d for d in early if d not in outputs]
    sets = ({d for i, d in enumerate(free) if mask >> i & 1} | outputs for mask in range(1 << len(free)))
    least = min(sum(graph.data[d].nbytes for d in s - outputs) for s in sets if enough(s))
    saved = mincut.least_saved(graph, frozenset(i for i in runs_once if i < graph.loss))
    assert enough(saved | outputs) and sum(graph.data[d].nbytes for d in saved - outputs) == least


def test_the_knapsack_never_takes_too_much():
    values, weights = [5, 4, 3, 9], [4000, 3001, 2999, 5000]
    for kept in knapsack.keep_most(values, weights, 15):
        assert sum(weights[i] for i in kept) <= sum(weights)
    found = knapsack.keep_most([6, 5, 5], [3, 2, 2], 8)
    assert found[0] == {0, 1, 2} and frozenset({1, 2}) in found and found[-1] == frozenset()


@pytest.mark.parametrize("seed", range(8))
def test_improvement_never_hurts(seed):
    graph, profile = graphs.random_graph(seed, 5 + seed % 5, once=seed % 2 == 1)
    most = need(graph, profile)
    for budget in graphs.budgets(most // 2, most, 4):
        for name in ("all", "chen", "dtr", "dtr-size", "checkmate-lp"):
            before = PLANNERS[name](graph, profile, budget)
            after = improve.improve(graph, profile, budget, before, effort=Effort.lasting(5.0))
            check(graph, profile, budget, after)
            if before.schedule is None:
                assert after is before
                continue
            assert after.schedule is not None and after.time_ns <= before.time_ns
            order = [s.node for s in before.schedule.steps if isinstance(s, Compute)]
            costs = improve.Costs(Problem(graph, profile), order)
            assert (costs.peak, costs.time) == (before.peak_bytes, before.time_ns)
            assert costs.memory.tolist() == Lives(costs.problem, order).during.tolist()
            twice = [
                *order[: graph.loss + 1],
                *(i for i in range(graph.loss) if i not in fixed(graph)),
                *order[graph.loss + 1 :],
            ]
            assert without_dead_runs(graph, twice) == plainly_without_dead_runs(graph, twice)
            if graph.loss <= 5:
                assert after.time_ns >= graphs.least_time(graph, profile, budget)


def test_checkmate_proves_and_falls_back():
    graph, profile = graphs.random_graph(5, 6)
    budget = need(graph, profile) * 8 // 10
    plan = checkmate.plan(graph, profile, budget, effort=Effort.lasting(20.0))
    solved = rk_checkmate.solve(graph, profile, budget)
    if solved.order is None:
        assert plan.schedule is None
    else:
        assert plan.status is Status.OPTIMAL and plan.time_ns == sum(profile.time_ns[i] for i in solved.order)
    deep, costs = graphs.chain_graph([1] * 60)
    assert not checkmate.writable(deep)
    fallen = checkmate.plan(deep, costs, need(deep, costs) // 2, effort=Effort.lasting(5.0))
    assert fallen.planner == "checkmate" and fallen.status is Status.TOO_LARGE and "too many" in fallen.notes[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_best_is_near_the_proven_optimum(seed):
    """On graphs of up to 40 compute nodes checkmate proves its optimum; best is within 1 % of it."""
    makers = (
        lambda: graphs.random_graph(seed, 12 + seed, once=seed % 2 == 1),
        lambda: graphs.chain_graph([seed, seed + 1, seed, 3]),
        lambda: graphs.unet_graph(seed, 2, 3),
        lambda: graphs.dense_graph(seed, 19, 6),
    )
    for make in makers:
        graph, profile = make()
        assert len(graph.nodes) <= 40
        for budget in (need(graph, profile) * share // 10 for share in (5, 8)):
            optimum = checkmate.plan(graph, profile, budget, effort=Effort.lasting(60.0))
            best, rounded = PLANNERS["best"](graph, profile, budget), checkmate.approximate(graph, profile, budget)
            check(graph, profile, budget, best)
            check(graph, profile, budget, rounded)
            assert optimum.status in (Status.OPTIMAL, Status.INFEASIBLE)
            if optimum.schedule is not None:
                assert best.schedule is not None and best.time_ns <= optimum.time_ns * 1.01
                assert rounded.schedule is not None or budget < need(graph, profile) * 6 // 10


def test_best_stops_a_planner_whose_time_is_over(monkeypatch):
    """Each look at the clock takes a second, and nothing else any time."""
    graph, profile = graphs.random_graph(5, 12)
    budget = need(graph, profile) * 8 // 10
    clock = iter(range(10**6))
    for solved_exactly in ("EXACT", "SEARCHED"):  # which needs no others
        monkeypatch.setattr(best, solved_exactly, 0)
    monkeypatch.setattr(best.time, "monotonic", lambda: float(next(clock)))
    found = best.plan(graph, profile, budget, effort=Effort.lasting(200.0))
    check(graph, profile, budget, found)
    late = next(n for n in found.notes if n.startswith("no time for"))
    assert "dtr-dtr" not in late and "all" in late


def test_best_stops_in_the_middle_of_a_planner():
    @stoppable
    def endless(graph, profile, budget_bytes, *, effort):
        while True:
            effort.tell("going on", 0, 1)

    graph, profile = graphs.random_graph(5, 4)
    assert best._run(endless, graph, profile, 1, time.monotonic() + 0.01) is None
    assert best._run(none_and_all.none, graph, profile, 10**6, time.monotonic() - 1) is None
