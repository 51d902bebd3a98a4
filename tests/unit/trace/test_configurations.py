"""What forward reads of the objects that modules hold: a step refuses a model of another configuration, and says of what."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT

from remat_codegen.ask.request import Request
from remat_codegen.errors import VerifyError
from remat_codegen.run import pipeline
from remat_codegen.show.results import Progress
from remat_codegen.trace import trace
from remat_codegen.trace.objects import Objects, is_setting
from remat_codegen.verify.beside import load_generated, own_model

MODEL = """
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn


{config}


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.inner = config, nn.Linear(8, 8)

    def forward(self, x):
        h = self.inner(x)
        h = F.gelu(h) if {act} == "gelu" else h.tanh()
        return F.dropout(h, {p}, self.training) + x


class Net(nn.Module):
    def __init__(self, config=None, **given):
        super().__init__()
        self.config = config or make(**given)
        self.blocks = nn.ModuleList(Block(self.config) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def example_inputs():
    return (torch.randn(64, 8),)
"""

DATACLASS = """
@dataclass
class Config:
    act: str = "gelu"
    p: float = 0.25
    title: str = "unread"


make = Config
"""
SLOTTED = DATACLASS.replace("@dataclass", "@dataclass(frozen=True, slots=True)")
NAMESPACE = """
def make(act="gelu", p=0.25):
    return SimpleNamespace(act=act, p=p)
"""
DICT = """
def make(act="gelu", p=0.25):
    return {"act": act, "p": p}
"""
NESTED = """
@dataclass
class Activation:
    act: str = "gelu"
    layers: list = field(default_factory=list)
    title: str = "unread"


class Config:
    def __init__(self, act="gelu", p=0.25, title="unread"):
        self.inner = Activation(act, [{"p": p}], title)


make = Config
"""
PRETRAINED = '''
class Config:
    """As transformers writes them."""

    attribute_map = {"act": "activation_function"}

    def __init__(self, act="gelu", p=0.25, title="unread"):
        self.activation_function, self.rate, self.title = act, p, title

    @property
    def p(self):
        return self.rate

    def __getattribute__(self, key):
        if key != "attribute_map" and key in super().__getattribute__("attribute_map"):
            key = super().__getattribute__("attribute_map")[key]
        return super().__getattribute__(key)

    def __setattr__(self, key, value):
        super().__setattr__(super().__getattribute__("attribute_map").get(key, key), value)


make = Config
'''
PLAIN = ("self.config.act", "self.config.p")
KINDS = {
    "dataclass": (DATACLASS, *PLAIN, ("config.act", "config.p")),
    "slotted": (SLOTTED, *PLAIN, ("config.act", "config.p")),
    "namespace": (NAMESPACE, *PLAIN, ("config.act", "config.p")),
    "dict": (DICT, 'self.config["act"]', 'self.config.get("p")', ("config.act", "config.p")),
    "nested": (
        NESTED,
        "self.config.inner.act",
        'self.config.inner.layers[0]["p"]',
        ("config.inner.act", "config.inner.layers[0].p"),
    ),
    "pretrained": (PRETRAINED, *PLAIN, ("config.act", "config.rate")),
}


def written(folder, kind):
    config, act, p, _ = KINDS[kind]
    text = MODEL.replace("{config}", config.strip()).replace("{act}", act).replace("{p}", p)
    (folder / "net.py").write_text(text)
    return folder / "net.py"


@pytest.fixture(scope="module", params=KINDS)
def made(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    source, output = written(folder, request.param), folder / "net_remat.py"
    pipeline.generate(Request(f"{source}:Net", "80%", output), Progress(None))
    return request.param, load_generated(output), runpy.run_path(str(source))


def refusal(model):
    with pytest.raises(ValueError) as caught:
        model(torch.randn(64, 8))
    return str(caught.value)


def test_a_model_of_another_configuration_is_refused(made):
    kind, generated, original = made
    act, p = KINDS[kind][-1]
    generated.Net()(torch.randn(64, 8)).sum().backward()
    generated.Net(p=0.25, act="gelu")(torch.randn(64, 8)).sum().backward()
    other = f"{act} is 'tanh', but this file was planned for 'gelu': generate it again"
    assert refusal(generated.Net(act="tanh")).endswith(other)
    assert refusal(generated.rematerialize(original["Net"](act="tanh"))).endswith(other)
    assert refusal(generated.Net(p=0.5)).endswith(f"{p} is 0.5, but this file was planned for 0.25: generate it again")
    generated.Net(act="tanh").eval()(torch.randn(64, 8))


def test_a_configuration_that_changes_later_is_refused(made):
    kind, generated, _ = made
    net, x = generated.Net(), torch.randn(64, 8)
    net(x).sum().backward()
    net.blocks[2].config = generated.make(act="tanh")
    assert refusal(net).startswith(f"blocks.2.{KINDS[kind][-1][0]} is 'tanh'")


def test_what_forward_does_not_read_may_differ(made):
    kind, generated, _ = made
    assert "title" not in str(generated.OBJECTS)
    if kind not in ("namespace", "dict"):
        generated.Net(title="other")(torch.randn(64, 8)).sum().backward()


def test_layers_of_one_configuration_are_one_row(made):
    assert len(made[1].OBJECTS) == {"nested": 2}.get(made[0], 1)


PARTS = """
import torch
from torch import nn


class Config(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name)


class Part(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.inner = config, nn.Linear(8, 8)

    def forward(self, x):
        return self.config.get("scale") * self.inner(x).tanh()


class Net(nn.Module):
    def __init__(self, scale=2.0):
        super().__init__()
        self.own = [Config(scale=1.0), Config(scale=scale)]
        self.mixed = nn.ModuleList([nn.Linear(8, 8), Part(Config(scale=scale))])
        self.named = nn.ModuleDict({"a": Part(Config(scale=3.0)), "0": Part(Config(scale=scale))})
        self.some = nn.ModuleList([Part(Config(scale=scale)), None, Part(Config(scale=scale))])
        self.add_module("part-1", Part(Config(scale=scale)))

    def forward(self, x):
        for part in (*self.mixed, *self.named.values(), getattr(self, "part-1"), *self.some):
            x = x if part is None else part(x)
        return x * self.own[0].scale * self.own[1].scale


def example_inputs():
    return (torch.randn(64, 8),)
"""


def test_configurations_in_lists_and_in_some_parts_only_are_found(tmp_path):
    (tmp_path / "net.py").write_text(PARTS)
    output = tmp_path / "net_remat.py"
    pipeline.generate(Request(f"{tmp_path / 'net.py'}:Net", "100%", output), Progress(None))
    generated = load_generated(output)
    generated.Net()(torch.randn(64, 8)).sum().backward()
    assert refusal(generated.Net(scale=4.0)) == "own[1].scale is 4.0, but this file was planned for 2.0: generate it again"
    assert {"some.*.config", "mixed.1.config", "named.0.config"} <= set(" ".join(generated.OBJECTS).split())
    assert all(set(settings) == {"scale"} for settings in generated.OBJECTS.values())


def test_what_is_data_is_no_setting():
    assert is_setting(["word"] * 256) and not is_setting(["word"] * 257) and not is_setting((1, tuple(range(257))))


def test_a_model_that_cannot_be_copied_is_not_verified():
    class Config(dict):
        __getattr__ = dict.__getitem__

    module = torch.nn.Linear(8, 8)
    module.config = Config(scale=2.0)
    with pytest.raises(VerifyError, match="cannot be copied: KeyError: '__deepcopy__'"):
        own_model(module)


class Plain:
    kind, many = "plain", 3

    def __init__(self):
        self.calls = 0


class Holder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = Plain()


def test_classes_are_as_before():
    objects, plain = Objects(), Plain()
    objects.meet(plain)
    assert "__getattribute__" in vars(Plain) and plain.kind == "plain" and type(plain) is Plain
    objects.forget_classes()
    assert "__getattribute__" not in vars(Plain)


def test_what_forward_changes_is_left_out_and_what_is_missing_counts():
    objects, holder = Objects(), Holder()
    objects.meet(holder.plain)
    holder.plain.calls += 1
    assert (holder.plain.many, getattr(holder.plain, "other", None), hasattr(holder, "x")) == (3, None, False)
    objects.forget_classes()
    assert objects.rows(holder, {"plain": None}, set()) == {"plain": {"many": "3", "other": "missing"}}


def test_a_file_says_so_in_the_process_that_a_user_starts(tmp_path):
    """The command makes the file; a script that knows nothing else trains it."""
    written(tmp_path, "dataclass")
    places = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "remat_codegen", "net.py:Net", "--budget", "80%", "-o", "net_remat.py", "--edition", "1"]
    subprocess.run(command, cwd=tmp_path, env=places, check=True, capture_output=True)
    script = "import torch, net_remat as n\nn.Net(n.Config(act={!r}))(torch.randn(64, 8)).sum().backward()\n"
    for act, code, text in (("gelu", 0, ""), ("tanh", 1, "config.act is 'tanh', but this file was planned for 'gelu'")):
        done = subprocess.run([sys.executable, "-c", script.format(act)], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == code and text in done.stderr


class Task:
    """As the configuration of a classifier, which says what it is for once it is first trained."""

    def __init__(self):
        self.problem, self.scale = None, 2.0


class Memo:
    def __init__(self):
        self.ready, self.factors = False, []


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.task, self.linear = Task(), torch.nn.Linear(4, 4)

    def forward(self, x):
        if self.task.problem is None:
            self.task.problem = "labels"
        y = self.linear(x).sin() * self.task.scale
        return y.exp() if self.task.problem == "labels" else y


def test_objects_are_as_before_once_they_were_traced():
    """Else the next trace, of other sizes, would take for a setting what forward itself has set."""
    module, inputs = Classifier(), (torch.randn(3, 4),)
    for dynamic in ((), ((inputs[0], 0),)):
        found = trace(module, inputs, {}, dynamic=dynamic)
        assert module.task.problem is None
        assert found.modules.objects == {"task": {"scale": "2.0"}}


def test_an_object_of_which_more_has_changed_stays_as_it_is():
    """Half of it put back would be what it never was."""
    objects = Objects()
    for value in (memo := Memo(), task := Task(), space := SimpleNamespace(kind=None, many=1)):
        objects.meet(value)
    memo.ready = True
    memo.factors.append(3)
    task.problem, task.other = "labels", 1
    space.kind = "labels"
    objects.forget_classes()
    objects.put_back()
    assert memo.ready and memo.factors == [3]
    assert vars(task) == {"problem": None, "scale": 2.0} and space == SimpleNamespace(kind=None, many=1)
