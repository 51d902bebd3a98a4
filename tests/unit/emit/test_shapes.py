"""Sizes in generated files are spelled as the user's source spells them, where it asks a tensor for them."""

from __future__ import annotations

import importlib.util
import sys
from itertools import count

import pytest
import torch
from emitted import droppable, emit, load, model_of, rebuilding

from remat_codegen.verify.beside import compare

_numbers = count()
SOURCE = """
import math

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
HEADS = "m.attn.heads, C // m.attn.heads"
# What the source says, and what the generated file must contain.
CASES = {
    "x.shape": ("B, T, C = x.shape", USE, ["B, T, C = tanh.shape", f"view(B, T, {HEADS})", "reshape(B, T, C)"]),
    "x.size()": ("B, T, C = x.size()", USE, ["B, T, C = tanh.shape", f"view(B, T, {HEADS})"]),
    "a part": ("B, T = x.shape[:2]; C = 8", USE, ["B, T = tanh.shape[:2]", "view(B, T, m.attn.heads, 8 // m.attn.heads)"]),
    "one by one": ("B = x.size(0); T = x.shape[1]; C = x.shape[-1]", USE, ["tanh.shape[0]", "tanh.shape[1]"]),
    "not all": ("B, T, _ = x.shape; C = 8", USE, ["B, T, _ = tanh.shape", "view(B, T, m.attn.heads, 8 // m.attn.heads)"]),
    "a name that changes": ("B, T, C = x.shape; B = B + 0", USE, ["view(3, 5, m.attn.heads, 4)"]),
    "not what it seems": ("B, T, C = 3, 5, 8", USE, ["view(3, 5, m.attn.heads, 4)"]),
    "names that are taken": (
        "m, kept, torch = x.shape",
        USE.replace("B", "m").replace("T", "kept").replace("C", "torch"),
        ["m_2, kept_2, torch_2 = tanh.shape", "view(m_2, kept_2, m.attn.heads, torch_2 // m.attn.heads)"],
    ),
    "another tensor's": (
        "T, B, C = x.transpose(0, 1).contiguous().shape",
        USE,
        ["view(3, 5, m.attn.heads, 4)"],
    ),
    "within what is saved": (  # the tensor that is asked and the view that is asked for belong to one node, as in SegFormer
        "x = torch.nn.functional.layer_norm(x, [8])\n        B, T, C = x.shape",
        "y = x.reshape(B, 5, 2, -1).permute(0, 3, 1, 2).contiguous().view(B, T, C)",
        ["B, T, C = x_2.shape", "reshape(B, 5, 2, -1)"],
    ),
    "in an index": (
        "B, T, C = x.shape; mask = torch.ones(9, 9, 9)",
        "y = self.proj(x) * mask[:T, 2:T, :C].sum() * mask[1:][:, C // self.heads, :T][0, 0]",
        ["[:T, 2:T, :C]", "[1:, 4][:, :T]"],
    ),
    "by way of a name": (
        "B, T, C = x.shape; size = C // self.heads",
        "y = self.proj(x).view(B, T, self.heads, size).transpose(1, 2).reshape(B, T, C)",
        [f"view(B, T, {HEADS})"],
    ),
    "a factor": (
        "B, T, C = x.shape",
        "y = self.proj(x).view(B, T, self.heads, C // self.heads).flatten(2) * (1.0 / math.sqrt(C // self.heads)) / self.heads",
        ["(1.0 / math.sqrt(C // m.attn.heads))", "/ m.attn.heads"],
    ),
    "another number than what it seems": (
        "B, T, C = x.shape; self.heads = 4",
        "y = self.proj(x).view(B, T, self.heads, C // self.heads).transpose(1, 2).reshape(B, T, C)",
        ["view(B, T, 4, 2)", "reshape(B, T, C)"],
    ),
    "in a loop": ("B, T, C = x.shape", f"for _ in range(2): {USE}; x = y.relu()", [f"view(B, T, {HEADS})"]),
}


@pytest.mark.parametrize("name", CASES)
def test_sizes_are_spelled_as_in_the_source(name, tmp_path):
    unpack, use, wanted = CASES[name]
    path, model, args = _model(unpack, use, tmp_path)
    traced = model_of(model, args, {})
    for dropped in (set(droppable(traced.graph)), set()):
        text = emit(model, args, {}, traced, rebuilding(traced.graph, dropped), path.read_text())
        for part in wanted:
            assert part in text, text
        _check_exact(text, model, args, tmp_path)


def test_a_first_run_keeps_the_shape_of_what_a_second_one_does_not_have(tmp_path):
    path, model, args = _model("B, T, C = x.shape", USE.replace("transpose(1, 2)", "transpose(1, 2).exp()"), tmp_path)
    traced = model_of(model, args, {})
    recalling = 0
    for dropped in droppable(traced.graph):
        text = emit(model, args, {}, traced, rebuilding(traced.graph, {dropped}), path.read_text())
        recalling += 'B, T, C = kept.shapes["tanh"]\n' in text
        _check_exact(text, model, args, tmp_path)
        assert ('kept.shapes["tanh"] = tanh.shape' in text) == ('= kept.shapes["tanh"]\n' in text)
    assert recalling


def _model(unpack, use, tmp_path):
    """The source of a model that contains the two statements, an instance, and its inputs."""
    path = tmp_path / "model.py"
    path.write_text(SOURCE.format(unpack=unpack, use=use))
    spec = importlib.util.spec_from_file_location(f"shapes_{next(_numbers)}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    return path, module.Model(), (torch.randn(3, 5, 8),)


def _check_exact(text, model, args, tmp_path):
    generated = load(text, tmp_path, f"shapes_generated_{next(_numbers)}")
    compared = compare(model, generated.rematerialize, args, {})
    assert {what: d.where for what, d in compared.differences.items() if d.worst} == {}
