"""Numbers that forward reads of its modules: a step refuses a model that holds others than those that were traced."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from emitted import droppable, emit, load, model_of, rebuilding

import remat_codegen
from remat_codegen.ask.request import Request
from remat_codegen.run import pipeline
from remat_codegen.show.results import Progress
from remat_codegen.trace.settings import Reads
from remat_codegen.verify.beside import load_generated

SOURCE = """
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum

import torch
import torch.nn.functional as F
from torch import nn

Mode = Enum("Mode", "FAST SLOW")


@dataclass
class Config:
    width: int = 8
    slope: float = 0.5


class Part(nn.Module):
    gain = 1.5

    def __init__(self, config, heads, act, scale, causal):
        super().__init__()
        self.config, self.heads, self.act, self.scale, self.causal = config, heads, getattr(F, act), scale, causal
        self.name, self.seen, self.last = "part", 0, None
        self.metrics, self.history, self.table = {}, [], defaultdict(float)
        self.mode, self.shifts, self.many = Mode.FAST, [1, 2], {"b", "a", "c"}
        self.inner, self.drop = nn.Linear(config.width, config.width), nn.Dropout(0.25)

    def forward(self, x):
        self.last = "forward"
        self.metrics["size"] = x.shape[0]
        self.history.append(x.shape[0])
        if self.table["more"] or self.mode is Mode.SLOW or "d" in self.many:
            x = x.sin()
        x = x.roll(sum(self.shifts), 0)
        h = self.inner(x).view(x.shape[0], self.heads, -1)
        h = h.flip(1) if self.causal else h
        return self.drop(self.act(h.flatten(1)) * self.scale * self.gain) * self.config.slope


class Net(nn.Module):
    def __init__(self, heads=2, act="gelu", scale=1.5, causal=False, slope=0.5):
        super().__init__()
        self.parts = nn.ModuleList(Part(Config(slope=slope), heads, act, scale, causal) for _ in range(3))
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        for part in self.parts:
            x = x + part(self.norm(x))
        return x


def example_inputs():
    return (torch.randn(64, 8),)
"""


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings")
    (folder / "net.py").write_text(SOURCE)
    output = folder / "net_remat.py"
    pipeline.generate(Request(f"{folder / 'net.py'}:Net", "80%", output), Progress(None))
    return load_generated(output)


def changed(name, value):
    def change(net):
        setattr(net.parts[1], name, value)

    return change


def drops_more(net):
    net.parts[2].drop.p = 0.5


@pytest.mark.parametrize(
    "setting, change",
    [
        ("heads", changed("heads", 4)),
        ("act", changed("act", torch.nn.functional.relu)),
        ("scale", changed("scale", 2.0)),
        ("gain", changed("gain", 0.5)),
        ("causal", changed("causal", True)),
        ("mode", changed("mode", None)),
        ("shifts", changed("shifts", [1, 3])),
        ("p", drops_more),
        ("eps", lambda net: setattr(net.norm, "eps", 0.1)),
    ],
)
def test_a_step_refuses_other_settings(generated, setting, change):
    net = generated.Net()
    change(net)
    with pytest.raises(ValueError, match=rf"^[\w.]+ is \w.*\b{setting}=.* was planned for .*: generate it again"):
        net(*torch.randn(1, 64, 8))


def test_a_step_refuses_another_number_of_a_class(generated, monkeypatch):
    net = generated.Net()
    monkeypatch.setattr(type(net.parts[0]), "gain", 0.5)
    with pytest.raises(ValueError, match=r"gain=0.5.* was planned for .*gain=1.5"):
        net(torch.randn(64, 8))


@pytest.mark.parametrize("init", [{"heads": 4}, {"act": "relu"}, {"scale": 2.0}, {"causal": True}])
def test_a_model_of_other_arguments_is_refused(generated, init):
    with pytest.raises(ValueError, match="generate it again"):
        generated.Net(**init)(torch.randn(64, 8))


def test_the_message_says_both_values(generated):
    with pytest.raises(ValueError, match=r"^parts.0 is \w+.*, scale=2.0, .* planned for .*, scale=1.5, .*: generate"):
        generated.Net(scale=2.0)(torch.randn(64, 8))


def test_what_forward_does_not_read_or_sets_may_change(generated):
    net = generated.Net()
    net.parts[0].name, net.parts[0].seen, net.parts[0].last, net.more = "other", 3, "evaluated", 7
    net.eval()(torch.randn(16, 8))  # fills what is filled
    net.parts[0].config.width, net.train().parts[1].history = 5, [1]
    net(torch.randn(64, 8)).sum().backward()


def test_hooks_that_libraries_set_on_submodules_are_no_other_model(generated):
    """As those of transformers do, which set them when hidden states are first asked for."""
    net, seen, x = generated.Net(), [], torch.randn(64, 8)
    net.register_forward_hook(lambda module, args, result: seen.append("net"))
    net.parts[1].inner.register_forward_hook(lambda module, args, result: seen.append("inner"))
    with pytest.warns(UserWarning, match=r"the hook .*<lambda> of parts.1.inner does not fire in .*--edition 2"):
        net(x).sum().backward()
    with warnings.catch_warnings(action="error"):  # said once
        net(x).sum().backward()
    net.eval()(x)
    assert seen == ["net", "net", "inner", "net"]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated", "error:the hook")
def test_hooks_that_are_part_of_a_file_are_not_told_of(tmp_path):
    """What they compute was traced; a hook beside them is another one."""
    net = torch.nn.Sequential(torch.nn.utils.weight_norm(torch.nn.Linear(8, 8)), torch.nn.Tanh()).train()
    x = torch.randn(64, 8)
    model = remat_codegen.rematerialize(net, (x,), budget="100%", edition=1)
    model(x).sum().backward()
    net[0].register_full_backward_hook(print)
    with pytest.warns(UserWarning, match="the hook print of 0 does not fire in training steps"):
        model(x).sum().backward()


def test_evaluation_goes_by_the_model(generated):
    net = generated.Net(scale=2.0).eval()
    other = generated.Net().eval()
    other.load_state_dict(net.state_dict())
    x = torch.randn(64, 8)
    assert not torch.equal(net(x), other(x))


def test_reads_leave_out_what_nobody_asked_for():
    reads, embedding = Reads(), torch.nn.Embedding(4, 2)
    with reads.noted():
        embedding(torch.tensor([1]))
    assert reads.of(embedding, []) == ("norm_type",)


def test_attributes_are_as_before_when_reads_were_noted():
    before = torch.nn.Module.__setattr__, torch.Tensor.dtype
    with pytest.raises(RuntimeError), Reads().noted():
        raise RuntimeError
    assert before == (torch.nn.Module.__setattr__, torch.Tensor.dtype)
    assert "__getattribute__" not in vars(torch.nn.Module)


class Casting(torch.nn.Module):
    """Computes its norm in float32, whatever its weights are, as language models do."""

    def __init__(self):
        super().__init__()
        self.embedding, self.inner = torch.nn.Embedding(10, 8), torch.nn.Linear(8, 8)

    def forward(self, idx):
        x = self.embedding(idx)
        h = x.float()
        return self.inner((h * h.square().mean(-1, keepdim=True).rsqrt()).to(x.dtype)).tanh()


class Plain(Casting):
    """Mentions no types."""

    def forward(self, idx):
        return self.inner(self.embedding(idx).sin()).tanh()


class Masking(Casting):
    """Its mask is the least number of the type that the weights have."""

    def forward(self, idx):
        x = self.inner(self.embedding(idx))
        return x.masked_fill(idx[..., None] > 5, torch.finfo(x.dtype).min).softmax(-1)


def rematerialized(module, args, folder):
    model = model_of(module, args, {})
    schedule = rebuilding(model.graph, set(droppable(model.graph)))
    return load(emit(module, args, {}, model, schedule, None), folder, type(module).__name__.lower()).rematerialize


class Asking(Casting):
    """Does something else in another type."""

    def forward(self, idx):
        x = self.inner(self.embedding(idx))
        return (x.sin() if x.dtype == torch.float32 else x.cos()).tanh()


@pytest.mark.parametrize("kind", [Casting, Masking, Asking])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_are_refused_where_forward_mentions_types(kind, dtype, tmp_path):
    idx = torch.randint(10, (4, 6), generator=torch.Generator().manual_seed(0))
    generated = rematerialized(kind(), (idx,), tmp_path)(kind())
    generated(idx).sum().backward()
    message = f"parameters are of {{{dtype}}}, but this file was planned for {{torch.float32}}: generate it again"
    with pytest.raises(ValueError, match=message):
        generated.to(dtype)(idx)
    generated.eval()(idx)


def test_other_types_are_exact_where_forward_mentions_none(tmp_path):
    idx = torch.randint(10, (4, 6), generator=torch.Generator().manual_seed(0))
    original = Plain()
    generated = rematerialized(original, (idx,), tmp_path)(copy.deepcopy(original)).to(torch.bfloat16)
    original.to(torch.bfloat16)
    for model in (original, generated):
        model(idx).sum().backward()
    assert all(a.grad.equal(b.grad) for a, b in zip(original.parameters(), generated.parameters(), strict=True))
