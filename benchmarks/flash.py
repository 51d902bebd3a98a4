"""The Rockmate paper's GPT-2 as it is trained today, with attention in one kernel: `flash.py:large` and `flash.py:medium`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.append(str(Path(__file__).parents[1] / "examples"))

from gpt2 import GPT2, CausalSelfAttention


class FlashAttention(CausalSelfAttention):
    """Dropout within attention included."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same."""
        batch, length, width = x.shape
        parts = self.c_attn(x).split(width, dim=2)
        q, k, v = (p.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for p in parts)
        dropout = self.attn_dropout.p if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width)))


def model(layers: int, width: int, heads: int) -> GPT2:
    made = GPT2(layers=layers, width=width, heads=heads, context=1024)
    for module in made.modules():
        if type(module) is CausalSelfAttention:
            module.__class__ = FlashAttention
            del module.mask
    return made


def large() -> GPT2:
    """774 million parameters."""
    return model(36, 1280, 20)


def medium() -> GPT2:
    """355 million parameters."""
    return model(24, 1024, 16)
