"""Sizes in generated files are spelled as the user's source spells them, where it asks a tensor for them."""

from __future__ import annotations

import importlib.util
import sys
from itertools import count

import pytest
import torch
from emitted import droppable, emit, load, model_of, rebuilding

from remat_codegen.verify import compare

_numbers = count()
SOURCE = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads, self.proj = 2, nn.Linear(8, 8)

    def forward(self, x):
        {unpack}
        {use}
        return self.proj(y).exp()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.attn = nn.Linear(8, 8), Attention()

    def forward(self, x):
        return self.attn(self.lin(x).tanh()).sin()
"""
USE = "y = self.proj(x).view(B, T, self.heads, C // self.heads).transpose(1, 2).reshape(B, T, C)"
# What the source says, and what the generated file must contain.
CASES = {
    "x.shape": ("B, T, C = x.shape", USE, ["B, T, C = tanh.shape", "view(B, T, 2, 4)", "reshape(B, T, C)"]),
    "x.size()": ("B, T, C = x.size()", USE, ["B, T, C = tanh.shape", "view(B, T, 2, 4)"]),
    "a part": ("B, T = x.shape[:2]; C = 8", USE, ["B, T = tanh.shape[:2]", "view(B, T, 2, 4)"]),
    "one by one": ("B = x.size(0); T = x.shape[1]; C = x.shape[-1]", USE, ["tanh.shape[0]", "tanh.shape[1]"]),
    "not all": ("B, T, _ = x.shape; C = 8", USE, ["B, T, _ = tanh.shape", "view(B, T, 2, 4)"]),
    "a name that changes": ("B, T, C = x.shape; B = B + 0", USE, ["view(3, 5, 2, 4)"]),
    "not what it seems": ("B, T, C = 3, 5, 8", USE, ["view(3, 5, 2, 4)"]),
    "names that are taken": (
        "m, kept, torch = x.shape",
        USE.replace("B", "m").replace("T", "kept").replace("C", "torch"),
        ["m_2, kept_2, torch_2 = tanh.shape", "view(m_2, kept_2, 2, 4)"],
    ),
    "another tensor's": (
        "T, B, C = x.transpose(0, 1).contiguous().shape",
        USE,
        ["view(3, 5, 2, 4)"],
    ),
    "within what is saved": (  # the tensor that is asked and the view that is asked for belong to one node, as in SegFormer
        "x = torch.nn.functional.layer_norm(x, [8])\n        B, T, C = x.shape",
        "y = x.reshape(B, 5, 2, -1).permute(0, 3, 1, 2).contiguous().view(B, T, C)",
        ["B, T, C = x_2.shape", "reshape(B, 5, 2, -1)"],
    ),
    "in a loop": ("B, T, C = x.shape", f"for _ in range(2): {USE}; x = y.relu()", ["view(B, T, 2, 4)"]),
}


@pytest.mark.parametrize("name", CASES)
def test_sizes_are_spelled_as_in_the_source(name, tmp_path):
    unpack, use, wanted = CASES[name]
    path = tmp_path / "model.py"
    path.write_text(SOURCE.format(unpack=unpack, use=use))
    spec = importlib.util.spec_from_file_location(f"shapes_{next(_numbers)}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    model, args = module.Model(), (torch.randn(3, 5, 8),)
    traced = model_of(model, args, {})
    for dropped in (set(droppable(traced.graph)), set()):
        text = emit(model, args, {}, traced, rebuilding(traced.graph, dropped), path.read_text())
        for part in wanted:
            assert part in text, text
        generated = load(text, tmp_path, f"shapes_generated_{next(_numbers)}")
        compared = compare(model, generated.rematerialize, args, {})
        assert {what: d.where for what, d in compared.differences.items() if d.worst} == {}
