"""A decoder whose feed-forward layers are mixtures of experts (Shazeer et al., 2017), in plain PyTorch.

remat-codegen examples/experts.py:Decoder --budget 60%
"""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Expert(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Every token goes through the experts, and is given the sum of those that its router chose."""

    def __init__(self, width: int, count: int, chosen: int):
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(Expert(width) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = F.softmax(self.router(x), -1)
        best, index = weights.topk(self.chosen, -1)
        gates = torch.zeros_like(weights).scatter(-1, index, best / best.sum(-1, keepdim=True))
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            y = y + gates[..., number, None] * expert(x)
        return y


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, experts: int, chosen: int):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.experts = Attention(width, heads), Experts(width, experts, chosen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.experts(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, layers: int = 3, width: int = 64, heads: int = 4, experts: int = 4, words: int = 500):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads, experts, 2) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def example_inputs() -> tuple[torch.Tensor]:
    return (torch.randint(500, (4, 64)),)
