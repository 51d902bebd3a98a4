"""A Llama (Touvron et al., 2023) in plain PyTorch, as torchtitan has it: the root holds the rotations that each layer is given.

remat-codegen examples/llama.py:Llama --budget 60%
"""

import torch
import torch.nn.functional as F
from torch import nn


def rotations(width: int, longest: int, theta: float = 10000.0) -> torch.Tensor:
    """Complex numbers (longest, width / 2), by which pairs of values are turned."""
    frequencies = 1.0 / theta ** (torch.arange(0, width, 2).float() / width)
    angles = torch.outer(torch.arange(longest).float(), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * freqs_cis[: x.shape[1], None]).flatten(-2).type_as(x)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, shared: int):
        super().__init__()
        self.heads, self.shared, size = heads, shared, width // heads
        self.wq, self.wo = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.wk, self.wv = (nn.Linear(width, shared * size, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
        q = self.wq(x).unflatten(-1, (self.heads, -1))
        k, v = (w(x).unflatten(-1, (self.shared, -1)) for w in (self.wk, self.wv))
        q, k = rotate(q, freqs_cis), rotate(k, freqs_cis)
        k, v = (t.repeat_interleave(self.heads // self.shared, 2) for t in (k, v))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.wo(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.w1, self.w3 = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, shared: int):
        super().__init__()
        self.attention, self.feed_forward = Attention(width, heads, shared), FeedForward(width, 8 * width // 3)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)

    def forward(self, x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
        h = x + self.attention(self.attention_norm(x), freqs_cis)
        return h + self.feed_forward(self.ffn_norm(h))


class Llama(nn.Module):
    freqs_cis: torch.Tensor

    def __init__(self, layers: int = 4, width: int = 96, heads: int = 6, shared: int = 2, words: int = 500, longest: int = 128):
        super().__init__()
        self.tok_embeddings = nn.Embedding(words, width)
        self.register_buffer("freqs_cis", rotations(width // heads, longest), persistent=False)
        self.layers = nn.ModuleDict({str(number): Block(width, heads, shared) for number in range(layers)})
        self.norm, self.output = nn.RMSNorm(width, 1e-5), nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            h = layer(h, self.freqs_cis)
        return self.output(self.norm(h))


def example_inputs() -> tuple[torch.Tensor]:
    return (torch.randint(500, (4, 96)),)
