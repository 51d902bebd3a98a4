"""What forward leaves in the model: buffers that it assigns are written; what else it sets is named, or refused."""

from __future__ import annotations

import pytest
import torch

from remat_codegen.ask.request import Request
from remat_codegen.errors import UnsupportedError
from remat_codegen.run import pipeline
from remat_codegen.show.results import Progress
from remat_codegen.verify.beside import load_generated

PARTS = """
import functools
import math

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


class Cached(nn.Linear):
    '''Sets a number that is always the same, beside a tensor that a function caches.'''

    @functools.cached_property
    def scale(self):
        return 1 / math.sqrt(self.in_features)

    def forward(self, x):
        return super().forward(x).tanh() * self.scale + positions(x.shape[0])


@functools.lru_cache(None)
def positions(length):
    return torch.arange(length).float()[:, None] / length


class Switching(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x):
        self.norm.eval()
        return self.norm(self.inner(x))


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


class Swapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("one", torch.zeros(8))
        self.register_buffer("two", torch.ones(8))

    def forward(self, x):
        self.one, self.two = self.two, self.one
        return self.inner(x) * self.one


class Tied(Swapped):
    def __init__(self):
        super().__init__()
        self.two = self.one

    def forward(self, x):
        self.one = self.one + 1
        return self.inner(x) * self.one * self.two


class Kept(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.register_buffer("last", torch.zeros(16, d))
        self.register_buffer("old", torch.ones(16, d))

    def forward(self, x):
        y = self.inner(x) * self.old + self.last
        self.old = 0.9 * self.old
        self.last = x
        return y


def example_inputs():
    return torch.randn(16, 8) + 1
"""


def request(write_file, tmp_path, name, budget="100%", **options):
    return Request(f"{write_file(PARTS)}:{name}", budget, tmp_path / "out.py", verify=True, **options)


@pytest.mark.parametrize(("name", "budget"), [("Nothing", "100%"), ("Deep", "75%"), ("Deep", "100%"), ("Kept", "100%")])
def test_buffers_that_forward_assigns_move_as_in_the_original(name, budget, write_file, tmp_path):
    report = pipeline.generate(request(write_file, tmp_path, name, budget), Progress(None))
    assert report.verify.ok and not [note for note in report.notes if "forward changes" in note]


def test_what_is_never_read_is_named(write_file, tmp_path):
    report = pipeline.generate(request(write_file, tmp_path, "Last", init="8, 8"), Progress(None))
    assert report.verify.ok
    assert "forward changes seen; training steps of this file leave that as it is" in report.notes


def test_what_comes_out_the_same_is_not_refused(write_file, tmp_path):
    assert pipeline.generate(request(write_file, tmp_path, "Cached", init="8, 8"), Progress(None)).verify.ok


def test_switching_modes_is_refused(write_file, tmp_path):
    with pytest.raises(UnsupportedError, match="forward switches norm to another mode"):
        pipeline.generate(request(write_file, tmp_path, "Switching"), Progress(None))


@pytest.mark.parametrize(("name", "what"), [("Hidden", "state"), ("Cache", "cache")])
def test_what_the_next_call_computes_with_is_refused(name, what, write_file, tmp_path):
    with pytest.raises(UnsupportedError, match=f"forward changes {what}, and computes with it"):
        pipeline.generate(request(write_file, tmp_path, name), Progress(None))


@pytest.mark.parametrize(
    ("name", "init", "said"),
    [
        ("Lengthened", "8, 8", r"the buffer memory a torch.float32 of shape \[2, 8\], and it was torch.float32 of \[1, 8\]"),
        ("Swapped", "", "the buffer one what is the memory of a parameter or of a buffer"),
        ("Tied", "", "the buffer one a tensor, but not to two, which is the same buffer"),
    ],
)
def test_buffers_that_cannot_be_assigned_are_refused(name, init, said, write_file, tmp_path):
    with pytest.raises(UnsupportedError, match=f"forward assigns to {said}"):
        pipeline.generate(request(write_file, tmp_path, name, init=init), Progress(None))


def test_what_holds_an_old_buffer_keeps_it(write_file, tmp_path):
    """The buffer is another tensor after a step, as in the original."""
    pipeline.generate(request(write_file, tmp_path, "Kept"), Progress(None))
    net, x = load_generated(tmp_path / "out.py").Kept(), torch.randn(16, 8)
    net.eval()(x)
    before, values = x.clone(), net.last
    net.train()(torch.randn(16, 8)).sum().backward()
    assert x.equal(before) and net.last is not values and values.equal(before)
    assert net.last.equal(net.state_dict()["last"])
