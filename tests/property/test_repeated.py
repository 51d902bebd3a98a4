"""Random blocks, repeated: what they share in the generated file must not cost exactness or memory.

`make fuzz CASES=1000 SEED=7` runs as many as wanted.
"""

from __future__ import annotations

import math
import os
import random

import pytest
import torch
from emitted import emit, load, model_of, reads_back
from torch import nn
from torch.nn import functional as F

from remat_codegen.planners.base.registry import PLANNERS
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.measure import Measured
from remat_codegen.schedule import simulate, validate, without_recomputation
from remat_codegen.schedule.order import order_of
from remat_codegen.verify.beside import compare

CASES = int(os.environ.get("CASES", "16"))
SEED = int(os.environ.get("SEED", "0"))
WIDTH, ROWS = 32, 64
SLACK = 4096  # bytes: seeds of the backward pass, single numbers
STATE = 5056  # bytes of a generator's state
COSTS = Cache("cpu", enabled=False)  # shared by all cases, in memory
NAMES = ("rockmate", "rockmate", "rotor", "rotor", "chen", "dtr", "auto")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return torch.softmax(q @ k.transpose(0, 1) / math.sqrt(WIDTH), dim=-1) @ v


class Branch(nn.Module):
    """What a residual block adds: a few operations, some of which save their results, or draw."""

    def __init__(self, draw):
        super().__init__()
        makers = [
            lambda: nn.Linear(WIDTH, WIDTH),
            lambda: nn.LayerNorm(WIDTH),
            lambda: nn.Dropout(0.3),
            lambda: nn.GELU(),
            nn.ReLU,
            lambda: nn.Tanh(),
            lambda: nn.BatchNorm1d(WIDTH),
            Attention,
        ]
        self.parts = nn.ModuleList([nn.LayerNorm(WIDTH), *(draw.choice(makers)() for _ in range(draw.randint(1, 5)))])
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return self.last(x)


class Layer(nn.Module):
    def __init__(self, seed):
        super().__init__()
        draw = random.Random(seed)
        self.branches = nn.ModuleList([Branch(draw) for _ in range(draw.randint(1, 2))])
        self.scaled, self.dropped = draw.random() < 0.3, draw.random() < 0.5

    def forward(self, x):
        for branch in self.branches:
            added = F.dropout(branch(x), 0.1, self.training) if self.dropped else branch(x)
            x = x * 0.5 + added if self.scaled else x + added
        return x


class Repeated(nn.Module):
    def __init__(self, seed):
        super().__init__()
        draw = random.Random(seed)
        self.start = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList([Layer(seed + 1) for _ in range(draw.randint(4, 9))])
        self.end = nn.Linear(WIDTH, 8 * WIDTH if draw.random() < 0.5 else 3)

    def forward(self, i):
        x = torch.tanh(self.start(i))
        for layer in self.layers:
            x = layer(x)
        return self.end(x)


def planned(name, graph, profile, budget):
    """A schedule within a budget, or within the least that a planner needs; None without one."""
    plan = PLANNERS[name](graph, profile, budget)
    if plan.schedule is None and plan.minimum_bytes is not None:
        plan = PLANNERS[name](graph, profile, plan.minimum_bytes)
    return plan.schedule


def check(seed: int, folder) -> str:
    """Runs one case; returns what it was."""
    draw = random.Random(seed + 1_000_000)
    torch.manual_seed(seed)
    module = Repeated(seed).train()
    args = (torch.randn(ROWS, WIDTH),)
    model = model_of(module, args, {})
    profile = Measured("cpu", COSTS).of(model)
    plain = simulate(model.graph, profile, without_recomputation(model.graph))
    name = draw.choice(NAMES)
    schedule = planned(name, model.graph, profile, int(plain.peak_bytes * draw.uniform(0.2, 0.8)))
    if schedule is None:
        return f"{name}: infeasible"
    validate(model.graph, schedule)
    timeline = simulate(model.graph, profile, schedule)
    text = emit(module, args, {}, model, schedule, None)
    reads_back(model, schedule, text, earlier=True)
    made = load(text, folder)
    found = compare(module, made.rematerialize, args, {}, seed=seed, loss=model.record.loss)
    wrong = {what: (d.where, d.worst) for what, d in found.differences.items() if d.worst is not None}
    assert wrong == {}, f"seed {seed}, {name}: {wrong}"
    order = order_of(schedule)
    again = sum(order.count(n) > 1 for n in set(order))
    over = found.measured_peak_bytes - timeline.peak_bytes - (again + 1) * STATE
    assert over <= SLACK, f"seed {seed}, {name}: {over} bytes over {timeline.peak_bytes}"
    return f"{name}: {len(order) - len(model.graph.nodes)} runs again"


@pytest.mark.parametrize("case", range(CASES))
def test_repeated_blocks(case, tmp_path):
    check(1_000_000 * SEED + case, tmp_path)
