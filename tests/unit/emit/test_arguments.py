"""Arguments of forward that are no tensors, and lists of them: files of functions compute with what they were planned for, and
refuse others."""

from __future__ import annotations

import dataclasses
import enum
import functools

import pytest
import torch
from second_edition import imported_file

from remat_codegen import runtime
from remat_codegen.ask.request import Request
from remat_codegen.run import pipeline
from remat_codegen.show.results import Progress
from remat_codegen.verify.beside import load_generated

SOURCE = """
from dataclasses import dataclass
from enum import Enum

import torch
import torch.nn.functional as F
from torch import nn


class Phase(Enum):
    ONE = 1
    BOTH = 2


@dataclass
class Options:
    scale: float = 1.0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.GELU())])

    def forward(self, xs, *more, phase=Phase.BOTH, opts=Options(), act=F.silu, names=("a",), dtype=torch.float32, **others):
        loss = sum(self.layers(x).square().mean() for x in xs)
        if phase is Phase.BOTH:
            loss = loss + act(self.layers(-xs[0])).mean().to(dtype)
        for value in (*more, *others.values()):
            loss = loss + value
        return loss * opts.scale + len(names)


def example_inputs():
    return ([torch.ones(64, 32), torch.ones(64, 32)],)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arguments")
    path, output = folder / "net.py", folder / "out.py"
    path.write_text(SOURCE)
    pipeline.generate(Request(f"{path}:Net", "80%", output, edition=1), Progress(None))
    return imported_file(path), load_generated(output), output


def pair(original, generated):
    torch.manual_seed(0)
    net = original.Net().train()
    torch.manual_seed(0)
    return net, generated.rematerialize(original.Net().train())


def test_what_was_planned_for_computes_the_same_by_the_defaults_of_each_file(files):
    original, generated, _ = files
    for training in (True, False):
        net, other = pair(original, generated)
        values = [m.train(training)(*original.example_inputs()) for m in (net, other)]
        for value in values:
            value.backward()
        assert torch.equal(*values)
        assert all(map(torch.equal, [p.grad for p in net.parameters()], [p.grad for p in other.parameters()]))
    carried = generated.Net().train()
    carried.load_state_dict(net.state_dict())
    assert torch.equal(carried(*original.example_inputs()), values[0])


OTHERS = {
    "xs is [<tensor>, <tensor>, <tensor>], but this file was planned for [<tensor>, <tensor>]": lambda m, x: (([x] * 3,), {}),
    "xs is [<tensor>], but this file was planned for [<tensor>, <tensor>]": lambda m, x: (([x],), {}),
    "more is [<tensor>], but this file was planned for []": lambda m, x: (([x] * 2, x.sum()), {}),
    "others is {'more': 2.0}, but this file was planned for {}": lambda m, x: (([x] * 2,), {"more": 2.0}),
    "phase is Phase.ONE, but this file was planned for Phase.BOTH": lambda m, x: (([x] * 2,), {"phase": m.Phase.ONE}),
    "opts is Options(scale=2.0), but this file was": lambda m, x: (([x] * 2,), {"opts": m.Options(2.0)}),
    "act is <relu>, but this file was planned for <silu>": lambda m, x: (([x] * 2,), {"act": torch.nn.functional.relu}),
    "names is ['a', 'b'], but this file was planned for ['a']": lambda m, x: (([x] * 2,), {"names": ("a", "b")}),
    "dtype is torch.float64, but this file was": lambda m, x: (([x] * 2,), {"dtype": torch.float64}),
}


@pytest.mark.parametrize("said", OTHERS)
def test_others_are_refused_in_training_and_taken_in_evaluation(files, said):
    original, generated, _ = files
    net, other = pair(original, generated)
    args, kwargs = OTHERS[said](original, torch.ones(64, 32))
    with pytest.raises(ValueError) as error:
        other(*args, **kwargs)
    assert str(error.value).startswith(said)
    assert torch.equal(net.eval()(*args, **kwargs), other.eval()(*args, **kwargs))


def test_verify_agrees(files):
    *_, output = files
    assert pipeline.verify(output, f"{output.parent}/net.py:Net", steps=2, progress=Progress(None)).ok


@dataclasses.dataclass
class Point:
    x: float
    inner: object = None


class Color(enum.Enum):
    RED = 1


class Ways(enum.Flag):
    UP = 1
    DOWN = 2


def test_told():
    told = runtime.told
    assert told([1, (2.5, "a"), {"b": None}]) == "[1, [2.5, 'a'], {'b': None}]"
    assert told({"b": 1, "a": torch.ones(2)}) == told({"a": torch.zeros(3), "b": 1})
    assert told({3, 1, 2}) == "{1, 2, 3}"
    assert told(Color.RED) == "Color.RED" and told(Color) == "<Color>"
    assert told(Ways.UP) == "Ways.UP" and told(Ways.UP | Ways.DOWN) != told(Ways.UP)
    assert told(Point(1.0, Point(2.0, torch.ones(1)))) == "Point(x=1.0, inner=Point(x=2.0, inner=<tensor>))"
    assert told(torch.bfloat16) == "torch.bfloat16"
    assert told([torch.nn.Linear(2, 2), functools.partial(torch.relu), len]) == "[<Linear>, <partial>(), <len>]"
    around = []
    around.append(around)
    assert told(around) == "[[[[<list>]]]]"
