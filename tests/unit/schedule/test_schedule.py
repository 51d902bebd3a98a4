"""The validator rejects what could not run; the simulator's numbers are checked by hand."""

from dataclasses import replace

import pytest
from graphs import Op, training_graph

from remat_codegen.graph.ir import Data, Graph, Kind, Node, Phase
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Compute, Forget, Schedule, simulate, validate, with_forgets, without_recomputation

# f0 writes v0 (4), f1 reads v0 and writes v1 (3) and phantom p1 (2); b1 reads p1 and v0, b0 nothing but its gradient.
GRAPH, PROFILE = training_graph([Op((), 4, 0, (), 10, 20, 1), Op((0,), 3, 2, (0,), 30, 40, 5)], (), (7, 6))
V0, V1, P1, G0, G1 = range(5)
F0, F1, LOSS, B1, B0 = range(5)


def test_plain_schedule_frees_as_early_as_possible():
    schedule = without_recomputation(GRAPH)
    assert schedule.steps == (
        Compute(F0), Compute(F1), Compute(LOSS), Compute(B1), Forget(V0), Forget(P1), Forget(G1), Compute(B0), Forget(G0)
    )  # fmt: skip
    validate(GRAPH, schedule)


def test_simulated_memory_and_time():
    timeline = simulate(GRAPH, PROFILE, without_recomputation(GRAPH))
    # f0: 4 + 1; f1: 4 + 5 + 5; loss: 9 + 3 + 6; b1: 12 + 4 + 5; then v0, p1, g1 go; b0: v1 3 + g0 4 + 1
    assert timeline.during_bytes == (5, 14, 18, 21, 12, 10, 7, 8, 3)
    assert timeline.after_bytes == (4, 9, 12, 16, 12, 10, 7, 7, 3)
    assert (timeline.peak_bytes, timeline.peak_step, timeline.time_ns) == (21, 3, 107)


def test_gradients_that_go_early_are_not_counted_behind_their_node():
    """Whatever is forgotten first: here v0, of 4 bytes, and 12 are left, which is more than b1 ever had."""
    lower = replace(PROFILE, early_bytes=(0, 0, 0, 10, 0)).with_gradients_going_early()
    during = simulate(GRAPH, lower, without_recomputation(GRAPH)).during_bytes
    assert during[3:] == (11, 11, 10, 7, 8, 3)


def test_a_node_run_again_over_its_old_result_needs_room_for_both():
    steps = [Compute(F0), Compute(F0), *without_recomputation(GRAPH).steps[1:]]
    timeline = simulate(GRAPH, PROFILE, Schedule(tuple(steps)))
    assert timeline.during_bytes[1] == 4 + 4 + 1
    assert timeline.after_bytes[1] == 4


def test_forgets_stand_between_copies():
    schedule = with_forgets(GRAPH, [F0, F1, LOSS, F0, B1, B0])
    validate(GRAPH, schedule)
    assert schedule.steps.index(Forget(V0)) == 2  # after f1, its last reader before f0 runs again


def test_contributions_belong_to_one_gradient():
    data = (Data(0, "v", Kind.VALUE, 1), Data(1, "g", Kind.GRADIENT, 8))
    forward = (Node(0, "f", Phase.FORWARD, (), (0,)), Node(1, "loss", Phase.LOSS, (0,), ()))
    backward = tuple(Node(2 + i, f"b{i}", Phase.BACKWARD, (), (1,), 0) for i in range(2))
    graph = Graph((*forward, *backward, Node(4, "b2", Phase.BACKWARD, (1,), (), 0)), data, 1, ())
    schedule = without_recomputation(graph)
    validate(graph, schedule)
    assert [s for s in schedule.steps if isinstance(s, Forget)] == [Forget(0), Forget(1)]
    assert simulate(graph, Profile((1,) * 5, (0,) * 5), schedule).peak_bytes == 8
    early = [s for s in schedule.steps if s != Forget(1)]
    with pytest.raises(ValueError, match="without g"):
        validate(graph, Schedule((*early[:4], Forget(1), *early[4:])))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([Forget(V0)], "not alive"),
        ([Compute(F1)], "before node 0"),
        ([Compute(F0), Forget(V0), Compute(F1)], "without v0"),
        ([Compute(F0), Compute(F1), Compute(LOSS), Compute(LOSS)], "only once"),
        ([Compute(F0)], "ends before"),
        ([*without_recomputation(GRAPH).steps[:-1]], "never forgotten"),
        ([*without_recomputation(GRAPH).steps, Forget(V1)], "output and forgotten"),
    ],
)
def test_bad_schedules_are_rejected(steps, message):
    with pytest.raises(ValueError, match=message):
        validate(GRAPH, Schedule(tuple(steps)))


def test_a_node_that_may_run_once_may_not_run_twice():
    graph, _ = training_graph([Op((), 1, recomputable=False), Op((0,), 1)])
    with pytest.raises(ValueError, match="only once"):
        validate(graph, with_forgets(graph, [0, 0, *range(1, len(graph.nodes))]))


def test_an_output_that_is_computed_again_stays_what_it_was():
    data = (Data(0, "out", Kind.VALUE, 8), Data(1, "saved", Kind.PHANTOM, 4))
    nodes = (
        Node(0, "make", Phase.FORWARD, (), (0, 1)),
        Node(1, "loss", Phase.LOSS, (0,), ()),
        Node(2, "make backward", Phase.BACKWARD, (1,), (), 0, False),
    )
    graph = Graph(nodes, data, 1, (0,))
    schedule = with_forgets(graph, [0, 1, 0, 2])
    validate(graph, schedule)
    assert [s.data for s in schedule.steps if isinstance(s, Forget)] == [1, 1]
    timeline = simulate(graph, Profile((1,) * 3, (0,) * 3), schedule)
    assert timeline.peak_bytes == 8 + 4 + 8  # the caller's, and the second one while it is made
