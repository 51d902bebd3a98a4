"""The blocks that a GPU's allocator gives for a schedule's pieces of memory, where they are larger than what was asked for.

PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp) takes the smallest free block that is large enough, and splits
it only where more than 1 MiB would be left over, of small ones 512 bytes. What is freed joins its free neighbours. So what a
step takes of its memory depends on the order of all that was before; here that order is followed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from remat_codegen.graph.allocator import BLOCK_BYTES, OWN_SEGMENT_BYTES, SEGMENT_BYTES, SMALL_BYTES, UNSPLIT_BYTES
from remat_codegen.graph.ir import Graph
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule.steps import Compute, Schedule

SHARED_SEGMENT_BYTES = 20 * 2**20  # of pieces that get no segment of their own
STEPS = 2  # from the second one on, what the one before has freed is there


@dataclass(slots=True, eq=False)
class Block:
    """A stretch of a segment, between its neighbours. `place` orders blocks as their addresses do."""

    nbytes: int
    place: tuple[int, int]
    small: bool
    free: bool = False
    before: Block | None = None
    after: Block | None = None

    @property
    def key(self) -> tuple[int, tuple[int, int]]:
        """By which the allocator looks for free ones."""
        return self.nbytes, self.place


class Blocks:
    """The allocator, of which nothing is given back to the device. `used_bytes` are those of the blocks in use."""

    def __init__(self) -> None:
        self.used_bytes = 0
        self._segments = 0
        self._free: dict[bool, list[Block]] = {True: [], False: []}  # by whether they are small, in the order of their keys

    def take(self, nbytes: int) -> Block:
        """A block for a piece."""
        wanted = max(BLOCK_BYTES, -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES)
        small = wanted <= SMALL_BYTES
        free = self._free[small]
        index = bisect_left(free, wanted, key=lambda b: b.nbytes)
        block = free.pop(index) if index < len(free) else self._segment(wanted, small)
        rest = block.nbytes - wanted
        if rest >= BLOCK_BYTES if small else rest > UNSPLIT_BYTES:
            self._split(block, wanted)
        block.free = False
        self.used_bytes += block.nbytes
        return block

    def give(self, block: Block) -> None:
        """Takes a block back."""
        self.used_bytes -= block.nbytes
        block.free = True
        if (after := block.after) is not None and after.free:
            self._leave_out(after)
            self._join(block, after)
        if (before := block.before) is not None and before.free:
            self._leave_out(before)
            self._join(before, block)
            block = before
        insort(self._free[block.small], block, key=lambda b: b.key)

    def _segment(self, wanted: int, small: bool) -> Block:
        self._segments += 1
        own = -(-wanted // SEGMENT_BYTES) * SEGMENT_BYTES
        nbytes = SEGMENT_BYTES if small else own if wanted >= OWN_SEGMENT_BYTES else SHARED_SEGMENT_BYTES
        return Block(nbytes, (self._segments, 0), small)

    def _split(self, block: Block, wanted: int) -> None:
        segment, begin = block.place
        rest = Block(block.nbytes - wanted, (segment, begin + wanted), block.small, True, block, block.after)
        if block.after is not None:
            block.after.before = rest
        block.nbytes, block.after = wanted, rest
        insort(self._free[rest.small], rest, key=lambda b: b.key)

    def _leave_out(self, block: Block) -> None:
        free = self._free[block.small]
        del free[bisect_left(free, block.key, key=lambda b: b.key)]

    def _join(self, block: Block, after: Block) -> None:
        block.nbytes += after.nbytes
        block.after = after.after
        if after.after is not None:
            after.after.before = block


def left_unsplit(graph: Graph, profile: Profile, schedule: Schedule) -> int:
    """How far the peak of a step in blocks is above that of what it asks for. `workspace_bytes` count as one piece each, that
    comes after a node's results."""
    blocks, above = Blocks(), 0
    for _ in range(STEPS):
        taken = dict[int, Block]()
        asked = most_asked = most_used = 0
        for step in schedule.steps:
            if isinstance(step, Compute):
                new = [d for d in graph.nodes[step.node].writes if d not in taken and graph.data[d].nbytes]
                taken |= {d: blocks.take(graph.data[d].nbytes) for d in new}
                asked += sum(graph.data[d].nbytes for d in new)
                room = profile.workspace_bytes[step.node]
                most_asked = max(most_asked, asked + room)
                most_used = max(most_used, _with(blocks, room))
            elif step.data in taken:
                blocks.give(taken.pop(step.data))
                asked -= graph.data[step.data].nbytes
        above = most_used - most_asked
        for block in taken.values():
            blocks.give(block)
    return max(0, above)


def _with(blocks: Blocks, room: int) -> int:
    """The bytes in use while there is a workspace."""
    if not room:
        return blocks.used_bytes
    block = blocks.take(room)
    used = blocks.used_bytes
    blocks.give(block)
    return used
