"""Ten models that many train, at their real sizes, in plain PyTorch: `known_models.py:gpt2_xl` is a target.

Those that are there already are taken from examples/ and benchmarks/; BERT and the U-Net of Stable Diffusion are written out
here. All have attention in one kernel, and as many parameters as their makers' (tests/unit/test_smallest_gpu.py counts them).
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "examples"), str(ROOT / "benchmarks")]

from flash import model as gpt2  # noqa: E402
from gpu_models import ResNet50  # noqa: E402
from llama import FeedForward, Llama  # noqa: E402
from vit import ViT  # noqa: E402

# ---------------------------------------------------------------------------------------------- that are there already


def gpt2_medium() -> nn.Module:
    """Radford et al., 2019: 355 million parameters."""
    return gpt2(24, 1024, 16)


def gpt2_large() -> nn.Module:
    """774 million parameters."""
    return gpt2(36, 1280, 20)


def gpt2_xl() -> nn.Module:
    """1,558 million parameters."""
    return gpt2(48, 1600, 25)


def llama_1b() -> nn.Module:
    """Llama 3.2 1B, whose output shares the embedding's weight."""
    model = _llama(16, 2048, 8192)
    model.output.weight = model.tok_embeddings.weight
    return model


def llama_8b() -> nn.Module:
    """Llama 3 8B."""
    return _llama(32, 4096, 14336)


def _llama(layers: int, width: int, inner: int) -> Llama:
    model = Llama(0, width, heads=32, shared=8, words=128256, longest=8192)
    made = Llama(layers, width, heads=32, shared=8, words=1, longest=8192)
    for layer in made.layers.values():
        layer.feed_forward = FeedForward(width, inner)
    model.layers = made.layers
    return model


def vit_b() -> nn.Module:
    """Dosovitskiy et al., 2021: ViT-B/16 for pictures of 224 by 224 pixels, as DeiT-B trains it."""
    return ViT(224, 16, 768, layers=12, heads=12, classes=1000, dropout=0.0)


def vit_l() -> nn.Module:
    """ViT-L/16."""
    return ViT(224, 16, 1024, layers=24, heads=16, classes=1000, dropout=0.0)


def resnet50() -> nn.Module:
    """He et al., 2016."""
    return ResNet50()


# ---------------------------------------------------------------------------------------------- BERT


class BertLayer(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.p = heads, dropout
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)
        self.attention_norm, self.norm = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = (w(x).view(B, T, self.heads, -1).transpose(1, 2) for w in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.p if self.training else 0.0)
        x = self.attention_norm(x + self.dropout(self.output(y.transpose(1, 2).reshape(B, T, C))))
        return self.norm(x + self.dropout(self.outer(F.gelu(self.inner(x)))))


class Bert(nn.Module):
    """Devlin et al., 2019, with the head that finds an answer's first and last word."""

    def __init__(self, layers: int = 24, width: int = 1024, heads: int = 16, words: int = 30522, dropout: float = 0.1):
        super().__init__()
        self.words, self.positions, self.types = nn.Embedding(words, width), nn.Embedding(512, width), nn.Embedding(2, width)
        self.norm, self.dropout = nn.LayerNorm(width, 1e-12), nn.Dropout(dropout)
        self.layers = nn.ModuleList(BertLayer(width, heads, dropout) for _ in range(layers))
        self.span = nn.Linear(width, 2)

    def forward(self, words: torch.Tensor, types: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(words.shape[1], device=words.device)
        x = self.dropout(self.norm(self.words(words) + self.positions(positions) + self.types(types)))
        mask = mask[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        return self.span(x).transpose(1, 2)


def bert_large() -> nn.Module:
    """334 million parameters."""
    return Bert()


# ---------------------------------------------------------------------------------------------- Stable Diffusion


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, time: int):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.norm2, self.conv2 = nn.GroupNorm(32, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Attention(nn.Module):
    def __init__(self, width: int, given: int, heads: int):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(n, width, bias=False) for n in (width, given, given))
        self.to_out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        q, k, v = self.to_q(x), self.to_k(given), self.to_v(given)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """Attention among the places of a picture, and to a text."""

    def __init__(self, width: int, text: int, heads: int):
        super().__init__()
        self.norm = nn.GroupNorm(32, width, 1e-6)
        self.proj_in, self.proj_out = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.attn1, self.attn2 = Attention(width, width, heads), Attention(width, text, heads)
        self.gated, self.out = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        B, C, H, W = x.shape
        h = self.proj_in(self.norm(x)).flatten(2).transpose(1, 2)
        y = self.norm1(h)
        h = h + self.attn1(y, y)
        h = h + self.attn2(self.norm2(h), text)
        left, gate = self.gated(self.norm3(h)).chunk(2, dim=-1)
        h = h + self.out(left * F.gelu(gate))
        return x + self.proj_out(h.transpose(1, 2).reshape(B, C, H, W))


class Stage(nn.Module):
    """A residual block, and a transformer where there is one."""

    def __init__(self, inputs: int, outputs: int, time: int, text: int, attends: bool):
        super().__init__()
        self.residual = ResidualBlock(inputs, outputs, time)
        self.attention = Transformer(outputs, text, 8) if attends else None

    def forward(self, x: torch.Tensor, time: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        x = self.residual(x, time)
        return x if self.attention is None else self.attention(x, text)


class StableDiffusion(nn.Module):
    """Rombach et al., 2022: the U-Net of Stable Diffusion 1, which alone of it is trained."""

    def __init__(self, width: int = 320, factors: tuple[int, ...] = (1, 2, 4, 4), text: int = 768):
        super().__init__()
        time, last = 4 * width, len(factors) - 1
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.stem = nn.Conv2d(4, width, 3, padding=1)
        self.down, self.shrink, self.up, self.grow = (nn.ModuleList() for _ in range(4))
        channels, kept = width, [width]
        for level, factor in enumerate(factors):
            for _ in range(2):
                self.down.append(Stage(channels, factor * width, time, text, attends=level < last))
                channels = factor * width
                kept.append(channels)
            if level < last:
                self.shrink.append(nn.Conv2d(channels, channels, 3, stride=2, padding=1))
                kept.append(channels)
        self.middle = Stage(channels, channels, time, text, attends=True)
        self.middle_2 = ResidualBlock(channels, channels, time)
        for level in range(last, -1, -1):
            for _ in range(3):
                self.up.append(Stage(channels + kept.pop(), factors[level] * width, time, text, attends=level < last))
                channels = factors[level] * width
            if level:
                self.grow.append(nn.Conv2d(channels, channels, 3, padding=1))
        self.norm, self.out = nn.GroupNorm(32, width), nn.Conv2d(width, 4, 3, padding=1)

    def embed(self, t: torch.Tensor) -> torch.Tensor:
        half = self.width // 2
        angles = t[:, None] * torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
        return self.time(torch.cat([angles.cos(), angles.sin()], dim=1))

    def forward(self, latent: torch.Tensor, t: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        time, x = self.embed(t), self.stem(latent)
        kept = [x]
        for number, stage in enumerate(self.down):
            x = stage(x, time, text)
            kept.append(x)
            if number % 2 and number // 2 < len(self.shrink):
                x = self.shrink[number // 2](x)
                kept.append(x)
        x = self.middle_2(self.middle(x, time, text), time)
        for number, stage in enumerate(self.up):
            x = stage(torch.cat([x, kept.pop()], dim=1), time, text)
            if number % 3 == 2 and number // 3 < len(self.grow):
                x = self.grow[number // 3](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.out(F.silu(self.norm(x)))


def stable_diffusion() -> nn.Module:
    """860 million parameters."""
    return StableDiffusion()
