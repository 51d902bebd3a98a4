"""What tables of parts make of a step: orders that are valid, and as late as autograd asks."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from graphs import Op, chain_graph, random_graph, training_graph

from remat_codegen.graph.ir import total_bytes
from remat_codegen.marked.demand import Again, Held, Keeps, Part, check, forgotten, order_of, run_of, schedule_of
from remat_codegen.schedule import Compute, Forget, Pricing, simulate, validate, without_recomputation


def line(count, **more):
    """A chain in which each backward node reads the value before its own."""
    return training_graph([Op((i - 1,) if i else (), 4, 0, (i - 1,) if i else (), 1, 2, **more) for i in range(count)])


def names(graph, order):
    return " ".join(graph.nodes[n].name for n in order[graph.loss + 1 :])


def test_no_parts_is_the_plain_step():
    graph, _ = random_graph(3, 8)
    assert schedule_of(graph, ()) == without_recomputation(graph)


def test_a_part_runs_again_when_it_is_first_missed():
    graph, _ = line(4)
    assert names(graph, order_of(graph, [Part(1, 1)])) == "b3 f1 b2 b1 b0"


def test_a_part_runs_again_after_those_that_it_is_given():
    graph, _ = line(5)
    assert names(graph, order_of(graph, [Part(1, 1), Part(2, 2)])) == "b4 f1 f2 b3 b2 b1 b0"


def test_parts_run_again_whose_results_only_other_parts_read():
    """Of f1 and f2, no backward node reads anything; what reads f3, f3 is given by them."""
    graph, _ = training_graph([Op((i - 1,) if i else (), 4, 0, (i - 1,) if i > 3 else ()) for i in range(6)])
    assert names(graph, order_of(graph, [Part(1, 1), Part(2, 2), Part(3, 3)])) == "b5 f1 f2 f3 b4 b3 b2 b1 b0"


def test_twice_leaves_nothing_behind_the_first_time():
    graph, _ = line(5)
    parts = [Part(1, 1, again=Again.TWICE), Part(2, 2, again=Again.TWICE), Part(3, 3)]
    assert names(graph, order_of(graph, parts)) == "f1 f2 f3 b4 f1 f2 b3 b2 b1 b0"


def test_twice_is_for_what_saved_the_result_too():
    """Of a value that two backward nodes and, between them, nothing else reads."""
    graph, _ = training_graph([Op((), 4), Op((0,), 4), Op((1,), 4, 0, (1,)), Op((2,), 4), Op((3,), 4, 0, (1,))])
    assert names(graph, order_of(graph, [Part(1, 1)])) == "f1 b4 b3 b2 b1 b0"
    assert names(graph, order_of(graph, [Part(1, 1, again=Again.TWICE)])) == "f1 b4 b3 f1 b2 b1 b0"


@pytest.mark.parametrize(
    ("again", "runs"),
    [
        (Again.ONCE, "f1 f2 f3 f4 b5 b4 b3 b2 b1 b0"),
        (Again.TWICE, "f1 f2 f1 f3 f4 b5 b4 b3 b2 b1 b0"),
        (Again.THRICE, "f1 f2 f1 f3 f1 f4 b5 b4 b3 b2 b1 b0"),
        (Again.FOURFOLD, "f1 f2 f1 f3 f1 f4 b5 b4 b3 f1 b2 b1 b0"),
        (Again.SHARED, "f1 f2 f3 f4 b5 b4 b3 f1 b2 b1 b0"),
    ],
)
def test_how_often_a_part_runs_again_that_three_are_given(again, runs):
    """f2, f3 and f4 read what f1 gives, and so does b2."""
    ops = [Op((), 4), Op((0,), 4), Op((1,), 4, 0, (1,)), Op((1, 2), 4, 0, (2,)), Op((1, 3), 4, 0, (3,)), Op((4,), 4, 0, (4,))]
    graph, _ = training_graph(ops)
    assert names(graph, order_of(graph, [Part(1, 1, again=again), Part(2, 2), Part(3, 3), Part(4, 4)])) == runs


def test_a_part_of_several_nodes_runs_as_far_as_it_is_needed():
    graph, _ = line(6)
    assert names(graph, order_of(graph, [Part(1, 3)])) == "f1 f2 f3 b5 b4 b3 b2 b1 b0".replace("f1 f2 f3 b5", "b5 f1 f2 f3")
    assert names(graph, order_of(graph, [Part(1, 3, Keeps.RESULT)])) == "b5 b4 f1 f2 b3 b2 b1 b0"


def test_a_part_within_a_part_runs_with_it_and_once_more():
    graph, _ = line(6)
    parts = [Part(1, 4), Part(2, 3, outer=0)]
    assert names(graph, order_of(graph, parts)) == "f1 f2 f3 f4 b5 f2 f3 b4 b3 b2 b1 b0"


def test_a_part_runs_on_to_the_last_part_in_it_that_waits():
    """Of its own, nothing is missed after f1; those in it get what they are given all the same, one by one."""
    graph, _ = line(6)
    parts = [Part(1, 4, Keeps.RESULT), *(Part(node, node, outer=0) for node in (2, 3, 4))]
    assert names(graph, order_of(graph, parts)) == "f1 f2 f3 f2 f3 f4 b5 b4 b3 b2 b1 b0"


def test_a_part_around_one_that_is_missed_is_given_what_it_needs():
    """Nothing of the part around f2 and f3 is missed but what f2 makes; yet it has to be given f1's result to run again."""
    ops = [Op((), 4), Op((0,), 4), Op((0,), 4, 0, (0,)), Op((1, 2), 4, 0, (2,)), Op((3,), 4, 0, (3,))]
    graph, _ = training_graph(ops)
    parts = [Part(1, 1), Part(2, 3, Keeps.RESULT), Part(2, 2, outer=1)]
    assert names(graph, order_of(graph, parts)) == "b4 f1 f2 b3 b2 b1 b0"


def test_what_runs_for_one_reader_alone_keeps_what_it_is_given_until_that_has_read():
    """Nobody else reads f2, but its part does not know that."""
    graph, _ = training_graph([Op((), 4), Op((0,), 4), Op((1,), 4), Op((2,), 4, 0, (2,))])
    steps = {again: schedule_of(graph, [Part(2, 2, again=again)]).steps for again in (Again.ONCE, Again.TWICE)}
    reader = Compute(graph.loss + 1)
    gone = {again: found.index(Forget(1)) > found.index(reader) for again, found in steps.items()}
    assert gone == {Again.ONCE: False, Again.TWICE: True}


def test_only_the_result_is_rebuilt_where_what_is_saved_stays():
    graph, _ = training_graph([Op((), 4), Op((0,), 4, 3, (), 5), Op((1,), 4, 0, (1,), 1)])
    phantom = graph.nodes[1].writes[1]
    assert forgotten(graph, [Part(1, 1, Keeps.SAVED)]) == {1}
    assert forgotten(graph, [Part(1, 1, Keeps.RESULT)]) == {phantom}
    assert forgotten(graph, [Part(1, 1)]) == {1, phantom}


def test_what_is_made_once_more_takes_nothing_from_those_who_have_it():
    """The first copy of what is kept lives until its readers have read it, though its node runs again before."""
    graph, _ = training_graph([Op((), 4), Op((0,), 4, 8, (), 5), Op((1,), 4, 0, (1,), 1)])
    phantom = graph.nodes[1].writes[1]
    steps = schedule_of(graph, [Part(1, 1, Keeps.SAVED)]).steps
    runs = [i for i, s in enumerate(steps) if getattr(s, "node", None) == 1]
    assert len(runs) == 2
    assert not any(getattr(s, "data", None) == phantom for s in steps[: runs[1]])


def test_what_a_part_within_another_one_keeps_is_kept():
    graph, _ = training_graph([Op((), 4), Op((0,), 4, 3, (), 5), Op((1,), 4, 0, (1,), 1), Op((2,), 4, 0, (2,), 1)])
    phantom = graph.nodes[1].writes[1]
    assert forgotten(graph, [Part(1, 2), Part(1, 1, Keeps.SAVED, outer=0)]) == {1, 2}
    assert phantom in forgotten(graph, [Part(1, 2), Part(1, 1, outer=0)])


def test_a_result_that_its_own_backward_reads_stays_with_what_is_saved():
    graph, _ = training_graph([Op((), 4), Op((0,), 4, 0, (1,), 5), Op((1,), 4, 0, (1,), 1)])
    assert forgotten(graph, [Part(1, 1, Keeps.SAVED)]) == frozenset()


def test_outputs_stay():
    graph, _ = line(3)
    assert 2 not in forgotten(graph, [Part(2, 2)])


@pytest.mark.parametrize(
    "parts",
    [
        [Part(2, 1)],
        [Part(0, 2), Part(1, 1)],
        [Part(1, 2), Part(2, 3)],
        [Part(1, 1), Part(0, 2, outer=0)],
        [Part(3, 4)],
    ],
)
def test_parts_that_do_not_nest_are_refused(parts):
    graph, _ = line(4)
    with pytest.raises(ValueError, match="part"):
        check(graph, parts)


def test_what_runs_once_is_no_part_of_its_own():
    graph, _ = training_graph([Op((), 4), Op((0,), 4, 0, (0,), recomputable=False), Op((1,), 4, 0, (1,))])
    with pytest.raises(ValueError, match="runs once"):
        check(graph, [Part(1, 1)])


def _again(rng):
    return rng.choice(list(Again)) if rng.random() < 0.5 else Again.ONCE


def random_parts(graph, rng):
    """Parts of one or more nodes, some of them within others."""
    found, at = [], 0
    while at < graph.loss:
        length = rng.randint(1, 4)
        last = min(at + length, graph.loss) - 1
        if rng.random() < 0.6 and all(n.recomputable for n in graph.nodes[at : last + 1]):
            outer = len(found)
            found.append(Part(at, last, rng.choice(list(Keeps)), _again(rng)))
            if last > at and rng.random() < 0.6:
                first = rng.randint(at, last)
                found.append(Part(first, last, rng.choice(list(Keeps)), _again(rng), outer))
        at = last + 1
    return found


@pytest.mark.parametrize("seed", range(60))
def test_any_table_gives_a_valid_step(seed):
    rng = random.Random(seed)
    graph, profile = random_graph(seed, 12, once=seed % 2 == 0) if seed % 3 else chain_graph([1, 2, 1, 1])
    early = tuple(total_bytes(graph, n.reads) if n.id > graph.loss and rng.random() < 0.5 else 0 for n in graph.nodes)
    profile = replace(profile, early_bytes=early).with_gradients_going_early()
    parts = random_parts(graph, rng)
    check(graph, parts)
    schedule = schedule_of(graph, parts)
    validate(graph, schedule)
    timeline, ran = simulate(graph, profile, schedule), run_of(graph, parts)
    assert timeline.time_ns >= sum(profile.time_ns)
    pricing = Pricing(graph, profile)  # as the search does, without a schedule
    priced = pricing.peak_bytes(ran.order, ran.held_at, ran.beside_bytes), pricing.time_ns(ran.order)
    assert priced == (timeline.peak_bytes, timeline.time_ns)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_forgotten_is_not_alive_at_the_loss(seed):
    graph, _ = random_graph(seed, 10)
    parts = random_parts(graph, random.Random(seed))
    alive, gone = set(), forgotten(graph, parts)
    for step in schedule_of(graph, parts).steps:
        if hasattr(step, "data"):
            alive.discard(step.data)
            continue
        alive.update(graph.nodes[step.node].writes)
        if step.node == graph.loss:
            break
    assert alive.isdisjoint(d for d in gone if graph.loss not in graph.readers[d])


@pytest.mark.parametrize(
    ("parts", "order", "states"),
    [
        ([Part(1, 1), Part(3, 4)], "f3 f4 b5 b4 b3 f1 b2 b1 b0", "0 21 231 1 11 111 200 0"),
        ([Part(1, 4), Part(2, 2, outer=0)], "f1 f2 f3 f4 b5 b4 f2 b3 b2 b1 b0", "0 13 121 1 2333 11 20 000"),
        ([Part(1, 2, late=True)], "b5 b4 b3 b2 b1 b0", "0 12 111 1 1111 00"),
        (
            [Part(1, 4, again=Again.TWICE), Part(1, 3, outer=0)],
            "f1 f2 f3 f4 b5 f1 f2 f3 b4 b3 b2 b1 b0",
            "0 2232 11 2222 1 222 00000",
        ),
        ([Part(1, 1, again=Again.TWICE), Part(2, 2)], "b5 b4 f1 f2 b3 f1 b2 b1 b0", "0 23 222 2 22331200 0"),
    ],
)
def test_states_of_generators_are_held_until_a_part_has_run_for_the_last_time(parts, order, states):
    """A part that draws nothing, as f3 and f4 do here, has one while it first runs, and another to compare when it has."""
    graph, _ = line(6)
    ran = run_of(graph, parts, Held(drawing=frozenset({1, 2}), state_bytes=1))
    assert names(graph, ran.order) == order
    assert [ran.beside_bytes.get(i, 0) for i in range(len(ran.order))] == [int(n) for n in states.replace(" ", "")]
