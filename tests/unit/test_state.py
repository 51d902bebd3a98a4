"""What forward leaves in the model: buffers that it assigns are written; what else it sets is named, or refused."""

from __future__ import annotations

import pytest

from remat_codegen import pipeline
from remat_codegen.errors import UnsupportedError
from remat_codegen.report import Progress
from remat_codegen.request import Request

PARTS = """
import torch
from torch import nn


class Ema(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            self.steps += 1
        return x - self.mean.detach()


class Nothing(nn.Module):
    '''Buffers that are None stand before those that forward assigns.'''

    def __init__(self, d=8):
        super().__init__()
        self.register_buffer("weight", None)
        self.norm = nn.BatchNorm1d(d, track_running_stats=False)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("steps", torch.zeros(()))
        self.ema, self.inner = Ema(d), nn.Linear(d, d)

    def forward(self, x):
        self.steps = self.steps + 1
        return self.ema(self.inner(self.norm(x))) * self.scale


class Deep(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        inner = [nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(3)]
        self.blocks = nn.ModuleList(nn.Sequential(block, Ema(d)) for block in inner)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


class Last(nn.Linear):
    '''Sets what it never reads.'''

    def forward(self, x):
        self.seen = [super().forward(x)]
        return self.seen[0].relu()


class Hidden(nn.Module):
    '''Goes on from where the last call ended.'''

    def __init__(self, d=8):
        super().__init__()
        self.cell, self.state = nn.GRUCell(d, d), None

    def forward(self, x):
        self.state = self.cell(x, None if self.state is None else self.state.detach())
        return self.state


class Cache(nn.Module):
    '''Makes something in its first call, from the input.'''

    def __init__(self, d=8):
        super().__init__()
        self.inner, self.cache = nn.Linear(d, d), {}

    def forward(self, x):
        if "mean" not in self.cache:
            self.cache["mean"] = x.mean(0)
        return self.inner(x) - self.cache["mean"]


class Lengthened(nn.Linear):
    def __init__(self, *given):
        super().__init__(*given)
        self.register_buffer("memory", torch.zeros(1, 8))

    def forward(self, x):
        self.memory = torch.cat([self.memory, x[:1]])
        return super().forward(x) + self.memory.sum(0)


def example_inputs():
    return torch.randn(16, 8) + 1
"""


def request(write_file, tmp_path, name, budget="100%", **options):
    return Request(f"{write_file(PARTS)}:{name}", budget, tmp_path / "out.py", verify=True, **options)


@pytest.mark.parametrize(("name", "budget"), [("Nothing", "100%"), ("Deep", "75%"), ("Deep", "100%")])
def test_buffers_that_forward_assigns_move_as_in_the_original(name, budget, write_file, tmp_path):
    report = pipeline.generate(request(write_file, tmp_path, name, budget), Progress(None))
    assert report.verify.ok and not [note for note in report.notes if "forward changes" in note]


def test_what_is_never_read_is_named(write_file, tmp_path):
    report = pipeline.generate(request(write_file, tmp_path, "Last", init="8, 8"), Progress(None))
    assert report.verify.ok
    assert "forward changes seen; training steps of this file leave that as it is" in report.notes


@pytest.mark.parametrize(("name", "what"), [("Hidden", "state"), ("Cache", "cache"), ("Lengthened", "memory")])
def test_what_the_next_call_computes_with_is_refused(name, what, write_file, tmp_path):
    init = "8, 8" if name == "Lengthened" else ""
    with pytest.raises(UnsupportedError, match=f"forward changes {what}, and computes with it"):
        pipeline.generate(request(write_file, tmp_path, name, init=init), Progress(None))
