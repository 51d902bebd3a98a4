"""An expression is written only if it is shown to do what the operation does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from remat_codegen.emit import spell as spelling
from remat_codegen.emit.proof import Proof
from remat_codegen.emit.spell import spell, spellings
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
        assert proof.way(operation) < len(spellings(operation, str)) - 1, operation.name


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
    for way in ("_simple", "_method"):
        monkeypatch.setattr(spelling, way, lambda *given: "F.softmax(t0)")
    monkeypatch.setattr(spelling, "_functions", lambda *given: [None, "no_such_function(t0)"])
    proof = Proof(traced())
    text = spell(operation, lambda v: "x", None, way=proof.way(operation))
    assert text == "torch.ops.aten.softmax.int(x, -1, torch.float64)"


class Rarer(nn.Module):
    def forward(self, x, index):
        mask = (x > 0) & (x < 1)
        x = nn.functional.interpolate(x[None, None], scale_factor=2, mode="bilinear")[0, 0] * 2 // 3
        x = nn.functional.silu(x.unflatten(0, (2, -1)).flatten(0, 1), inplace=True) + torch.fft.rfft(x).abs().mean()
        x = 1 - nn.functional.dropout(x[index], 0.5, self.training, inplace=True)
        columns = nn.functional.fold(nn.functional.unfold(x[None, None], 2), (2, 8), 2)
        loss = nn.functional.cross_entropy(x, index, label_smoothing=0.1, reduction="sum")
        return loss + nn.functional.smooth_l1_loss(x, x.T.T, beta=0.5) + columns.to(torch.float64).sum(), mask


SPELLED = [
    "&",
    "F.interpolate(t, scale_factor=[2.0, 2.0], mode='bilinear', align_corners=False)",
    "// 3",
    "t.unflatten(0, [2, ",
    "F.silu(t, inplace=True)",
    "torch.fft.rfft(t)",
    "(1 - t)",
    "t[t]",
    "F.dropout(t, 0.5, m.training, inplace=True)",
    "F.unfold(t, [2, 2], [1, 1], [0, 0], [1, 1])",
    "F.fold(t, ",
    "F.cross_entropy(t, t, reduction='sum', label_smoothing=0.1)",
    "F.smooth_l1_loss(t, t, beta=0.5)",
    "t.T",
    "t.to(torch.float64)",
]


def test_what_has_a_name_is_called_by_it():
    found = trace(Rarer(), (torch.rand(4, 4), torch.tensor([0, 1])), {})
    proof = Proof(found)
    texts = [spell(o, lambda v: "t", "m.training", way=proof.way(o)) for o in found.operations]
    assert not [t for t in texts if t.startswith("torch.ops.") and "_assert_" not in t]
    assert all(any(wanted in text for text in texts) for wanted in SPELLED), texts
