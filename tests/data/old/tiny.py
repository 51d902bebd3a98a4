"""The model of the files beside this one, which older versions of remat-codegen wrote."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, layers=4, width=32):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 8)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def example_inputs():
    return (torch.randn(64, 32),)
