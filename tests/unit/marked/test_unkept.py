"""Parts that give more than others read, such as the weights of an attention: /inside would keep that, which no plan counts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from second_edition import found_in, imported_file, planned_peak, random_rows, text_of, traced_module, trained

from remat_codegen.marked.candidates import Row
from remat_codegen.marked.choose import parts_of
from remat_codegen.marked.demand import Keeps

MODEL = """
import torch
import torch.nn.functional as F
from torch import nn


def attend(q, k, v):
    weights = F.softmax(q @ k.mT, dim=-1)
    return weights @ v, weights


KNOWN = {{"eager": attend}}


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def both(self, q, k, v):
        interface = KNOWN["eager"]
        return interface(q, k, v)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        interface = KNOWN["eager"]
        {attend}
        return self.out(y.sin()), {weights}


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.layers = nn.ModuleList(Attention(width) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)[0]
        return x
"""
WAYS = {
    "unpacked": ("y, weights = interface(q, k, v)", "None"),
    "held as a tuple": ("found = interface(q, k, v)\n        y = found[0]", "None"),
    "an item is taken": ("y = interface(q, k, v)[0]", "None"),
    "an item is taken of what a method returns": ("y = self.both(q, k, v)[0]", "None"),
    "an item is taken of what a module gives": ("y, weights = interface(q, k, v)", "weights"),
}
SLACK_BYTES = 64


@pytest.mark.parametrize(("attend", "weights"), WAYS.values(), ids=WAYS)
def test_weights_that_nobody_reads_are_not_kept(attend: str, weights: str, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(MODEL.format(attend=attend, weights=weights))
    torch.manual_seed(0)
    traced = traced_module(imported_file(path).Net().train(), (torch.randn(4, 48, 32),), {}, path)
    found = found_in(traced)
    softmax = next(n.id for n in traced.graph.forward_nodes if "softmax" in n.name)
    around = [c for c in found.candidates.all if c.first <= softmax <= c.last]
    modules = [c for c in around if found.is_module(c.vertices[-1])]
    assert modules and all(c.unkept for c in modules)
    for candidate in around:
        if candidate.unkept:
            with pytest.raises(ValueError, match="more than others need"):
                parts_of([Row(candidate, Keeps.RESULT)])

    for seed in range(4):
        rows = random_rows(found, random.Random(seed), (0.2, 0.4, 0.7, 1.0)[seed])
        result = trained(traced, text_of(traced, found, rows), tmp_path)
        assert result.identical, result.differences
        assert result.measured_peak_bytes <= planned_peak(traced, found, rows) + SLACK_BYTES


def test_what_others_read_may_be_kept(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        MODEL.format(attend="y = interface(q, k, v)[0]", weights="None")
        .replace("layer(x)[0]", "layer(x)")
        .replace(", None", "")
    )
    found = found_in(traced_module(imported_file(path).Net().train(), (torch.randn(4, 48, 32),), {}, path))
    calls = [c for c in found.candidates.all if any(map(found.is_module, c.vertices))]
    assert calls and not any(c.unkept for c in calls)


NORMED = """
import torch
from torch import nn
from torch.nn.utils import weight_norm


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(weight_norm(nn.Conv1d(8, 8, 3, padding=1)) for _ in range(4))

    def forward(self, x):
        for conv in self.convs:
            x = conv(x.tanh()).sin()
        return x
"""


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_an_attribute_of_a_part_s_own_module_is_no_result(tmp_path: Path) -> None:
    """The weight that such a layer makes anew in each call stays in the layer, which does not give it to anybody."""
    path = tmp_path / "net.py"
    path.write_text(NORMED)
    traced = traced_module(imported_file(path).Net().train(), (torch.randn(4, 8, 512),), {}, path)
    found = found_in(traced)
    calls = [c for c in found.candidates.all if any(map(found.is_module, c.vertices))]
    assert calls and not any(c.unkept for c in calls)
    rows = tuple(Row(c, Keeps.RESULT) for c in calls if len(c) < 4)
    result = trained(traced, text_of(traced, found, rows), tmp_path)
    assert rows and result.identical, result.differences
    assert result.measured_peak_bytes <= planned_peak(traced, found, rows) + SLACK_BYTES
