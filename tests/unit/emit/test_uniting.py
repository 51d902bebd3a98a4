"""Blocks share functions where they differ only in what nobody asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from emitted import droppable, emit, load, model_of, rebuilding
from torch import nn

from remat_codegen.emit import program
from remat_codegen.planners import rotor
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.measure import Measured
from remat_codegen.schedule import simulate, validate, without_recomputation
from remat_codegen.verify.beside import compare

SLACK = 4096 + 30 * 5056  # bytes: seeds of the backward pass, states of generators


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(128, 32)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        return x + self.dropout(self.narrow(torch.relu(self.wide(self.norm(x)))))


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.start, self.end = nn.Linear(32, 32), nn.Linear(32, 2)
        self.layers = nn.ModuleList([Layer() for _ in range(9)])

    def forward(self, i):  # as loops like to call what they count with
        i = self.start(i)
        for layer in self.layers:
            i = layer(i)
        return self.end(i)


@pytest.fixture(scope="module")
def planned():
    """Module, inputs, model, a schedule with segments that run again, and its peak in bytes."""
    torch.manual_seed(0)
    module, args = Deep().train(), (torch.randn(256, 32),)
    model = model_of(module, args, {})
    profile = Measured("cpu", Cache("cpu", enabled=False)).of(model)
    profile = replace(profile, time_ns=(1000,) * len(profile.time_ns))
    plain = simulate(model.graph, profile, without_recomputation(model.graph)).peak_bytes
    found = rotor.plan(model.graph, profile, plain * 40 // 100)
    validate(model.graph, found.schedule)
    return module, args, model, found.schedule, found.peak_bytes


def functions(text):
    """How many functions there are for blocks."""
    return sum(line.startswith("def ") and line.endswith(("(m, kept, x):", "(m, kept):")) for line in text.splitlines())


def test_fewer_functions_that_compute_the_same(planned, tmp_path, monkeypatch):
    module, args, model, schedule, peak = planned
    shared = emit(module, args, {}, model, schedule, None)
    monkeypatch.setattr(program, "unite", lambda linkage, forwards: forwards)
    monkeypatch.setattr(program, "share_rebuilds", lambda linkage, backwards: backwards)
    apart = emit(module, args, {}, model, schedule, None)
    assert functions(shared) < functions(apart)
    for name, text in (("shared", shared), ("apart", apart)):
        found = compare(module, load(text, tmp_path, name).rematerialize, args, {})
        assert {what: d.where for what, d in found.differences.items() if d.worst is not None} == {}
        assert found.measured_peak_bytes <= peak + SLACK


def test_loops_count_with_a_name_that_is_free(planned):
    module, args, model, _, _ = planned
    text = emit(module, args, {}, model, rebuilding(model.graph, {*droppable(model.graph)}), None)
    assert "for j in range(" in text and "for i in range(" not in text
