"""Planners within a time limit: the best plan so far, and nothing of it where there is no limit."""

from __future__ import annotations

import math
import time

import graphs
import pytest

from remat_codegen.planners import auto, chen, dtr, rockmate
from remat_codegen.planners.base import milp, registry
from remat_codegen.planners.base.deadline import NO_LIMIT, Effort, TimeUp, Watch, check, offer, seconds_left, stoppable, within
from remat_codegen.planners.base.result import Status
from remat_codegen.planners.chain.chain import family_of
from remat_codegen.planners.limited import NOTHING_FOUND, found_nothing_in_time, limited, quickest
from remat_codegen.schedule import Compute, simulate, validate, without_recomputation


@pytest.fixture(scope="module")
def case():
    """A graph, its costs, and a budget that some plans keep to."""
    graph, profile = graphs.chain_graph([1, 2, 3, 1, 2])
    return graph, profile, simulate(graph, profile, without_recomputation(graph)).peak_bytes * 7 // 10


@stoppable
def for_ever(graph, profile, budget_bytes, *, effort):
    """A planner that would never end."""
    while True:
        check()
        time.sleep(0.001)


def test_without_a_limit_nothing_is_stopped_and_planners_are_themselves():
    check()
    offer(None, (), 0, 0)
    assert seconds_left(7.0) == 7.0 and limited("auto", None).func is registry.PLANNERS["auto"]


def test_within_a_limit_the_time_is_shared_out_and_ends():
    with within(Watch(None, 0, time.monotonic() + 0.2)):
        assert 0.1 <= seconds_left(7.0) <= 0.2 and seconds_left(0.15) <= 0.15
        with pytest.raises(TimeUp):
            for_ever(None, None, 0, effort=NO_LIMIT)
    check()


def test_the_best_of_what_quick_planners_find_is_taken(case, monkeypatch):
    graph, profile, budget = case
    monkeypatch.setitem(registry.PLANNERS, "rockmate", for_ever)
    started = time.monotonic()
    plan = limited("rockmate", 1.0)(graph, profile, budget)
    assert time.monotonic() - started < 3
    quick = [p for p in (chen.plan(*case), *(dtr.plan(*case, heuristic=h) for h in ("dtr", "msps"))) if p.schedule is not None]
    quick.append(rockmate.squeezed(*case))
    assert plan.time_ns == min(p.time_ns for p in quick) and plan.peak_bytes <= budget
    assert (plan.planner, plan.status) == ("rockmate", Status.TIME_LIMIT) and plan.notes[0].startswith("stopped after 1 s")
    validate(graph, plan.schedule)


def test_what_the_planner_itself_came_upon_is_taken_where_it_is_better(case, monkeypatch):
    graph, profile, budget = case
    best = auto.plan(*case)
    order = tuple(s.node for s in best.schedule.steps if isinstance(s, Compute))

    @stoppable
    def offering(graph, profile, budget_bytes, *, effort):
        offer(graphs.chain_graph([1])[0], (), 0, 0)  # of a part, which is no plan
        offer(graph, order, best.time_ns, budget_bytes)
        offer(graph, tuple(range(len(graph.nodes))), best.time_ns + 1, budget_bytes)
        offer(graph, tuple(range(len(graph.nodes))), 0, budget_bytes + 1)  # for another limit, on the way
        for_ever(graph, profile, budget_bytes, effort=effort)

    monkeypatch.setitem(registry.PLANNERS, "mincut", offering)
    plan = limited("mincut", 0.2)(graph, profile, budget)
    assert (plan.time_ns, plan.peak_bytes) == (best.time_ns, best.peak_bytes)


def test_offers_above_the_budget_are_no_plans(case, monkeypatch):
    graph, profile, budget = case

    @stoppable
    def offering(graph, profile, budget_bytes, *, effort):
        offer(graph, tuple(range(len(graph.nodes))), 0, budget_bytes)
        for_ever(graph, profile, budget_bytes, effort=effort)

    monkeypatch.setitem(registry.PLANNERS, "auto", offering)
    assert limited("auto", 0.2)(graph, profile, budget).peak_bytes <= budget
    plan = limited("auto", 0.2)(graph, profile, 1)
    assert plan.schedule is None and plan.status is Status.INFEASIBLE and NOTHING_FOUND in plan.notes


def test_the_beginning_of_the_search_is_a_plan_for_every_budget_that_it_knows_one_for(case):
    graph, profile, budget = case
    smallest = rockmate.squeezed(graph, profile, 1)
    assert smallest.schedule is None and smallest.minimum_bytes < budget
    for nbytes in (smallest.minimum_bytes, budget):
        plan = rockmate.squeezed(graph, profile, nbytes)
        validate(graph, plan.schedule)
        assert simulate(graph, profile, plan.schedule).peak_bytes == plan.peak_bytes <= nbytes
    assert plan.time_ns < simulate(graph, profile, smallest.smallest).time_ns


def test_quick_planners_that_find_nothing_prove_nothing(case):
    graph, profile, budget = case
    assert quickest(graph, profile, budget, 60.0).schedule is not None
    nothing = quickest(graph, profile, 1, 60.0)
    assert found_nothing_in_time(nothing) and 1 < nothing.minimum_bytes < budget


@pytest.mark.parametrize("name", ["rockmate", "auto", "rotor", "checkmate", "best"])
def test_with_time_enough_the_plan_is_the_planner_s_own(name, case):
    graph, profile, budget = case
    family_of.cache_clear()
    auto.frontier.cache_clear()
    plan = limited(name, 120.0)(graph, profile, budget)
    assert plan.status is not Status.TIME_LIMIT or name == "checkmate"
    assert name in ("checkmate", "best") or plan == registry.PLANNERS[name](graph, profile, budget)


def test_what_a_deadline_cut_short_is_not_remembered(case, monkeypatch):
    """A solver may stop a moment before its time is over."""
    graph, profile, budget = case
    rockmate.forget()
    own = rockmate.plan(graph, profile, budget)
    rockmate.forget()
    with monkeypatch.context() as hurried:
        hurried.setattr(milp, "seconds_left", lambda most: most / 2)
        hurried.setattr(milp.Program, "_result", lambda *_: milp.Result(Status.TIME_LIMIT, math.inf, 0.0, math.inf, ()))
        assert limited("rockmate", 60.0)(graph, profile, budget).notes[0].startswith("stopped after")
    assert rockmate.plan(graph, profile, budget) == own


def test_which_solver_works_does_not_depend_on_the_time_that_is_left():
    milp.solver.cache_clear()
    with within(Watch(None, 0, 0.0)):
        found = milp.solver()
    milp.solver.cache_clear()
    assert found == milp.solver()


def test_inside_of_another_planner_its_deadline_counts(case):
    @stoppable
    def inner(graph, profile, budget_bytes, *, effort):
        offer(graph, (0,), 1, budget_bytes)
        for_ever(graph, profile, budget_bytes, effort=effort)

    outer = stoppable(lambda *given, effort: inner(*given, effort=Effort.lasting(60.0)))
    started = time.monotonic()
    with pytest.raises(TimeUp) as stopped:
        outer(*case, effort=Effort.lasting(0.1))
    assert time.monotonic() - started < 5 and stopped.value.best == (0,)


@pytest.mark.parametrize("name", ["rockmate", "auto", "dtr", "mincut", "knapsack"])
def test_planners_stop_in_time(name):
    """On a graph that takes them longer, from nothing that an earlier plan has left."""
    graph, profile = graphs.chain_graph(list(range(30)))
    family_of.cache_clear()
    auto.frontier.cache_clear()
    budget = simulate(graph, profile, without_recomputation(graph)).peak_bytes // 2
    started = time.monotonic()
    plan = limited(name, 0.5)(graph, profile, budget)
    assert time.monotonic() - started < 5
    if plan.schedule is not None:
        validate(graph, plan.schedule)
        assert plan.peak_bytes <= budget
