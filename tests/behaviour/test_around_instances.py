"""`rematerialize(original)` of a file that carries the model's classes: all but forward is the original's."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from emitted import load

from remat_codegen.ask.request import Request
from remat_codegen.run import pipeline
from remat_codegen.show.results import Progress
from remat_codegen.verify.beside import compare

SOURCE = '''
import enum

import torch
from torch import nn


class Act(enum.Enum):
    GELU = "gelu"
    RELU = "relu"


class Gate(nn.Linear):
    def forward(self, x):
        return x * torch.sigmoid(super().forward(x))


class Net(nn.Module):
    def __init__(self, act=Act.GELU):
        super().__init__()
        self.act = act
        self.layers = nn.ModuleList([nn.Linear(8, 16), Gate(16, 16), nn.Linear(16, 4)])
        self.calls = 0

    def train(self, mode=True):
        self.calls += 1
        return super().train(mode)

    def activate(self, x):
        return torch.nn.functional.gelu(x) if self.act is Act.GELU else torch.relu(x)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x) if isinstance(layer, Gate) else self.activate(layer(x))
        return x


class Deep(Net):
    """Inherits its forward."""


class Any(Net):
    """Takes whatever comes."""

    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)
'''


@pytest.fixture(params=["Net", "Deep", "Any"])
def pair(request, write_file, tmp_path):
    """A model, and one around a copy of it."""
    file = write_file(SOURCE, f"asks_{request.param}.py")
    asked = Request(f"{file}:{request.param}", "90%", tmp_path / "made.py", inputs="float32[32,8]")
    pipeline.generate(asked, Progress(None))
    original = getattr(load(SOURCE, tmp_path, f"asks_{request.param}"), request.param)()
    made = load((tmp_path / "made.py").read_text(), tmp_path, f"made_{request.param}")
    assert "Remat(" not in (tmp_path / "made.py").read_text()  # the class is carried over
    return original, made.rematerialize(copy.deepcopy(original)), made


def test_evaluates_as_the_original(pair):
    """Whose forward asks for the classes of its own file, which the generated file has once more."""
    original, generated, _ = pair
    x = torch.randn(5, 8)
    assert isinstance(generated, type(original))
    assert generated.activate(x).equal(original.activate(x))
    with torch.no_grad():
        assert generated(x).equal(original(x))
    assert generated.eval()(x).equal(original.eval()(x))


def test_trains_as_the_original(pair):
    original, generated, _ = pair
    x = torch.randn(32, 8)
    for model in (original, generated):
        model(x).square().sum().backward()
    assert all(a.grad.equal(b.grad) for a, b in zip(original.parameters(), generated.parameters(), strict=True))


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m))])
def test_can_be_copied_and_pickled(pair, copied):
    original, generated, made = pair
    found = copied(generated.eval())
    assert found.state_dict().keys() == original.state_dict().keys() and not found.training
    assert type(found).forward is type(generated).forward
    x = torch.randn(32, 8)
    assert found(x).equal(original(x)) and found.train()(x).equal(original(x))
    assert (found.act is original.act) and isinstance(found, type(original))


def test_verify_looks_at_evaluation_too(pair):
    original, _, made = pair
    x = torch.randn(32, 8)
    found = compare(original, made.rematerialize, (x,), {})
    assert found.identical and found.differences["evaluation"].compared == 1

    def broken(model):
        twin = made.rematerialize(model)
        type(twin).plain_forward = lambda self, x: x
        return twin

    wrong = compare(original, broken, (x,), {}).differences
    assert [what for what, d in wrong.items() if d.worst is not None] == ["evaluation"]


def test_can_be_made_anew_from_what_was_made(pair):
    original, generated, made = pair
    x = torch.randn(5, 8)
    again = made.rematerialize(generated)
    assert again.eval()(x).equal(original(x))
    own = made.rematerialize(getattr(made, type(original).__name__)())
    own.load_state_dict(original.state_dict())
    assert own.eval()(x).equal(original(x))


def test_goes_when_nobody_holds_it(pair):
    _, generated, made = pair
    gc.disable()
    try:
        twin = made.rematerialize(generated)
        seen = weakref.ref(twin)
        del twin
        assert seen() is None
    finally:
        gc.enable()


def test_a_class_that_its_subclasses_are_told_to_is_wrapped(write_file, tmp_path):
    """rematerialize() would add one, which a registry might not expect."""
    method = "def __init_subclass__(cls):\n        cls.known[cls.__name__] = cls\n"
    registry = f"class Net(torch.nn.Linear):\n    known = {{}}\n\n    {method}"
    file = write_file(f"import torch\n\n\n{registry}\n\nclass Part(Net):\n    pass\n")
    request = Request(f"{file}:Part", "100%", tmp_path / "part.py", init="4, 4", inputs="float32[2,4]", verify=True)
    assert pipeline.generate(request, Progress(None)).verify.ok
    assert "class PartRemat(" in (tmp_path / "part.py").read_text()
