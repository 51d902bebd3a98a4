"""What is left free for generator states, and plans that need fewer of them."""

import re
from dataclasses import replace

import pytest
from graphs import Op, training_graph

from remat_codegen.ask.request import Request
from remat_codegen.errors import BudgetError
from remat_codegen.graph.drawing import GENERATOR_STATE_BYTES
from remat_codegen.planners import checkmate, dtr, rockmate
from remat_codegen.planners.base.reserve import Reserve, plan_within
from remat_codegen.planners.base.result import Status
from remat_codegen.run import pipeline
from remat_codegen.schedule import Compute, Schedule, simulate, without_recomputation
from remat_codegen.schedule.order import order_of
from remat_codegen.show.results import Progress

SMALL = """
import torch
from torch import nn

def dropping():
    layers = [nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 32)) for _ in range(6)]
    return nn.Sequential(*layers)

def dropping_inputs():
    return (torch.randn(24, 32),)
"""


def dropping_chain(nbytes):
    """Eight cheap operations after one another; what each of them writes is saved for its backward."""
    reads = [(), *((i,) for i in range(7))]
    return training_graph([Op(r, nbytes, 0, (i,), 1 + i, 2) for i, r in enumerate(reads)])


def within(graph, profile, limit, reserve):
    plain = simulate(graph, profile, without_recomputation(graph))
    return plan_within(lambda g, b: rockmate.plan(g, profile, b), graph, profile, limit, plain.peak_bytes, reserve)


def test_states_are_counted_for_what_runs_again():
    reserve = Reserve(100, frozenset({1, 3, 4}))
    assert reserve.needed_bytes([0, 1, 2, 3, 4]) == 100
    assert reserve.needed_bytes([0, 1, 2, 3, 4, 3, 3, 2]) == 100 + 2 * GENERATOR_STATE_BYTES
    assert reserve.most_bytes == 100 + 4 * GENERATOR_STATE_BYTES


def test_a_file_of_functions_holds_states_from_the_first_run_on():
    schedule = Reserve(100, frozenset({1, 2})).with_states(Schedule(tuple(map(Compute, [0, 1, 2, 3, 1, 0]))))
    held = {1: 2, 2: 1, 3: 1, 4: 2, 5: 1}  # one more while node 1 draws; node 2 does so once
    assert schedule.beside_bytes == {position: n * GENERATOR_STATE_BYTES for position, n in held.items()}


def test_large_random_results_are_planned_once():
    """Where states are nothing beside the data, there is one plan, which leaves room for all of them."""
    graph, profile = dropping_chain(10**8)
    reserve, calls = Reserve(7, frozenset(range(1, 7))), []
    plan_within(lambda g, b: calls.append((g, b)) or rockmate.plan(g, profile, b), graph, profile, 6 * 10**8, 10**9, reserve)
    assert calls == [(graph, 6 * 10**8 - reserve.most_bytes)]


@pytest.mark.parametrize("hurried", [False, True])
def test_the_planner_that_was_asked_for_says_how_many_draw_again(hurried):
    """Its fastest plan is taken, the first where time is short; it alone is asked."""
    graph, profile = dropping_chain(12_000)
    plain = simulate(graph, profile, without_recomputation(graph)).peak_bytes
    plans = []

    def run(variant, nbytes):
        plans.append(dtr.plan(variant, profile, nbytes))
        return plans[-1]

    found = plan_within(run, graph, profile, plain - 9000, plain, Reserve(10, frozenset(range(1, 7))), hurried)
    times = [p.time_ns for p in plans if p.schedule is not None]
    assert found.time_ns == min(times) and found.planner == "dtr"
    assert len(times) == 1 if hurried else len(set(times)) > 1


@pytest.mark.parametrize("nbytes", [100, 4000, 6000, 12_000, 40_000])
def test_the_smallest_limit_is_one_that_works_and_states_are_within_it(nbytes):
    graph, profile = dropping_chain(nbytes)
    reserve = Reserve(10, frozenset(range(1, 7)))
    least = within(graph, profile, 0, reserve).minimum_bytes
    at_least = within(graph, profile, least, reserve)
    assert at_least.peak_bytes + reserve.needed_bytes(order_of(at_least.schedule)) <= least
    assert within(graph, profile, least - 1, reserve).schedule is None
    with_all_states = rockmate.plan(graph, profile, 0).minimum_bytes + reserve.most_bytes
    assert least <= with_all_states
    if nbytes < GENERATOR_STATE_BYTES:  # drawing again needs more than it saves
        once = [replace(n, recomputable=n.recomputable and n.id not in reserve.drawing) for n in graph.nodes]
        assert least == rockmate.plan(replace(graph, nodes=tuple(once)), profile, 0).minimum_bytes + 10


def test_a_small_model_that_drops_is_exact_in_little_memory(write_file, tmp_path):
    file, output = write_file(SMALL), tmp_path / "dropping_remat.py"
    request = Request(f"{file}:dropping", "1", output, inputs=f"{file}:dropping_inputs", verify=True, cache=False)
    with pytest.raises(BudgetError) as caught:
        pipeline.generate(request, Progress(None))
    least = re.search(r"\((\d+) bytes\)", caught.value.line())[1]
    report = pipeline.generate(replace(request, budget=least), Progress(None))
    assert report.verify.ok and report.verify.measured_peak_bytes <= int(least)


@pytest.mark.parametrize(("drawing", "proved"), [((), True), ((1, 2, 3), False)])
def test_what_is_proved_with_room_for_states_is_not_claimed_without(drawing, proved):
    graph, profile = dropping_chain(6000)
    plain = simulate(graph, profile, without_recomputation(graph)).peak_bytes
    reserve = Reserve(10, frozenset(drawing))
    found = plan_within(lambda g, b: checkmate.plan(g, profile, b), graph, profile, plain - 9000, plain, reserve)
    assert found.schedule is not None and (found.bound_ns is not None) == proved
    assert found.status is Status.OPTIMAL or not proved


def test_what_a_gpus_allocator_may_take_is_left_even_if_nothing_runs_again():
    usual, there = Reserve(9000), Reserve(9000, unsplit_bytes=10**6)
    for order in ((0, 1), (0, 1, 0)):
        assert there.needed_bytes(order) - usual.needed_bytes(order) == 10**6
    assert there.slack_bytes - usual.slack_bytes == there.most_bytes - usual.most_bytes == 10**6
