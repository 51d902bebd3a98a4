"""Hooks that forward registers itself, in its first call, as libraries do to hand out hidden states."""

from __future__ import annotations

import runpy
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from remat_codegen.ask.request import Request
from remat_codegen.errors import TraceError, UnsupportedError
from remat_codegen.run import marked
from remat_codegen.show.results import Progress
from remat_codegen.trace import trace
from remat_codegen.verify.beside import load_generated

NET = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 128), nn.Linear(128, 16)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)).sin())


class Looking(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.weights = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        self.prepare()
        self.found = []
        for layer in self.layers:
            x = layer(x)
        found, self.found = self.found, []
        return (torch.stack(found) * self.weights.softmax(0)[:, None, None]).sum(0)

    def prepare(self):
        if not getattr(self, "hooked", False):
            for layer in self.layers:
                layer.register_forward_hook(lambda module, args, output: self.found.append(output))
            self.hooked = True


class Acting(Looking):
    def prepare(self):
        if not getattr(self, "hooked", False):
            for layer in self.layers:
                layer.up.register_forward_hook(lambda module, args, output: 2 * output)
        super().prepare()


class Marking(Looking):
    def prepare(self):
        if not getattr(self, "hooked", False):
            for layer in self.layers:
                layer.up.register_forward_pre_hook(lambda module, args: setattr(module, "seen", args[0]))
        super().prepare()


class Late(Layer):
    def forward(self, x):
        x = super().forward(x)
        if not self.up._forward_hooks:
            self.up.register_forward_hook(lambda module, args, output: 2 * output)
        return x


class Failing(Looking):
    def forward(self, x):
        self.prepare()
        return super().forward(x) @ x


def example_inputs():
    return torch.randn(64, 16)
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "net.py"


def load(file):
    """What the model's file has."""
    return SimpleNamespace(**runpy.run_path(str(file)))


def made(name, file, capsys):
    """The text of the file for a model, and what is said beside."""
    request = Request(f"net.py:{name}", "70%", file.parent / "out.py")
    marked.generate(request, Progress(Console(stderr=True, width=400)))
    return (file.parent / "out.py").read_text(), capsys.readouterr().err


def gradients(model, steps):
    """What each of so many steps leaves, of an optimizer that moves the parameters."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x in torch.randn(steps, 64, 16, generator=torch.Generator().manual_seed(0)):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        yield [p.grad.clone() for p in model.parameters()]
        optimizer.step()


def hooks(model):
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._forward_hooks_always_called) for m in model.modules()]


def test_a_trace_leaves_a_models_hooks_as_they_were(file):
    net = load(file).Looking()
    net.layers[0].register_forward_hook(lambda *_: None, always_call=True)
    before, own = hooks(net), [*net.layers[0]._forward_hooks]
    one = trace(net, (torch.randn(64, 16),), {})
    assert hooks(net) == before and [*net.layers[0]._forward_hooks] == own and not hasattr(net, "hooked")
    assert len(trace(net, (torch.randn(64, 16),), {}).operations) == len(one.operations)
    net(torch.randn(64, 16))
    assert sum(hooks(net)) == sum(before) + 3 and net.hooked


def test_so_does_a_forward_that_fails(file):
    net = load(file).Failing()
    with pytest.raises(TraceError):
        trace(net, (torch.randn(64, 16),), {})
    assert not any(hooks(net)) and not hasattr(net, "hooked")


@pytest.mark.slow
def test_a_file_with_marks_is_exact_from_the_first_step_on(file, capsys):
    text, said = made("Looking", file, capsys)
    assert "PLAN = {" in text and "written as functions" not in said
    torch.manual_seed(0)
    original = load(file).Looking()
    ours = load_generated(file.parent / "out.py").Looking()
    ours.load_state_dict(original.state_dict())
    for theirs, mine in zip(gradients(original, 4), gradients(ours, 4), strict=True):
        assert all(map(torch.equal, theirs, mine))
    assert hooks(original) == hooks(ours)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("Acting", "Linear"), ("Marking", "Linear")])
def test_hooks_that_do_more_than_look_are_for_files_of_functions(file, capsys, name, kind):
    """The step that registers them would run parts again without them."""
    text, said = made(name, file, capsys)
    assert "run_forward" in text and f"a {kind} gets a hook in forward that does more than look" in said


def test_hooks_that_change_what_the_next_call_computes_are_refused(file):
    with pytest.raises(UnsupportedError, match=r"forward changes the set of hooks, and computes with it: .*; register them"):
        trace(load(file).Late(), (torch.randn(64, 16),), {})
