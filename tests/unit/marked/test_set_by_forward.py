"""Attributes that forward sets to tensors, as the hooks of weight_norm and of equalized learning rates do: each part has those
of its own step, also where another forward pass came between."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest
import torch
from second_edition import found_in, imported_file, random_rows, text_of, traced_module

from remat_codegen.ask.request import Request
from remat_codegen.marked.features import set_by_forward
from remat_codegen.run import marked, pipeline
from remat_codegen.show.results import Progress
from remat_codegen.verify.beside import load_generated

QUIET = Progress(None)
NET = """
import torch
import torch.nn.functional as F
from torch import nn


class Scaled:
    def __call__(self, module, inputs):
        module.weight = module.weight_orig * (1 + inputs[0].detach().mean())


def scaled(module):
    weight = module.weight
    del module._parameters["weight"]
    module.register_parameter("weight_orig", nn.Parameter(weight.data))
    module.register_forward_pre_hook(Scaled())
    return module


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = scaled(nn.Linear(width, 2 * width)), scaled(nn.Linear(2 * width, width))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        h = F.leaky_relu(self.up(x), 0.2).tanh()
        return x + self.down(F.leaky_relu(h, 0.2))


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(*(Block(32) for _ in range(4)))
"""
WEIGHTS = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import weight_norm


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = (weight_norm(nn.Conv1d(width, width, 3, padding=1)) for _ in range(2))

    def forward(self, x):
        return x + self.second(F.leaky_relu(self.first(F.leaky_relu(x, 0.1)), 0.1))


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(*(Block(16) for _ in range(4)))
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    path = tmp_path_factory.mktemp("set") / "set_by_forward_net.py"
    path.write_text(NET)
    return imported_file(path)


@pytest.fixture(scope="module")
def traced(module, tmp_path_factory):
    torch.manual_seed(0)
    return traced_module(module.Net().train(), (torch.randn(64, 32),), {}, Path(module.__file__))


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    """Of two steps, the forward passes of which come first."""
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    for out in [model(x), model(2 * x[:50] + 1)]:
        out.square().mean().backward()
    return [p.grad for p in model.parameters()]


def test_tensors_that_forward_leaves_are_known(traced):
    assert set_by_forward(traced.target.module, traced.model.trace) == ["Linear.weight"]


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_parts_run_again_with_what_was_set_in_their_step(module, traced, tmp_path, seed):
    found = found_in(traced)
    (tmp_path / "out.py").write_text(text_of(traced, found, random_rows(found, random.Random(seed), 0.3 + 0.2 * seed)))
    own = module.Net().train()
    ours = load_generated(tmp_path / "out.py").rematerialize(copy.deepcopy(own))
    assert all(map(torch.equal, gradients(own), gradients(ours)))


def test_weight_norm_has_a_table(tmp_path):
    (tmp_path / "net.py").write_text(WEIGHTS)
    target, inputs = f"{tmp_path / 'net.py'}:Net", "float32[4,16,512]"
    request = Request(target, "45%", tmp_path / "out.py", inputs=inputs, edition=2)
    marked.generate(request, QUIET)
    assert pipeline.verify(request.output_path, target, inputs=inputs, steps=3, progress=QUIET).ok
