"""Trains a small GPT-2 in several processes: by DistributedDataParallel, or sharded by FSDP2's fully_shard.

    torchrun --nproc-per-node 2 examples/training/torchrun_gpt2.py [--shard]

With remat-codegen there is one line more: take `# remat: ` away from it. The file is the same for all processes:

    remat-codegen examples/gpt2.py:GPT2 --init "layers=3, width=32, heads=2, vocabulary=64, context=24" \
        --inputs "int64[8,24]<64" --budget 60% -o examples/gpt2_remat.py
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).resolve().parent.parent))
from gpt2 import GPT2

# remat: from gpt2_remat import GPT2


def batch(step: int, rank: int) -> torch.Tensor:
    """Numbers that count up from anywhere; every fifth batch is a smaller one."""
    start = torch.randint(64, (3 if step % 5 == 4 else 8, 1), generator=torch.Generator().manual_seed(2 * step + rank))
    return (start + torch.arange(25)) % 64


def main(shard: bool) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = GPT2(layers=3, width=32, heads=2, vocabulary=64, context=24)
    if shard:
        for block in model.h:
            fully_shard(block)
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)  # dropout
    for step in range(200):
        ids = batch(step, rank)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step}: loss {total.item() / dist.get_world_size()!r}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Trains a small GPT-2 in several processes.")
    parser.add_argument("--shard", action="store_true", help="by FSDP2 instead of DistributedDataParallel")
    main(parser.parse_args().shard)
