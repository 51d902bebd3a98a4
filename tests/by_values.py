"""Models whose operations depend on values of tensors, each with inputs to plan for, and others by which it goes other ways."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x, edges):
        nodes = int(edges.max()) + 1
        h = self.lin(x)
        summed = torch.zeros(nodes, WIDTH, device=h.device).index_add(0, edges[1], h[edges[0]])
        return F.dropout(torch.relu(self.norm(summed)), 0.1, self.training)


class Graphs(nn.Module):
    """A graph network, as those of libraries: how many nodes there are, the edges say."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(Conv() for _ in range(4))

    def forward(self, x, edges):
        for conv in self.convs:
            x = conv(x, edges)
        return x


class Pooled(nn.Module):
    """Means over the graphs of a batch, whose number a vector of places says."""

    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(4)), nn.Linear(WIDTH, 4)

    def forward(self, x, batch):
        for block in self.blocks:
            x = block(x)
        count = batch.max() + 1
        sums = x.new_zeros(count, WIDTH).index_add(0, batch, x)
        return self.head(sums / torch.bincount(batch, minlength=int(count)).clamp(min=1)[:, None])


class Experts(nn.Module):
    """A router: each expert gets the rows that chose it, and one that nobody chose is left out."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            if rows.numel() == 0:
                continue
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
        return x + out


class Branch(Block):
    """Two ways, of which only the first draws."""

    def forward(self, x):
        if x.sum() > 0:
            return x + F.dropout(self.down(torch.tanh(self.up(self.norm(x))).exp()), 0.1)
        return super().forward(x) * torch.sigmoid(x)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True)

    def forward(self, x, padding):
        x = self.block(x)
        return x + self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]


class Speech(nn.Module):
    """An encoder as speech models have it: as long as the longest of its batch."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attending() for _ in range(3))

    def forward(self, x, lengths):
        longest = max(lengths)
        padding = torch.arange(int(longest), device=x.device)[None] >= lengths[:, None]
        x = x[:, :longest]
        for layer in self.layers:
            x = layer(x, padding)
        return x.masked_fill(padding[..., None], 0)


class Halting(nn.Module):
    """The same block until it is enough."""

    def __init__(self):
        super().__init__()
        self.block, self.halt = Block(), nn.Linear(WIDTH, 1)

    def forward(self, x):
        steps, total = 0, torch.zeros((), device=x.device)
        while total < 3 and steps < 12:
            x = self.block(x)
            total = total + self.halt(x).sigmoid().mean()
            steps += 1
        return x, total


class Skipping(nn.Module):
    """Blocks that are left out by chance."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Skipped() for _ in range(5))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Skipped(Block):
    def forward(self, x):
        return super().forward(x) if torch.rand(()) > 0.4 else x * torch.rand_like(x)


class Masked(Block):
    """Only the rows that a mask has, written back in place."""

    def forward(self, x):
        keep = x.mean(-1) > 0
        y = x.clone()
        y[keep] = super().forward(x[keep]) * x.masked_select(keep[:, None]).view(-1, WIDTH)
        return y + x


class Conditioned(nn.Module):
    """Sometimes the layers run on what they gave before, without gradients: as diffusion models that condition themselves."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def through(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x):
        given = torch.zeros_like(x)
        if x.mean() > 0:
            with torch.no_grad():
                given = self.through(x)
        return self.through(torch.tanh(x) + given)


class Switching(nn.Module):
    """Switches gradients on for what it makes, as speech models of transformers do."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        x = x[None]
        x.requires_grad = True
        for block in self.blocks:
            x = block(x) if x.mean() < 9 else x
        return x


def rows(*sizes: int, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(*sizes, WIDTH) + shift


def edges(nodes: int, count: int) -> torch.Tensor:
    return torch.cat([torch.randint(0, nodes, (2, count)), torch.tensor([[nodes - 1], [nodes - 1]])], 1)


def graphs(count: int, size: int) -> torch.Tensor:
    return torch.randint(0, count, (size,)).sort().values


Made = tuple[nn.Module, list[tuple[torch.Tensor, ...]]]  # a model, the inputs to plan for, and others
MODELS: dict[str, Callable[[], Made]] = {
    "graphs": lambda: (Graphs(), [(rows(100), edges(100, 300)), (rows(60), edges(60, 500)), (rows(130), edges(130, 90))]),
    "pooled": lambda: (Pooled(), [(rows(100), graphs(7, 100)), (rows(120), graphs(3, 120)), (rows(50), graphs(20, 50))]),
    "experts": lambda: (nn.Sequential(Experts(), Experts()), [(rows(80),), (rows(1),), (rows(90, shift=3.0),)]),
    "branch": lambda: (nn.Sequential(Branch(), Branch(), Branch()), [(rows(80, shift=1.0),), (rows(80, shift=-1.0),)]),
    "other branch": lambda: (nn.Sequential(Branch(), Branch(), Branch()), [(rows(80, shift=-1.0),), (rows(80, shift=1.0),)]),
    "speech": lambda: (
        Speech(),
        [(rows(3, 30), torch.tensor([30, 20, 9])), (rows(3, 30), torch.tensor([12, 3, 17])), (rows(1, 41), torch.tensor([40]))],
    ),
    "halting": lambda: (Halting(), [(rows(80),), (rows(80, shift=2.0),), (rows(20, shift=-2.0),)]),
    "skipping": lambda: (Skipping(), [(rows(80),), (rows(40),)]),
    "conditioned": lambda: (Conditioned(), [(rows(80, shift=1.0),), (rows(80, shift=-1.0),)]),
    "not conditioned": lambda: (Conditioned(), [(rows(80, shift=-1.0),), (rows(80, shift=1.0),)]),
    "switching": lambda: (Switching(), [(rows(80),), (rows(40, shift=1.0),)]),
    "masked": lambda: (nn.Sequential(Masked(), Masked()), [(rows(80),), (rows(80, shift=-3.0),), (rows(30, shift=1.0),)]),
}


def build(name: str) -> Made:
    """A model in training mode, always the same."""
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    return module.train(), inputs
