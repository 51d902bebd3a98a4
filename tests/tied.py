"""A small model with tied weights and parts, and two processes that train together."""

from __future__ import annotations

import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

from remat_codegen.parts import parts


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc, self.proj = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.proj(parts(self).part("gelu", F.gelu, self.fc(self.norm(x))))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.h, self.head = (
            nn.Embedding(20, 8),
            nn.ModuleList(Block() for _ in range(3)),
            nn.Linear(8, 20, bias=False),
        )
        self.head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.wte(tokens)
        for block in self.h:
            x = block(x)
        return self.head(x)


PLAN = {"": "h.0/inside h.1", "h.0": "norm gelu", "h.1": "gelu/inside", "h.2": "norm/twice gelu"}
TOKENS = torch.randint(0, 20, (4, 6), generator=torch.Generator().manual_seed(0))


def _in_group(rank, port, run, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        results[rank] = run(rank)
    finally:
        dist.destroy_process_group()


def in_two(run):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(_in_group, (port, run, results), nprocs=2)
        return [results[0], results[1]]
