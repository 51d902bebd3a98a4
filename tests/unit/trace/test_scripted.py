"""Functions that torch.jit.script has compiled: refused where a gradient goes through them."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from second_edition import traced_module

from remat_codegen.ask.request import Request
from remat_codegen.ask.target import check_module
from remat_codegen.errors import TargetError, UnsupportedError
from remat_codegen.run import marked
from remat_codegen.show.results import Progress
from remat_codegen.trace import trace

SOURCE = """
import torch
from torch import nn


@torch.jit.script
def gate(a, b):
    return torch.tanh(a) * torch.sigmoid(b)


@torch.jit.script
def positions(x):
    return torch.arange(x.shape[-1], device=x.device) * 0.1


class Net(nn.Module):
    def __init__(self, which="positions"):
        super().__init__()
        self.which, self.layers = which, nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            y = torch.relu(layer(x))
            if self.which == "gate":
                y = gate(y, x)
            x = x + y + positions(x)
        return x.sum(-1)


def example_inputs():
    return (torch.randn(32, 16, generator=torch.Generator().manual_seed(0)),)
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    path = tmp_path_factory.mktemp("scripted") / "scripted_model.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("scripted_model", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["scripted_model"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("recorded", [False, True])
def test_gradients_through_scripted_code_are_refused(scripts, recorded):
    with pytest.raises(UnsupportedError, match=r"gate is compiled by torch\.jit\.script") as found:
        trace(scripts.Net("gate").train(), scripts.example_inputs(), {}, recorded=recorded)
    assert "scripted_model.py:" in (found.value.where or "")
    assert scripts.gate(torch.ones(1), torch.ones(1)).shape == (1,)  # as before


def test_what_no_gradient_goes_through_is_traced(scripts, tmp_path):
    net = scripts.Net().train()
    path = tmp_path / "scripted_model.py"
    path.write_text(SOURCE)
    assert traced_module(net, scripts.example_inputs(), {}, path).model.trace.operations
    report = marked.generate(Request(f"{path}:Net", "75%", tmp_path / "out.py", verify=True), Progress(None))
    assert report.verify is not None and report.verify.ok, report.verify


def test_a_scripted_module_is_refused_by_its_name(scripts):
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.jit.script(torch.nn.Tanh()))
    with pytest.raises(TargetError, match="1 of it is a TorchScript module"):
        check_module(net, "net.py:Net")
