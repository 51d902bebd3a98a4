"""A block that is rebuilt as a whole runs its first function again; where that would not be the same, it has one of its own."""

from __future__ import annotations

import random

import pytest
import torch
from emitted import droppable, emit, load, model_of, reads_back, rebuilding
from torch import nn

from remat_codegen.planners.base.registry import PLANNERS
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.measure import Measured
from remat_codegen.readback.interpreter import read_back
from remat_codegen.schedule import simulate, validate, with_forgets, without_recomputation
from remat_codegen.verify.beside import compare

SLACK = 4096 + 30 * 5056  # bytes: seeds of the backward pass, states of generators


class Layer(nn.Module):
    def __init__(self, normalisation):
        super().__init__()
        self.norm, self.wide, self.narrow = normalisation(32), nn.Linear(32, 128), nn.Linear(128, 32)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        return x + self.dropout(self.narrow(torch.relu(self.wide(self.norm(x)))))


class Deep(nn.Module):
    def __init__(self, normalisation=nn.LayerNorm):
        super().__init__()
        self.start, self.end = nn.Linear(32, 32), nn.Linear(32, 2)
        self.layers = nn.ModuleList([Layer(normalisation) for _ in range(9)])

    def forward(self, x):
        x = self.start(x)
        for layer in self.layers:
            x = layer(x)
        return self.end(x)


class Gate(nn.Module):
    """Computes the same twice: without a gradient for the gate, and with one."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        with torch.no_grad():
            gate = torch.sigmoid(self.a(x)).mean(-1, keepdim=True)
        return x + self.b(torch.relu(self.a(x)).tanh()) * gate


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[Gate() for _ in range(8)])

    def forward(self, x):
        return self.layers(x).square().mean()


class InPlace(nn.Module):
    """Blocks that change in place what they made."""

    def __init__(self):
        super().__init__()
        self.linear = nn.ModuleList([nn.Linear(32, 32) for _ in range(9)])

    def forward(self, x):
        for linear in self.linear:
            x = (linear(x.tanh()).relu_() + 1.0).mul_(0.5)
        return x


class Layers(nn.Module):
    def __init__(self, *makers):
        super().__init__()
        self.layers = nn.ModuleList([make() for make in makers])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Adds(nn.Linear):
    def forward(self, x):
        return x + torch.tanh(super().forward(x))


class Multiplies(nn.Linear):
    def forward(self, x):
        return torch.sin(torch.exp(-super().forward(x).square())) * x


class Draws(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.ModuleList([nn.Linear(32, 32) for _ in range(9)])

    def forward(self, x):
        for linear in self.linear:
            x = torch.dropout(linear(x * torch.rand_like(x)), 0.3, self.training)
        return x


def planned(module, planner, share=0.3):
    """Inputs, model, a planner's schedule within a share of PyTorch's peak, and its peak in bytes."""
    torch.manual_seed(0)
    args = (torch.randn(256, 32),)
    model = model_of(module.train(), args, {})
    profile = Measured("cpu", Cache("cpu", enabled=False)).of(model)
    plain = simulate(model.graph, profile, without_recomputation(model.graph)).peak_bytes
    plan = PLANNERS[planner](model.graph, profile, int(plain * share))
    if plan.schedule is None:
        plan = PLANNERS[planner](model.graph, profile, plan.minimum_bytes)
    validate(model.graph, plan.schedule)
    return args, model, plan.schedule, simulate(model.graph, profile, plan.schedule).peak_bytes


def test_what_runs_without_a_gradient_is_told_from_the_same_with_one():
    model = model_of(module := Gated(), args := (torch.randn(64, 32),), {})
    draw = random.Random(0)
    for _ in range(6):
        schedule = rebuilding(model.graph, {d for d in droppable(model.graph) if draw.random() < 0.5})
        reads_back(model, schedule, emit(module, args, {}, model, schedule, None), earlier=True)


@pytest.mark.parametrize("planner", ["chen", "rotor"])
@pytest.mark.parametrize("make", [Deep, InPlace, Draws])
def test_is_exact_and_within_the_planned_peak(make, planner, tmp_path):
    module = make()
    args, model, schedule, peak = planned(module, planner, 0.5)
    text = emit(module, args, {}, model, schedule, None)
    assert "Again(step[" in text or make is InPlace  # whose last operations need not run again
    reads_back(model, schedule, text)
    found = compare(module, load(text, tmp_path).rematerialize, args, {})
    assert {what: d.where for what, d in found.differences.items() if d.worst is not None} == {}
    assert found.measured_peak_bytes <= peak + SLACK


def test_one_function_is_left():
    args, model, schedule, _ = planned(module := Deep(), "chen")
    text = emit(module, args, {}, model, schedule, None)
    assert "Again(step[" in text and "_again(" not in text


def test_running_statistics_move_once(tmp_path):
    args, model, schedule, _ = planned(module := Deep(nn.BatchNorm1d), "chen")
    text = emit(module, args, {}, model, schedule, None)
    assert "_again(" in text or "_backward(" in text
    made = load(text, tmp_path).rematerialize(module)
    made(*args).sum().backward()
    assert all(layer.norm.num_batches_tracked == 1 for layer in made.layers)


def test_reading_back_sees_a_second_run_that_forgets():
    args, model, schedule, _ = planned(module := Deep(), "chen")
    text = emit(module, args, {}, model, schedule, None)
    line = next(line for line in text.splitlines() if "Again(step[" in line)
    start = line.index("Again(")
    end = line.index(")", start)
    edited = text.replace(line, line[:start] + line[start + len("Again(") : end] + line[end + 1 :])
    assert edited != text
    found = read_back(edited, model)
    assert found.problems


def test_random_choices_of_what_is_rebuilt_read_back(tmp_path):
    args, model, _, _ = planned(module := Deep(), "chen")
    draw, names = random.Random(0), droppable(model.graph)
    for number in range(8):
        schedule = rebuilding(model.graph, {d for d in names if draw.random() < 0.9})
        text = emit(module, args, {}, model, schedule, None)
        reads_back(model, schedule, text, earlier=True)
        found = compare(module, load(text, tmp_path, f"made_{number}").rematerialize, args, {})
        assert {what: d.where for what, d in found.differences.items() if d.worst is not None} == {}


def runs_as_planned(module, order, folder):
    """Exact, read back, and within the simulated peak: what computes everything in this order. `order` is given the graph."""
    torch.manual_seed(0)
    args = (torch.randn(1024, 32),)
    model = model_of(module.train(), args, {})
    schedule = with_forgets(model.graph, order(model.graph))
    validate(model.graph, schedule)
    peak = simulate(model.graph, Measured("cpu", Cache("cpu", enabled=False)).of(model), schedule).peak_bytes
    text = emit(module, args, {}, model, schedule, None)
    reads_back(model, schedule, text, earlier=True)
    found = compare(module, load(text, folder).rematerialize, args, {})
    assert {what: d.where for what, d in found.differences.items() if d.worst is not None} == {}
    assert found.measured_peak_bytes <= peak + 4096


def forward_of(graph, block):
    """The nodes of a block's forward pass."""
    return [*range(graph.blocks[block].first, graph.blocks[block].last + 1)]


@pytest.mark.parametrize("when", [2, 4, 6])
def test_a_rebuild_that_keeps_something_for_another_one(when, tmp_path):
    def order(graph):
        back = [n.id for n in graph.backward_nodes]
        again = forward_of(graph, 0)
        return (*range(graph.loss + 1), *again, *back[:when], again[-1], *back[when:])

    layers = [lambda: Adds(32, 32), lambda: Adds(32, 32), lambda: Multiplies(32, 32), lambda: Multiplies(32, 32)]
    runs_as_planned(Layers(*layers), order, tmp_path)


def test_a_rebuild_that_forgets_what_another_block_made(tmp_path):
    def order(graph):
        back = [n.id for n in graph.backward_nodes]
        return (*range(graph.loss + 1), *forward_of(graph, 1), back[0], *forward_of(graph, 0), *back[1:])

    layers = [lambda: Multiplies(32, 32), lambda: Multiplies(32, 32), lambda: Adds(32, 32), lambda: Adds(32, 32)]
    runs_as_planned(Layers(*layers), order, tmp_path)
