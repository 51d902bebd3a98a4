"""Models that benchmarks/gpu.py trains beside those of examples/: a ResNet-50, a Llama in bfloat16, a tagger with an LSTM."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F


class Bottleneck(nn.Module):
    def __init__(self, before: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != 4 * width:
            self.shortcut = nn.Sequential(nn.Conv2d(before, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet50(nn.Module):
    """He et al., 2016, for pictures of 224 by 224 pixels."""

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        blocks, channels = [], width
        for stage, depth in enumerate(depths):
            for index in range(depth):
                blocks.append(Bottleneck(channels, width * 2**stage, 2 if stage and not index else 1))
                channels = 4 * width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(channels, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.fc(self.blocks(self.stem(image)).mean((2, 3)))


class RMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions (Su et al., 2021) of `x`: batch, heads, length, width of a head."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Attention(nn.Module):
    """Causal attention in which several heads share keys and values (Ainslie et al., 2023)."""

    def __init__(self, width: int, heads: int, shared: int, dropout: float):
        super().__init__()
        self.head_width, self.dropout = width // heads, dropout
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, shared * self.head_width, bias=False)
        self.value = nn.Linear(width, shared * self.head_width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.repeats = heads // shared

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        query = rotate(self.query(x).view(B, T, -1, self.head_width).transpose(1, 2), cos, sin)
        key = rotate(self.key(x).view(B, T, -1, self.head_width).transpose(1, 2), cos, sin)
        value = self.value(x).view(B, T, -1, self.head_width).transpose(1, 2)
        key, value = key.repeat_interleave(self.repeats, 1), value.repeat_interleave(self.repeats, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=self.dropout)
        return self.output(mixed.transpose(1, 2).reshape(B, T, C))


class Layer(nn.Module):
    def __init__(self, width: int, hidden: int, heads: int, shared: int, dropout: float):
        super().__init__()
        self.attention_norm, self.norm = RMSNorm(width), RMSNorm(width)
        self.attention = Attention(width, heads, shared, dropout)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Touvron et al., 2023, as large as the 1B model of its third version, with parameters in bfloat16."""

    def __init__(
        self, layers=16, width=2048, hidden=8192, heads=32, shared=8, vocabulary=32000, context=2048, dropout: float = 0.0
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, hidden, heads, shared, dropout) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        size = width // heads
        angles = torch.outer(torch.arange(context), 500000.0 ** -(torch.arange(0, size, 2) / size)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.to(torch.bfloat16)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        length = words.shape[1]
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x, self.cos[:length], self.sin[:length])
        return self.head(self.norm(x))


class Tagger(nn.Module):
    """Words to tags, by an LSTM in both directions with dropout between its layers."""

    def __init__(self, layers: int = 4, width: int = 512, vocabulary: int = 20000, tags: int = 50, dropout: float = 0.2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout, bidirectional=True)
        self.hidden = nn.Linear(2 * width, 4 * width)
        self.tags = nn.Linear(4 * width, tags)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        found, _ = self.lstm(self.embedding(words))
        return self.tags(F.gelu(self.hidden(found)))
