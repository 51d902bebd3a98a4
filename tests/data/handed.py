"""A model whose parts are given more than they read: what lists hold and nobody reads, and results that one
expression hands on to another."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.o = (nn.Linear(width, width) for _ in range(3))
        self.bias = nn.Parameter(torch.zeros(width))
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)

    def near(self, places, q, k):
        first, _ = places
        return torch.einsum("bnw,mw->bnm", q + self.bias * 0.5, first) + torch.einsum("bnw,bmw->bnm", q * 0.5, k)

    def forward(self, x, places):
        q, k = self.q(x), self.k(x)
        scores = self.near(places, q, k).softmax(-1)
        h = self.dropout(self.o(scores @ x))
        return self.norm(x + h)


class Handed(nn.Module):
    """Blocks that are given a list of places, of which they use the first."""

    def __init__(self, width=64, layers=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def places(self, x):
        _, count, width = x.shape
        at = torch.arange(2.0 * count)[:, None] * torch.linspace(0, 1, width // 2)
        table = torch.cat([at.sin(), at.cos()], -1) + x.detach().mean()
        found = []
        for step in (1, 2):
            index = (torch.arange(count) * step)[:, None].expand(count, width)
            found.append(torch.gather(table, 0, index))
        return found

    def forward(self, x):
        places = self.places(x)
        for block in self.blocks:
            x = block(x, places)
        return x
