"""Attention for which forward chooses kernels: a file makes the same choice, also where it computes again."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from emitted import droppable, emit, load, model_of, reads_back, rebuilding
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from remat_codegen.verify.beside import compare


@sdpa_kernel(SDPBackend.MATH)
def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)


class Choosing(nn.Module):
    """By a context manager, also the older one, by a decorator, by several in their order, one inside of another, and none."""

    def __init__(self):
        super().__init__()
        self.mix = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))

    def forward(self, x):
        for layer in self.mix:
            q, k, v = layer(x).view(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4)
            with sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION], set_priority=True):
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
                    y = y + F.scaled_dot_product_attention(k, k, v)
                y = y + F.scaled_dot_product_attention(v, k, v).tanh()
            y = attention(y, k, v) + F.scaled_dot_product_attention(k, k, v).exp()
            with torch.backends.cuda.sdp_kernel(enable_math=True, enable_flash=False, enable_mem_efficient=False):
                y = F.scaled_dot_product_attention(y, k, v)
            x = x + y.transpose(1, 2).reshape(x.shape)
        return x


def test_the_same_kernels_are_chosen_again(tmp_path):
    module, args = Choosing(), (torch.randn(2, 6, 16),)
    model = model_of(module, args, {})
    schedule = rebuilding(model.graph, set(droppable(model.graph)))
    text = emit(module, args, {}, model, schedule, None)
    assert "torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH])" in text
    assert "set_priority=True" in text
    reads_back(model, schedule, text)
    found = compare(module, load(text, tmp_path).rematerialize, args, {})
    assert {what: d.where for what, d in found.differences.items() if d.worst is not None} == {}
    assert not torch.overrides._get_current_function_mode_stack()
