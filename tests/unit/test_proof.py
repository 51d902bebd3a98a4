"""An expression is written only if it is shown to do what the operation does."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from remat_codegen.emit import spell as spelling
from remat_codegen.emit.proof import Proof
from remat_codegen.emit.spell import spell
from remat_codegen.trace import Trace, trace


class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.linear = nn.Linear(4, 6)

    def forward(self, x):
        x = self.norm(self.conv(x)).relu_()
        x = self.linear(x.flatten(2)[:, :, 3:].transpose(1, 2).contiguous())
        positions = torch.arange(x.shape[1], device=x.device)
        x = torch.where((positions % 2 == 0)[None, :, None], x, -x / 2)
        return x.softmax(-1, dtype=torch.float64).sum(1, keepdim=True), nn.functional.dropout(x, 0.5)


def traced() -> Trace:
    return trace(Many(), (torch.randn(2, 3, 8, 8),), {})


def test_what_is_spelled_is_shown():
    found = traced()
    proof = Proof(found)
    for operation in found.operations:
        assert proof.holds(operation, partial(spell, operation, training=None)), operation.name


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("softmax", lambda t: f"F.softmax({t}, -1, torch.float64)"),  # its third argument is another one
        ("softmax", lambda t: f"F.softmax({t}, 1, dtype=torch.float64)"),
        ("sum", lambda t: f"{t}.sum([1])"),
        ("neg", lambda t: f"{t}.abs()"),
        ("neg", lambda t: f"({t} * -1)"),
        ("neg", lambda t: f"no_such_function({t})"),
        ("div", lambda t: f"({t} / 2.0)"),
        ("flatten", lambda t: f"{t}.flatten(1)"),
        ("contiguous", lambda t: f"{t}.clone()"),
        ("dropout", lambda t: f"F.dropout({t}, 0.25, True)"),
        ("dropout", lambda t: t),
    ],
)
def test_what_does_something_else_is_not(name, wrong):
    found = traced()
    operation = next(o for o in found.operations if o.target._schema.name == f"aten::{name}")
    assert not Proof(found).holds(operation, lambda tensor: wrong(tensor(operation.args[0].variable)))


def test_what_is_not_shown_goes_by_torch_ops(monkeypatch):
    operation = next(o for o in traced().operations if o.target._schema.name == "aten::softmax")
    monkeypatch.setattr(spelling, "_simple", lambda *given: "F.softmax(t0)")
    proof = Proof(traced())
    plainly = proof.holds(operation, partial(spell, operation, training=None))
    text = spell(operation, lambda v: "x", None, plainly=plainly)
    assert not plainly and text == "torch.ops.aten.softmax.int(x, -1, torch.float64)"
