"""A model whose attributes hold what forward has made, until the next step has something else for them."""

import torch
from torch import nn


class Block(nn.Module):
    """It leaves its attention for whoever wants to look at it."""

    def __init__(self, width, heads=2):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.attention = None

    def forward(self, x):
        batch, rows, _ = x.shape
        q, k, v = self.qkv(x).view(batch, rows, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attention = torch.softmax(q @ k.transpose(-1, -2), -1)
        self.attention = attention.detach()
        return x + self.out((attention @ v).transpose(1, 2).reshape(x.shape))


class Left(nn.Module):
    """Two blocks, and a head for another time: its result is left with all that autograd has saved for it."""

    def __init__(self, width=32):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(width, 8 * width), nn.GELU(), nn.Linear(8 * width, width), nn.Tanh())
        self.seen = []

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        self.seen = [self.head(x).transpose(1, 2), x.mean()]
        wide = self.head[0](x).tanh()  # noqa: F841
        return (x * 2).cos()
