"""Models that are called under torch.autocast: traced, planned, run and checked under it."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path

import pytest
import torch

from remat_codegen.ask.request import Request
from remat_codegen.ask.target import load_target
from remat_codegen.run import pipeline
from remat_codegen.show.results import Progress
from remat_codegen.verify.beside import load_generated

MODEL = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        h = self.norm(x)
        h = self.down(F.dropout(F.gelu(self.up(h)), 0.1, self.training))
        with torch.autocast("cpu", enabled=False):
            gate = h.float() @ h.float().transpose(-2, -1)
        return x + (gate.softmax(-1).to(h.dtype) @ h)


class Once(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Shared(Once):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block()] * 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class WithLoss(Once):
    # The casts of the last layer are worth rebuilding; its result is an output, which stays what it is.
    def forward(self, x):
        logits = super().forward(x).view(-1, 10)
        return logits, F.cross_entropy(logits, torch.zeros(256, dtype=torch.long))


def example_inputs():
    return (torch.randn(8, 32, 64),)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("autocast") / "model.py"
    path.write_text(MODEL)
    return path


def generate(model: Path, name: str, budget: str, folder: Path):
    request = Request(f"{model}:{name}", budget, folder / "out.py", autocast="bfloat16", verify=True)
    return pipeline.generate(request, Progress(None))


CASES = [("Once", "100%"), ("Shared", "75%"), ("WithLoss", "75%")]
FURTHER = [pytest.param(*case, marks=pytest.mark.slow) for case in (("Once", "75%"), ("Shared", "100%"), ("WithLoss", "100%"))]


@pytest.mark.parametrize(("name", "budget"), [*CASES, *FURTHER])
def test_exact_and_within_budget(name, budget, model, tmp_path):
    report = generate(model, name, budget, tmp_path)
    assert report.verify.ok, report.verify.failures()
    assert all("bit-identical" in row.detail for row in report.verify.rows[:-1])
    assert "--autocast bfloat16" in (tmp_path / "out.py").read_text()


def test_called_without_it_is_refused(model, tmp_path):
    generate(model, "Once", "80%", tmp_path)
    made = load_generated(tmp_path / "out.py")
    with pytest.raises(ValueError, match=r"autocast on cpu is None, but .* planned for torch.bfloat16"):
        made.Once()(torch.randn(8, 32, 64))
    with torch.autocast("cpu", torch.bfloat16):
        assert made.Once()(torch.randn(8, 32, 64)).dtype is torch.bfloat16


def test_a_plan_without_it_is_refused_under_it(model, tmp_path):
    pipeline.generate(Request(f"{model}:Once", "90%", tmp_path / "plain.py"), Progress(None))
    made = load_generated(tmp_path / "plain.py")
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="generate it again"):
        made.Once()(torch.randn(8, 32, 64))


def twice(model, split: bool, one_loss: bool):
    """Gradients of two forward passes: each in an autocast of its own or not, and into one loss or two."""
    torch.manual_seed(0)
    losses, casts = [], [torch.autocast("cpu", torch.bfloat16) for _ in range(2)]
    with contextlib.nullcontext() if split else casts[0]:
        for cast in casts:
            with cast if split else contextlib.nullcontext():
                losses.append(model(torch.randn(8, 32, 64)).square().sum())
    for loss in [losses[0] + losses[1]] if one_loss else losses:
        loss.backward()
    return [p.grad for p in model.parameters()]


def test_functions_refuse_two_passes_that_share_copies_of_parameters(model, tmp_path):
    request = Request(f"{model}:Once", "75%", tmp_path / "out.py", autocast="bfloat16", edition=1)
    pipeline.generate(request, Progress(None))
    made = load_generated(tmp_path / "out.py").Once()
    plain = load_target(f"{model}:Once").module
    plain.load_state_dict(made.state_dict())
    with pytest.raises(RuntimeError, match="two forward passes in one autocast go into one loss"):
        twice(copy.deepcopy(made), split=False, one_loss=True)
    for split, one_loss in ((True, True), (False, False), (True, False)):
        of = [twice(copy.deepcopy(m), split, one_loss) for m in (plain, made)]
        assert all(torch.equal(a, b) for a, b in zip(*of, strict=True))


def test_functions_tell_the_passes_of_two_models_apart(model, tmp_path):
    request = Request(f"{model}:Once", "75%", tmp_path / "out.py", autocast="bfloat16", edition=1)
    pipeline.generate(request, Progress(None))
    made = load_generated(tmp_path / "out.py")
    one, other = made.Once(), made.Once()
    x = torch.randn(8, 32, 64)
    with torch.autocast("cpu", torch.bfloat16):
        loss = one(x).sum() + other(x).sum()
    loss.backward()
    assert all(p.grad is not None for m in (one, other) for p in m.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        loss = one(x).sum() + one(x).sum() + other(x).sum()
    with pytest.raises(RuntimeError, match="two forward passes in one autocast"):
        loss.backward()
