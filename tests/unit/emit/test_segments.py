"""How a schedule is read as a program: segments, copies, and what has to be named."""

from __future__ import annotations

import pytest
from graphs import Op, training_graph

from remat_codegen.emit.segments import Role, divide
from remat_codegen.graph.ir import Kind
from remat_codegen.schedule import Compute, with_forgets

# Four operations in a row: each saves its input and its output, the third beside them a phantom. Two blocks of two.
# Nodes: 0 1 2 3, the loss 4, then the way back of 3 2 1 0 as 5 6 7 8.
OPS = [Op((), 10, 0, (0,)), Op((0,), 20, 0, (0, 1)), Op((1,), 30, 5, (1, 2)), Op((2,), 40, 0, (2,))]
GRAPH, _ = training_graph(OPS, (2, 2))
PHANTOM = next(d.id for d in GRAPH.data if d.kind is Kind.PHANTOM)
PLAIN = (0, 1, 2, 3, 4, 5, 6, 7, 8)


def program(order):
    return divide(GRAPH, with_forgets(GRAPH, order))


def nodes(found, segment):
    return [found.node_at(p).id for p in segment.positions if found.node_at(p) is not None]


@pytest.mark.parametrize(
    ("order", "segments"),
    [
        pytest.param(
            PLAIN,
            [
                ("forward", 0, [0, 1]),
                ("forward", 1, [2, 3]),
                ("backward", 2, [4]),
                ("backward", 1, [5, 6]),
                ("backward", 0, [7, 8]),
            ],
            id="each block goes forward once and back once, the loss stands alone",
        ),
        pytest.param(
            (0, 1, 2, 3, 4, 2, 5, 6, 7, 8),
            [
                ("forward", 0, [0, 1]),
                ("forward", 1, [2, 3]),
                ("backward", 2, [4]),
                ("backward", 1, [2, 5, 6]),
                ("backward", 0, [7, 8]),
            ],
            id="what is rebuilt for the block's own way back belongs to that",
        ),
        pytest.param(
            (0, 1, 2, 3, 4, 1, 5, 6, 7, 8),
            [
                ("forward", 0, [0, 1]),
                ("forward", 1, [2, 3]),
                ("backward", 2, [4]),
                ("again", 0, [1]),
                ("backward", 1, [5, 6]),
                ("backward", 0, [7, 8]),
            ],
            id="what is rebuilt for another block's is a segment of its own",
        ),
        pytest.param(
            (0, 1, 2, 1, 3, 4, 5, 6, 7, 8),
            [
                ("forward", 0, [0, 1]),
                ("forward", 1, [2]),
                ("again", 0, [1]),
                ("forward", 1, [3]),
                ("backward", 2, [4]),
                ("backward", 1, [5, 6]),
                ("backward", 0, [7, 8]),
            ],
            id="what is rebuilt before the loss is one, too",
        ),
    ],
)
def test_steps_are_divided_by_block_and_role(order, segments):
    found = program(order)
    assert [(str(s.role), s.block, nodes(found, s)) for s in found.segments] == segments


def test_what_is_forgotten_stays_with_what_runs_before():
    found = program(PLAIN)
    positions = [p for s in found.segments for p in s.positions]
    assert positions == list(range(len(found.schedule.steps)))
    assert all(isinstance(found.schedule.steps[s.positions[0]], Compute) for s in found.segments)


@pytest.mark.parametrize(
    ("order", "slots", "groups"),
    [
        pytest.param(PLAIN, set(), set(), id="nothing, where nothing is rebuilt"),
        pytest.param((0, 1, 2, 3, 4, 5, 6, 1, 7, 8), {1}, set(), id="a value that autograd reads once more"),
        pytest.param((0, 1, 2, 3, 4, 1, 2, 5, 6, 7, 8), {1, 2}, {2}, id="a node whose saved tensors it reads once more"),
        pytest.param((0, 1, 2, 3, 4, 5, 0, 6, 7, 8), {0}, set(), id="a value, whichever way back is next"),
        pytest.param((0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8), {0, 1}, set(), id="a value that was made anew before the loss"),
        pytest.param((0, 1, 2, 3, 4, 5, 6, 7, 8, 0), set(), set(), id="not: what is rebuilt and nobody reads"),
    ],
)
def test_what_autograd_finds_again_is_named(order, slots, groups):
    found = program(order)
    assert (found.slots, found.groups) == (slots, groups)


def test_each_run_of_a_node_begins_a_copy_of_what_it_makes():
    found = program((0, 1, 2, 3, 4, 5, 6, 1, 7, 8))
    first, second = found.copies[1]
    steps = found.schedule.steps
    assert steps[first.start] == steps[second.start] == Compute(1)
    assert first.end < second.start < second.end
    assert found.again == {second.start}


def test_what_is_read_is_the_copy_before():
    found = program((0, 1, 2, 3, 4, 5, 6, 1, 7, 8))
    first, second = found.copies[1]
    assert found.copy_at(1, second.start) is first and found.copy_at(1, second.start + 1) is second
    assert found.copy_made(1, second.start) is second


def test_of_an_output_the_first_copy_is_the_one_that_counts():
    found = program((0, 1, 2, 3, 4, 3, 5, 6, 7, 8))
    first, second = found.copies[3]
    assert first.end == len(found.schedule.steps) and second.end == second.start
    assert found.copy_at(3, len(found.schedule.steps)) is first


def test_the_backward_node_that_is_next_is_known_everywhere():
    found = program(PLAIN)
    at = {found.node_at(p).id: found.next_back[p] for p in range(len(found.schedule.steps)) if found.node_at(p)}
    assert at == {0: 5, 1: 5, 2: 5, 3: 5, 4: 5, 5: 6, 6: 7, 7: 8, 8: None}


@pytest.mark.parametrize(
    ("order", "wanted", "back"),
    [
        pytest.param((0, 1, 2, 3, 4, 5, 6, 1, 7, 8), [True, True], [True, False], id="a later copy comes back for autograd"),
        pytest.param((0, 1, 2, 3, 4, 5, 6, 7, 8, 1), [True, False], [False, False], id="not, if autograd does not read it"),
    ],
)
def test_whether_autograd_reads_a_copy_and_whether_one_comes_back(order, wanted, back):
    found = program(order)
    assert [found.wanted_by_autograd(c) for c in found.copies[1]] == wanted
    assert [found.comes_back(1, c) for c in found.copies[1]] == back


def test_keepers_are_reruns_in_other_segments_of_a_block():
    found = program((0, 1, 2, 3, 4, 5, 6, 1, 7, 8))
    (copy,) = found.copies[0]
    (position,) = found.again
    assert found.keepers(0, copy, 0) == [position] and found.keepers(0, copy, 1) == []
    assert found.block_at(position) == 0


def test_a_rerun_in_the_segment_that_made_a_copy_is_no_keeper():
    found = program((0, 1, 2, 3, 4, 5, 6, 0, 1, 7, 8))
    first, second = found.copies[0]
    assert found.keepers(0, first, 0) == [] == found.keepers(0, second, 0)
    assert any(r in found.again for r in second.readers)


@pytest.mark.parametrize(
    ("order", "segment", "parts"),
    [
        pytest.param((0, 1, 2, 3, 4, 2, 5, 6, 7, 8), 3, [[2], [5, 6]], id="a rebuild, and the way back"),
        pytest.param((0, 1, 2, 3, 4, 5, 2, 6, 7, 8), 3, None, id="not: a rebuild in the midst of the way back"),
        pytest.param(PLAIN, 3, None, id="not: a way back without one"),
        pytest.param(PLAIN, 0, None, id="not: what goes forward"),
        pytest.param((0, 1, 2, 3, 4, 1, 5, 6, 7, 8), 3, None, id="not: what is a rebuild already"),
    ],
)
def test_a_way_back_that_begins_with_a_rebuild_can_be_divided(order, segment, parts):
    found = program(order)
    divided = found.divided(found.segments[segment])
    assert (divided and [nodes(found, s) for s in divided]) == parts
    assert divided is None or [s.role for s in divided] == [Role.REBUILD, Role.BACKWARD]


def test_segments_are_exchanged_with_others_of_the_same_positions_and_back():
    found = program((0, 1, 2, 3, 4, 2, 5, 6, 7, 8))
    before, whole = list(found.segments), found.segments[3]
    parts = found.divided(whole)
    found.exchange([whole], parts)
    assert found.segments == [*before[:3], *parts, *before[4:]]
    assert all(found.segment_of[p] is s for s in parts for p in s.positions)
    found.exchange(parts, [whole])
    assert found.segments == before and all(found.segment_of[p] is whole for p in whole.positions)


def test_bytes_of_a_program_are_those_of_its_copies():
    plain, again = program(PLAIN), program((0, 1, 2, 3, 4, 1, 2, 5, 6, 7, 8))
    assert plain.alive_at_loss() == 10 + 20 + 30 + 5 + 40, "gradients do not count"
    assert again.alive_at_loss() == 10 + 40
    assert [plain.kept_bytes(s) for s in plain.segments[:2]] == [(30, 0), (75, 0)]
    assert [again.kept_bytes(s) for s in again.segments[:2]] == [(10, 20), (40, 35)]


def test_a_rebuild_of_its_own_counts_all_that_it_makes_and_others_what_autograd_reads():
    found = program((0, 1, 2, 3, 4, 5, 6, 0, 1, 7, 8))
    whole = next(s for s in found.segments if s.role is Role.BACKWARD and s.block == 0)
    rebuild, _ = found.divided(whole)
    assert found.rebuilt_bytes(whole) == 30 == found.rebuilt_bytes(rebuild)
