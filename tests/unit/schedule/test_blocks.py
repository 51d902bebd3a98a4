"""The blocks that a GPU's allocator gives: by its rules one by one, and of whole steps."""

from __future__ import annotations

import random

import pytest

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
