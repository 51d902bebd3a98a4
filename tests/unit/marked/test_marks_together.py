"""Marks within each other: what a table has run again is what its text does."""

from __future__ import annotations

from contextlib import suppress
from itertools import combinations

import pytest
import torch
from second_edition import Found, as_plan, found_in, imported_file, text_of, traced_module

from remat_codegen.errors import UnsupportedError
from remat_codegen.marked import choose
from remat_codegen.marked.candidates import Candidate, Row, go_together
from remat_codegen.marked.choose import parts_of
from remat_codegen.run.marked import _check_steps
from remat_codegen.run.marked_text import Traced, read_back
from remat_codegen.trace.places import is_around

MODEL = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out, self.drop = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Dropout(0.0)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.drop(self.out(((q @ k.mT) * 0.5).softmax(-1) @ v))


class Scale(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * self.gain


class Block(nn.Module):
    def __init__(self, width, drop):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp = Attention(width), nn.Sequential(nn.Linear(width, width), nn.GELU())
        self.scale1, self.scale2, self.drop = Scale(width), nn.Identity(), nn.Dropout(drop) if drop else nn.Identity()

    def forward(self, x):
        x = x + self.drop(self.scale1(self.attn(self.norm1(x))))
        return (x + self.drop(self.scale2(self.mlp(self.norm2(x)).tanh()))).sin()


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, drop) for drop in (0.0, 0.1))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory) -> Traced:
    path = tmp_path_factory.mktemp("together") / "net.py"
    path.write_text(MODEL)
    return traced_module(imported_file(path).Net().train(), (torch.randn(4, 24, 32),), {}, path)


@pytest.fixture(scope="module")
def found(traced) -> Found:
    return found_in(traced)


def test_any_two_marks_are_refused_or_hold_what_was_planned(traced, found):
    refused = held = 0
    for pair in pairs(found):
        try:
            parts_of([Row(c) for c in pair])
        except ValueError:
            refused += 1
            continue
        rows = tuple(Row(c) for c in pair)
        try:
            text = text_of(traced, found, rows)
        except UnsupportedError:  # one cannot be written around the other, which is said
            continue
        read, problems = read_back(text, traced)
        assert not problems and {(r.candidate.first, r.candidate.last) for r in read.rows} == {(c.first, c.last) for c in pair}
        held += 1
    assert refused and held


def test_a_text_that_runs_something_else_again_is_not_written(traced, found, monkeypatch):
    """As if some marks had wrongly been put together."""
    monkeypatch.setattr(choose, "go_together", lambda marks: True)
    tables = [
        tuple(Row(c) for c in pair) for pair in pairs(found) if not go_together(frozenset(m for c in pair for m in c.marks))
    ]
    refused = 0
    for rows in tables:
        with suppress(ValueError):  # of the same nodes
            plan, brought = as_plan(traced, found, rows)
            with pytest.raises(UnsupportedError, match="run something else again than was planned"):
                _check_steps(text_of(traced, found, rows), traced, plan, brought)
            refused += 1
    assert refused


def pairs(found: Found) -> list[tuple[Candidate, Candidate]]:
    """Those with marks that stand within each other; for the same marks, only one."""
    marked = {c.marks: c for c in found.ways if c.marks}
    return [pair for pair in combinations(marked.values(), 2) if nest(*pair)]


def nest(one: Candidate, other: Candidate) -> bool:
    places = [(text, a, b) for (text, a), _ in one.marks for (other_text, b), _ in other.marks if text == other_text]
    return any(a != b and (is_around(a, b) or is_around(b, a)) for _, a, b in places)


def test_what_a_mark_hands_in_cannot_be_in_another_one():
    text, outer, inner, call = "forward", (1, 0, 1, 40), (1, 10, 1, 40), (1, 20, 1, 39)
    argument, beside = (1, 25, 1, 30), (1, 4, 1, 6)

    def together(handed, own, where="forward"):
        return go_together(frozenset({((text, outer), handed), ((where, inner), own)}))

    assert not together((call,), ())
    assert not together((call,), (argument,)), "more is handed in than the inner one leaves out"
    assert together((call,), (call,)) and together((argument,), (call,)), "it is outside of both"
    assert together((), (call,)) and together((beside,), ()) and together((inner,), ()), "all that it holds is handed in"
    assert together((call,), (), where="other")
    assert not go_together(frozenset({((text, outer), ()), ((text, outer), (call,))})), "in two ways"
