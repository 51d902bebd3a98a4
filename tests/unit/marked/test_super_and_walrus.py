"""Marks in methods that ask for their class, by super() or __class__, and around expressions that bind names by `:=`."""

from __future__ import annotations

import ast
import random

import pytest
import torch
from second_edition import found_in, imported_file, random_rows, text_of, traced_module, trained

from remat_codegen.marked import reading
from remat_codegen.marked.syntax import functions_in

SOURCE = """
import torch
import torch.nn.functional as F
from torch import nn

KINDS = []


class Causal(nn.Conv1d):
    def forward(self, x):
        return super().forward(F.pad(torch.tanh(x), (self.kernel_size[0] - 1, 0)))


class Gate(nn.Module):
    scale = 1.0

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def act(self, x):
        return torch.sin(x) * self.scale

    def forward(self, x):
        y = self.act(self.up(x))
        return self.down(torch.exp(-y * y))


class Wide(Gate):
    scale = 0.5

    def act(self, x):
        y = super().act(x) + torch.cos(x)
        return y * torch.sigmoid(y)

    def forward(self, x, *, gain=2.0):
        KINDS.append(__class__)
        mixed = torch.tanh(x) * gain
        out = x + super().forward(mixed)
        return out + (w := torch.sin(out)) * torch.sigmoid(w)


class Named(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lin = nn.Linear(width, width)

    def __call__(self, x):
        return super().__call__(x) * torch.exp(-x * x)

    def forward(self, x):
        x = x + (y := self.lin(x)) * torch.tanh(y)
        z = [torch.exp(-(v := t) * v) for t in x.chunk(2, -1)]
        if (total := torch.cat(z, -1) * x).dim() == 3:
            x = total * torch.sin(total)
        return x * (k := torch.sigmoid(x)) + k


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = Causal(8, 8, 3)
        self.gates = nn.ModuleList([Gate(8), Wide(8), Wide(8)])
        self.named = nn.ModuleList([Named(8), Named(8)])

    def forward(self, x):
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        for gate, named in zip(self.gates, [nn.Identity(), *self.named]):
            x = named(gate(x))
        return x
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    path = tmp_path_factory.mktemp("super") / "supering.py"
    path.write_text(SOURCE)
    torch.manual_seed(0)
    return traced_module(imported_file(path).Net().train(), (torch.randn(4, 6, 8),), {}, path)


@pytest.mark.parametrize("seed", range(4))
def test_any_table_is_exact(traced, seed, tmp_path):
    found = found_in(traced)
    text = text_of(traced, found, random_rows(found, random.Random(seed), 0.7))
    result = trained(traced, text, tmp_path)
    assert result.identical, result.differences


def marked_in(found, method, module=None):
    """The expressions of a method that can be marked."""
    lines = SOURCE.split("\n")
    texts = {v.text for v in found.tree.vertices if found.is_marked(v) and v.text.function.name == method}
    texts = {t for t in texts if module in (None, t.module)}
    return {lines[t.span[0] - 1].encode()[t.span[1] : t.span[3]].decode() for t in texts}


def test_what_can_be_marked(traced):
    found = found_in(traced)
    assert "torch.tanh(x) * gain" in marked_in(found, "Wide.forward")
    assert "out + (w := torch.sin(out)) * torch.sigmoid(w)" in marked_in(found, "Wide.forward")
    assert not any("super()" in text for text in marked_in(found, "Wide.forward") | marked_in(found, "Causal.forward"))
    assert "torch.tanh(x)" in marked_in(found, "Causal.forward")
    assert "x + (y := self.lin(x)) * torch.tanh(y)" in marked_in(found, "Named.forward")
    assert "x * (k := torch.sigmoid(x)) + k" in marked_in(found, "Named.forward")
    assert marked_in(found, "Gate.act", "gates.0")
    assert not marked_in(found, "Gate.act", "gates.1")  # by super(): modules that take methods over find the class's own
    assert not marked_in(found, "Named.__call__")  # which is looked up on the class, too


OWN = """
import torch
from torch import nn


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x):
        return torch.exp(-torch.sin(self.up(x)))


class Net(Base):
    def forward(self, x):
        y = super().forward(torch.tanh(x) * torch.sin(x))
        return y * torch.exp(-y)
"""


def test_the_models_own_forward_may_call_super(tmp_path):
    path = tmp_path / "owning.py"
    path.write_text(OWN)
    traced = traced_module(imported_file(path).Net().train(), (torch.randn(4, 8),), {}, path)
    found = found_in(traced)
    text = text_of(traced, found, random_rows(found, random.Random(0), 0.7))
    result = trained(traced, text, tmp_path)
    assert result.identical, result.differences


HEAD = "class M:\n    def forward(self, x):\n"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        pytest.param(
            ["y = self.a(x)", "return torch.sin(y) * y"],
            ["y = self.a(x)", "return parts(self).part('p', lambda y: torch.sin(y), y := self.b(x)) * y"],
            id="assigned where nothing was",
        ),
        pytest.param(
            ["y = self.a(x)", "return torch.sin(y) * y"],
            ["y = self.a(x)", "return parts(self).part('p', lambda y, z: torch.sin(y), y, self.b(x)) * y"],
            id="handed in and not read",
        ),
        pytest.param(
            ["y = x", "z = (y := torch.sin(x)) * y", "return z * y"],
            ["y = x", "z = parts(self).part('p', lambda x: (y := torch.sin(x)) * y, x)", "return z * y"],
            id="read afterwards",
        ),
        pytest.param(
            ["y = x", "return torch.cos(y) * (y := self.a(x)) * y"],
            ["y = x", "return parts(self).part('p', lambda y: torch.cos(y) * y * y, y := self.a(x))"],
            id="read before",
        ),
        pytest.param(
            ["return torch.cos(y := self.a(x)) * y"],
            ["return parts(self).part('p', lambda z: torch.cos(z) * y, y := self.a(x))"],
            id="captured",
        ),
    ],
)
def test_edits_of_assigned_names_are_noticed(theirs, ours):
    texts = [HEAD + "".join(f"        {line}\n" for line in lines) for lines in (theirs, ours)]
    original, edited = (ast.parse(text) for text in texts)
    found = reading.Reading()
    reading._read_marks("f", dict(functions_in(edited)), dict(functions_in(original)), found)
    assert found.problems


def test_right_marks_of_assigned_names_are_read():
    text = HEAD + "        return x + (y := self.a(x)) * torch.tanh(y)\n"
    edited = HEAD + "        return parts(self).part('p', lambda x, y: x + y * torch.tanh(y), x, y := self.a(x))\n"
    found = reading.Reading()
    reading._read_marks("f", dict(functions_in(ast.parse(edited))), dict(functions_in(ast.parse(text))), found)
    assert not found.problems and found.marks[0].outside == ((3, 25, 3, 34),)
