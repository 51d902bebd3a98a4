"""The blocks that a GPU's allocator gives: by its rules one by one, and of whole steps."""

from __future__ import annotations

import random

import pytest

from remat_codegen.graph.ir import Data, Graph, Kind, Node, Phase
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Compute, Forget, Schedule, left_unsplit
from remat_codegen.schedule.blocks import Blocks

MIB = 2**20


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (1, 512),
        (513, 1024),
        (MIB, MIB),
        (3 * MIB, 3 * MIB),  # of a segment of 20 MiB
        (11 * MIB, 12 * MIB),  # a segment of its own, of which one MiB is too little to be split off
        (10 * MIB + 512, 10 * MIB + 512),
    ],
)
def test_a_piece_gets_a_block(asked, given):
    assert Blocks().take(asked).nbytes == given


def test_a_freed_block_is_taken_as_a_whole_where_little_would_be_left():
    blocks = Blocks()
    first, _ = blocks.take(4 * MIB), blocks.take(5 * MIB)
    blocks.give(first)
    assert blocks.take(3 * MIB + 512).nbytes == 4 * MIB
    assert blocks.used_bytes == 9 * MIB


def test_neighbours_that_are_free_join():
    blocks = Blocks()
    found = [blocks.take(4 * MIB) for _ in range(5)]
    for index in (1, 3, 2):
        blocks.give(found[index])
    assert blocks.take(12 * MIB).nbytes == 12 * MIB and blocks.used_bytes == 20 * MIB


def test_whatever_is_taken_and_given_back_nothing_is_lost():
    draw, blocks, there = random.Random(5), Blocks(), []
    for _ in range(3000):
        if there and draw.random() < 0.5:
            blocks.give(there.pop(draw.randrange(len(there))))
        else:
            there.append(blocks.take(draw.choice((draw.randrange(1, 4000), draw.randrange(1, 30 * MIB)))))
    assert blocks.used_bytes == sum(b.nbytes for b in there)
    for block in there:
        blocks.give(block)
    assert blocks.used_bytes == 0
    assert all(b.before is None and b.after is None for free in blocks._free.values() for b in free)


def chain(*pieces: int) -> Graph:
    """One node after the other, each of which makes a piece."""
    data = tuple(Data(i, f"d{i}", Kind.VALUE, nbytes) for i, nbytes in enumerate(pieces))
    nodes = tuple(Node(i, f"n{i}", Phase.FORWARD, (), (i,)) for i in range(len(pieces)))
    return Graph(nodes, data, len(pieces) - 1, ())


def test_a_step_is_followed_into_its_second_round():
    """The first piece goes, and the last one, which is smaller by less than 1 MiB, gets its block; in the next step, too."""
    graph = chain(4 * MIB, 5 * MIB, 3 * MIB + 512)
    schedule = Schedule((Compute(0), Compute(1), Forget(0), Compute(2), Forget(1), Forget(2)))
    free = Profile((1, 1, 1), (0, 0, 0), "cuda")
    # asked for: 9 MiB at first; then 8 MiB and 512 bytes, in blocks of 9 MiB
    assert left_unsplit(graph, free, schedule) == 0
    more = Profile((1, 1, 1), (0, 0, 30 * MIB), "cuda")
    assert left_unsplit(graph, more, schedule) == MIB - 512


def test_a_workspace_may_get_a_block_that_is_too_large():
    graph = chain(12 * MIB, 2 * MIB)
    schedule = Schedule((Compute(0), Forget(0), Compute(1), Forget(1)))
    assert left_unsplit(graph, Profile((1, 1), (0, 11 * MIB + MIB // 2), "cuda"), schedule) == MIB // 2
