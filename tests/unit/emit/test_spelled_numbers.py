"""Sources that once led to wrong numbers in a generated file, or could: each value is rebuilt by itself, then all of them."""

from __future__ import annotations

import importlib.util
import sys
from itertools import count

import pytest
import torch
from emitted import droppable, emit, load, model_of, rebuilding

from remat_codegen.verify.beside import compare

_numbers = count()
HEAD = """
import math

import torch
from torch import nn

class Index(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("idx", torch.tensor([1, 0, 2]))

    def forward(self, x):
        return torch.sin(x[self.idx])

class Model(nn.Module):
    scale = 0.5

    def __init__(self):
        super().__init__()
        self.heads, self.factor, self.zero = 2, 0.5, -0.0
        self.a, self.b, self.narrow = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.parts = nn.ModuleDict({"a-b": Index()})

    def forward(self, x):
"""
CASES = {
    "a name for a difference": "B, C = x.shape; d = C - B; y = torch.sin(self.a(x) - d); return self.b(y).sin()",
    "a name for a quotient": (
        "B, C = x.shape; d = C // self.heads; y = self.a(x).view(B, self.heads, d).sin() / d; return y.view(B, C).tanh()"
    ),
    "a name for a product": "f = 0.5 * 3 ** -0.5; y = torch.sin(self.a(x) * f); return self.b(y).sin()",
    "a negative name": "B, C = x.shape; y = (self.a(x).sin() - -B) ** 2; return self.b(y * -C).sin()",
    "a shape that changes in place": (
        "y = torch.sin(self.a(x)); z = torch.tanh(self.b(y)) * 2; H, I = z.shape; z.t_(); s = torch.sin(z)\n"
        "p = torch.sin(torch.tanh(z * 2) * 0.1); p = torch.sin(torch.tanh(p * s) * H); return (p * z).tanh() * I"
    ),
    "a dimension added in place": (
        "z = torch.tanh(self.a(x)) * 2; H, I = z.shape; z.unsqueeze_(0)\ns = torch.sin(z); return torch.sin(z.tanh() * H) * s"
    ),
    "an attribute that forward sets": "self.scale = 0.25; return torch.sin(self.a(x).tanh() * self.scale)",
    "an attribute that forward makes": (
        "self.made = x.shape[1] // 4\ny = self.a(x).view(-1, self.made, 4).sin(); return self.b(y.reshape(-1, 8)).sin()"
    ),
    "two sizes without a name": (
        "B, _ = x.shape; y = torch.sin(self.a(x) * B); h = torch.tanh(self.narrow(y)); D, _ = h.shape\n"
        "u = torch.sin(h) * D; C, _ = y.shape; y = torch.sin(torch.tanh(y) * _) * C; return y * u.mean()"
    ),
    "an input of another name": (
        "h = torch.tanh(self.narrow(x)).sin(); h = torch.tanh(h * 1.5) * h.cos(); h = (h + x.mean()).view(-1, x.shape[0] * 2)\n"
        "return torch.sin(h.reshape(-1, x.shape[1] // 4).mean(0) * 3) * h.mean()"
    ),
    "a single size": "(B,) = x.shape[:1]; y = torch.sin(self.a(x)).view(B, 2, 4); return y.tanh().view(B, 8).sin()",
    "an index on a module of an odd name": "return torch.tanh(self.parts['a-b'](self.a(x)))",
    "zeros of either sign": (
        "y = torch.tanh(self.a(x)); t = torch.atan2(torch.ones_like(y) * 0.0, torch.ones_like(y) * -0.0)\n"
        "return y.sin() * t + torch.atan2(torch.ones_like(y) * self.zero, -torch.ones_like(y))"
    ),
    "whole numbers and others": "y = self.a(x).sin() * 2.0; return (torch.ones(3, 8, dtype=torch.int64) * 2 / 4 * y).tanh()",
}


def _model(body, tmp_path):
    lines = [line.strip() for line in body.replace("; ", "\n").split("\n")]
    path = tmp_path / "model.py"
    path.write_text(HEAD + "".join(f"        {line}\n" for line in lines))
    spec = importlib.util.spec_from_file_location(f"spelled_{next(_numbers)}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    return path.read_text(), module.Model


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_the_source(name, tmp_path):
    source, make = _model(CASES[name], tmp_path)
    args = (torch.randn(3, 8),)
    model = make()
    traced = model_of(model, args, {})
    fresh = make()  # nothing has run that sets its attributes
    every = droppable(traced.graph)
    for dropped in [*({d} for d in every), set(every)]:
        text = emit(model, args, {}, traced, rebuilding(traced.graph, dropped), source)
        generated = load(text, tmp_path, f"spelled_generated_{next(_numbers)}")
        compared = compare(fresh, generated.rematerialize, args, {})
        assert {what: d.where for what, d in compared.differences.items() if d.worst} == {}, text


def test_what_may_change_before_the_way_back_is_no_attribute(tmp_path):
    source, make = _model("y = torch.tanh(self.a(x)) * self.factor; return torch.sin(y * self.heads)", tmp_path)
    args = (torch.randn(3, 8),)
    model = make()
    traced = model_of(model, args, {})
    text = emit(model, args, {}, traced, rebuilding(traced.graph, set(droppable(traced.graph))), source)
    assert "m.factor" not in text and "m.heads" not in text
