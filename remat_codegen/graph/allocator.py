"""What PyTorch's caching allocator takes on a GPU for a piece of memory: more than was asked for, and budgets are in what it
takes (`torch.cuda.max_memory_allocated`).

As in c10/cuda/CUDACachingAllocator: blocks are multiples of 512 bytes; from 10 MiB on, a piece gets a segment of its own of
whole 2 MiB, of which up to 1 MiB is left to it rather than split off. Where a piece finds a freed segment instead, up to 1 MiB
may be left to it as well; that depends on the past, and `UNSPLIT_BYTES` is kept in reserve for it.
"""

from __future__ import annotations

BLOCK_BYTES = 512
OWN_SEGMENT_BYTES = 10 * 2**20
SEGMENT_BYTES = 2 * 2**20
UNSPLIT_BYTES = 2**20


def allocated_bytes(nbytes: int, device: str) -> int:
    """Bytes that a piece of `nbytes` takes on a device; as many as it has on the CPU."""
    if not device.startswith("cuda") or not nbytes:
        return nbytes
    block = _multiple(nbytes, BLOCK_BYTES)
    segment = _multiple(block, SEGMENT_BYTES)
    return segment if block >= OWN_SEGMENT_BYTES and segment - block <= UNSPLIT_BYTES else block


def _multiple(nbytes: int, of: int) -> int:
    return -(-nbytes // of) * of
