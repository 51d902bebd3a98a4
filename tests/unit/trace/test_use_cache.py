"""Models that return a cache for generation, as those of transformers do by their configuration: training steps make none."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from remat_codegen.ask.request import Request
from remat_codegen.ask.target import load_target
from remat_codegen.errors import RematError
from remat_codegen.run import marked, pipeline
from remat_codegen.show.results import Progress
from remat_codegen.verify.beside import load_generated

MODEL = """
from types import SimpleNamespace

import torch
from torch import nn


class Cache:
    def __init__(self, x):
        self.x = x


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)
        self.up, self.down, self.act = nn.Linear(16, 64), nn.Linear(64, 16), nn.Tanh()

    def forward(self, x, use_cache=None):
        use_cache = self.config.use_cache if use_cache is None else use_cache
        for _ in range(4):
            x = x + self.down(self.act(self.up(x)))
        return (x, Cache(x)) if use_cache else (x,)


def made():
    return Language()


def example_inputs():
    return (torch.randn(64, 16),)


globals()  # so that the file wraps the model
"""


@pytest.mark.parametrize("generate", [pipeline.generate, marked.generate])
def test_training_steps_make_no_cache(write_file, tmp_path, generate):
    said, output = io.StringIO(), tmp_path / "made_remat.py"
    target = f"{write_file(MODEL, f'makes_a_cache_{generate.__module__[-6:]}.py')}:made"
    report = generate(Request(target, "70%", output, verify=True), Progress(Console(file=said, width=200)))
    assert report.verify is not None and report.verify.ok, report.verify.failures()
    assert "training steps run with use_cache=False" in said.getvalue()
    original = load_target(target).module
    model, x = load_generated(output).rematerialize(original), torch.randn(64, 16)
    assert len(model(x)) == 1 and len(model.eval()(x)) == 2  # evaluation is as it was
    assert len(model.train()(x, use_cache=False)) == 1


@pytest.mark.parametrize("generate", [pipeline.generate, marked.generate])
def test_carried_classes_make_none_either(write_file, tmp_path, generate):
    output = tmp_path / "made_remat.py"
    text = MODEL.partition("\n\nglobals()")[0]
    target = f"{write_file(text, f'carries_a_cache_{generate.__module__[-6:]}.py')}:Language"
    report = generate(Request(target, "70%", output, verify=True), Progress(None))
    assert report.verify is not None and report.verify.ok, report.verify.failures()
    model, x = load_generated(output).Language(), torch.randn(64, 16)
    assert len(model(x)) == 1 and len(model.eval()(x)) == 2


def test_who_asks_for_a_cache_is_told(write_file, tmp_path):
    target = f"{write_file(MODEL)}:made"
    with pytest.raises(RematError, match="use_cache=False"):
        pipeline.generate(Request(target, "70%", tmp_path / "o.py", inputs="x=float32[64,16]; use_cache=True"), Progress(None))


def test_other_models_are_called_as_they_are(write_file):
    for old in ("use_cache=True", "use_cache=None"):  # off already, and no argument
        text = MODEL.replace(old, "use_cache=False" if "True" in old else "cached=None")
        assert load_target(f"{write_file(text)}:made").kwargs == {}
