"""The allocator that is followed without a GPU is PyTorch's."""

from __future__ import annotations

import random

import pytest
import torch

MIB = 2**20


@pytest.mark.parametrize("seed", range(4))
def test_blocks_are_those_that_the_allocator_gives(seed, device):
    from remat_codegen.schedule.blocks import Blocks

    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    draw, blocks, there, before = random.Random(seed), Blocks(), [], torch.cuda.memory_allocated(device)
    if torch.cuda.memory_reserved(device):
        pytest.skip("something is held from before, whose segments have room")
    sizes = [draw.randrange(MIB // 2, 24 * MIB) for _ in range(12)]
    for _ in range(400):
        if there and (draw.random() < 0.5 or len(there) > 60):
            tensor, block = there.pop(draw.randrange(len(there)))
            del tensor
            blocks.give(block)
        else:
            nbytes = draw.choice((draw.choice(sizes), draw.randrange(1, 4000), draw.randrange(1, 24 * MIB)))
            there.append((torch.empty(nbytes, dtype=torch.uint8, device=device), blocks.take(nbytes)))
        assert torch.cuda.memory_allocated(device) - before == blocks.used_bytes
