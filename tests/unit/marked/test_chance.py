"""Models whose forward draws from Python's or NumPy's generators: one run is planned for, and files draw as the model does."""

from __future__ import annotations

import copy
import random

import numpy
import pytest
import torch
from second_edition import imported_file

from remat_codegen.ask.request import Request
from remat_codegen.errors import TraceError, UnsupportedError
from remat_codegen.run import check_update, marked
from remat_codegen.run.pipeline import verify
from remat_codegen.show.results import Progress
from remat_codegen.trace.training import seed_all
from remat_codegen.verify.beside import load_generated

SOURCE = """
from copy import copy
from random import random

import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([copy(nn.Linear(64, 64)) for _ in range(6)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(torch.sin(x)))
            if random() < 0.5:
                x = torch.cos(x) * random()
            x = torch.sin(torch.cos(x)) + float(np.random.rand())
        return x.sum()


class Dropped(Net):
    def forward(self, x):
        x = self.layers[0](x)
        for layer in self.layers:
            if self.training and random() < 0.5:
                continue
            x = torch.tanh(layer(torch.sin(torch.cos(x))))
        return x.sum()


class Rare(Net):
    def forward(self, x):
        for layer in self.layers:
            if random() < 0.01 or float(np.random.rand()) > 0.99:
                x = x * 2
            x = torch.tanh(layer(torch.sin(torch.cos(x))))
        return x.sum()


class Own(Net):
    def forward(self, x):
        return super().forward(x * DRAWS.random())


class Unused(Net):
    def forward(self, x):
        for layer in self.layers:
            if random() < 0.0:
                x = x * 2
            x = torch.tanh(layer(torch.sin(torch.cos(x))))
        return x.sum()


DRAWS = np.random.default_rng(0)


class Plain(Net):
    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(torch.sin(torch.cos(x))))
        return x.sum()


class First(Plain):
    def __init__(self):
        super().__init__()
        for layer in self.layers:
            layer.rng = np.random.default_rng(0)

    def forward(self, x):
        return super().forward(x * self.layers[0].rng.random())


def example_inputs():
    return (torch.rand(512, 64),)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    file = tmp_path_factory.mktemp("chance") / "model.py"
    file.write_text(SOURCE)
    return file


def generated(model, name, **options):
    output, progress = model.with_name(f"{name.lower()}_remat.py"), Progress()
    request = Request(f"{model}:{name}", "60%", output, **options)
    marked.generate(request, progress)
    return output, progress


@pytest.mark.parametrize("name", ["Net", "Dropped", "Rare"])
def test_files_draw_what_the_model_draws(model, name):
    torch.manual_seed(0)
    states = random.getstate(), numpy.random.get_state()
    output, progress = generated(model, name)
    assert any("note: forward, by Python's random, depends on values" in " ".join(note.split()) for note in progress.noted)
    assert verify(output, f"{model}:{name}", steps=2, progress=Progress(None)).ok
    assert not check_update.check(output, Progress(None)).reasons
    random.setstate(states[0]), numpy.random.set_state(states[1])  # `verify` seeds, as it does PyTorch's
    theirs = getattr(imported_file(model), name)().train()
    ours = load_generated(output).rematerialize(copy.deepcopy(theirs))
    for seed in (*range(8), 139):  # by which the first number is below 0.01
        losses = []
        for net in (theirs, ours):
            seed_all(seed)
            losses.append(net(torch.rand(32, 64)))
            losses[-1].backward()
        assert torch.equal(*losses)
        pairs = zip(theirs.parameters(), ours.parameters(), strict=True)
        assert all(a.grad is b.grad is None or torch.equal(a.grad, b.grad) for a, b in pairs), seed


def test_generators_go_on_as_if_nothing_was(model):
    random.seed(7), numpy.random.seed(7)
    wanted = random.random(), numpy.random.rand()
    random.seed(7), numpy.random.seed(7)
    with pytest.raises(UnsupportedError, match="forward, by Python's random, depends on values, which no file of functions"):
        generated(model, "Dropped", edition=1)
    generated(model, "Dropped")
    drawn = random.random(), numpy.random.rand()
    assert drawn == wanted


def test_a_device_that_is_not_there_runs_nothing_that_could_be_recorded(model):
    with pytest.raises(TraceError, match="forward draws from Python's random, whose numbers a trace would hold for good"):
        generated(model, "Dropped", device="t4")


@pytest.mark.parametrize("name", ["Plain", "Unused"])
def test_nothing_is_said_where_nothing_is_drawn(model, name):
    assert not any("depends on values" in note for note in generated(model, name)[1].noted)


@pytest.mark.parametrize("name, own", [("Own", "DRAWS"), ("First", r"self\.rng")])
def test_generators_of_a_model_s_own_are_refused(model, name, own):
    with pytest.raises(UnsupportedError, match=f"forward draws from {own}, which no plan sets back"):
        generated(model, name)
