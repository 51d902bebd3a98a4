"""What PyTorch's caching allocator takes on a GPU for a piece of memory: more than was asked for, and budgets are in what it
takes (`torch.cuda.max_memory_allocated`).

As in c10/cuda/CUDACachingAllocator: blocks are multiples of 512 bytes; from 10 MiB on, a piece gets a segment of its own of
whole 2 MiB, of which up to 1 MiB is left to it rather than split off. Where a piece of more than 1 MiB finds a freed block
instead, up to 1 MiB may be left to it as well. How often that happens depends on all that was before, so that it differs from
one step to the next: `unsplit_bytes` are kept in reserve for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

BLOCK_BYTES = 512
OWN_SEGMENT_BYTES = 10 * 2**20
SEGMENT_BYTES = 2 * 2**20
UNSPLIT_BYTES = SMALL_BYTES = 2**20
MOST_UNSPLIT = 50  # what is in reserve by sizes is at most this part of all pieces, or what is the least in any case


def allocated_bytes(nbytes: int, device: str) -> int:
    """Bytes that a piece of `nbytes` takes on a device; as many as it has on the CPU."""
    if not device.startswith("cuda") or not nbytes:
        return nbytes
    block = _multiple(nbytes, BLOCK_BYTES)
    segment = _multiple(block, SEGMENT_BYTES)
    return segment if block >= OWN_SEGMENT_BYTES and segment - block <= UNSPLIT_BYTES else block


def unsplit_bytes(pieces: Iterable[int], followed: int = 0) -> int:
    """What to keep in reserve for pieces that get larger blocks than they need: two of them as much as can be, and of each size
    one that gets a block of the next size. With layers of 12 widths, up to 4 MiB of 380 were seen, where this gives over 7; for
    a small Llama 1.25, where it gives 2. Where the step without recomputation was `followed`, at least half more than was
    found: of nine models on an H200, 0.6 to 1.45 times that was left, 13.9 MiB of a ViT-B/16's 1,088."""
    found = list(pieces)
    own = min(2 * UNSPLIT_BYTES, max(found, default=0) // 4)
    sizes = sorted({n for n in found if n > SMALL_BYTES})
    next_ones = [b - a for a, b in pairwise(sizes) if b - a <= UNSPLIT_BYTES]
    by_size = max(own, *next_ones, min(own + sum(next_ones), sum(found) // MOST_UNSPLIT))
    return max(by_size, own + followed + followed // 2 if followed else 0)


def _multiple(nbytes: int, of: int) -> int:
    return -(-nbytes // of) * of
