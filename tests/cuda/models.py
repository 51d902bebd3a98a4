"""Small models for tests on CUDA devices: each does something that a device decides."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 64


class Made(nn.Module):
    """Makes tensors of its own on the device: numbers, positions, masks, noise."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, WIDTH)  # of words and of places
        self.layers = nn.ModuleList([Layer() for _ in range(4)])
        self.head = nn.Linear(WIDTH, 100)

    def forward(self, ids):
        x = self.embed(ids) + self.embed(torch.arange(ids.shape[1], device=ids.device))
        x = x * torch.tensor([2.0, 3.0], device=x.device).sum() + torch.rand(x.shape, device=x.device)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1], device=x.device).tril()
        y = F.softmax((x @ x.transpose(1, 2)).masked_fill(mask == 0, float("-inf")), -1) @ x
        return x + self.drop(self.down(self.drop(F.gelu(self.up(self.norm(y))))))


class Attention(nn.Module):
    """Whose kernel PyTorch chooses by the GPU's generation."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.into(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2).relu().tanh())


class Router(nn.Module):
    """Chooses rows by numbers that a kernel adds in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.out = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        rows = x.reshape(-1, WIDTH)
        pairs = torch.arange(len(rows), device=x.device)[:, None].expand(-1, WIDTH) // 2
        gates = self.gate(torch.zeros_like(rows).scatter_add(0, pairs, rows)).softmax(-1)
        best = gates.argmax(-1, keepdim=True)
        return self.out((rows * gates.gather(1, best)).relu()).tanh()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=0.1, batch_first=True), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.out(self.rnn(x.relu())[0].relu()).tanh()


class Varied(nn.Module):
    """Values of many sizes that differ by little, so that freed blocks seldom fit."""

    def __init__(self) -> None:
        super().__init__()
        widths = [256, *(w for w in (290, 350, 410, 470, 533, 601, 677, 743, 811, 887, 951, 1013) for _ in range(2)), 64]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, x):
        for layer in self.layers:
            x = F.gelu(layer(x)).tanh().exp()
        return x


class Apart(nn.Module):
    """Computes a part of it on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.first(x).cpu()
        return self.last(y.relu().to(x.device))


class Prepared(nn.Module):
    """Prepares numbers on the CPU, through which no gradient goes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        places = torch.arange(WIDTH) / WIDTH
        return self.last(F.gelu(self.first(x * places.to(x.device) * torch.tensor(2.0)))).tanh()
