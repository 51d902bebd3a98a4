"""Methods with marks of an original model ask for the same classes as its own file does, and see the same tables."""

from __future__ import annotations

import copy
import random
import sys

import pytest
import torch
from emitted import load
from second_edition import found_in, imported_file, random_rows, text_of, traced_module, trained

from remat_codegen.marked.candidates import Row

SOURCE = """
import functools
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import torch
from torch import nn


class State(NamedTuple):
    hidden: torch.Tensor
    skip: object = None


@dataclass
class Given:
    scale: float


class Way(Enum):
    PLAIN = 1
    SQUARED = 2


NOTHING = object()
SEEN = []
ACTS = {"sin": torch.sin}
WAYS = (Way.SQUARED, "x")


def decorated(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)

    return inner


@decorated
def is_state(thing):
    return isinstance(thing, State)


class Scaled(nn.Module):
    def forward(self, x):
        return 1.5 * x


class Start(nn.Module):
    def forward(self, x):
        return State(x, NOTHING), Given(2.0)


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.scaled = nn.Linear(8, 32), nn.Linear(32, 8), Scaled()

    def forward(self, state, given, way, kind=State):
        match state:
            case State(hidden=h, skip=s) if s is NOTHING:
                base = h
            case State(hidden=h, skip=s):
                base = h + 0.1 * s
        scale = given.scale if isinstance(given, Given) else 1.0
        y = ACTS["sin"](self.up(base) * scale)
        y = y * torch.sigmoid(y)
        SEEN.append(1)
        if isinstance(self.scaled, Scaled) and isinstance(state, kind) and is_state(state):
            y = self.scaled(torch.sin(y))
        if not self.training and way in WAYS:
            y = 2 * torch.cos(y)
        if way is Way.SQUARED:
            y = torch.exp(-y * y) + torch.tanh(y) * y
        return State(base + self.down(y), h)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.start, self.way = Start(), Way.SQUARED
        self.stages = nn.ModuleList(Stage() for _ in range(3))

    def forward(self, x):
        state, given = self.start(x)
        for stage in self.stages:
            state = stage(state, given, self.way)
        return torch.cos(state.hidden) * torch.exp(-state.hidden)
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    path = tmp_path_factory.mktemp("shared") / "sharing.py"
    path.write_text(SOURCE)
    torch.manual_seed(0)
    return traced_module(imported_file(path).Net().train(), (torch.randn(6, 8),), {}, path)


@pytest.fixture(scope="module")
def text(traced):
    found = found_in(traced)
    rows = random_rows(found, random.Random(0), 0.8)
    assert any(row.candidate.marks for row in rows)
    return text_of(traced, found, rows)


def test_originals_are_trained_exactly(traced, text, tmp_path):
    result = trained(traced, text, tmp_path)
    assert result.identical, result.differences
    assert "SHARED[:] = ['ACTS', 'Given', 'NOTHING', 'SEEN', 'Scaled', 'State', 'WAYS', 'Way']" in text


def test_what_methods_leave_in_a_list_is_in_the_list_of_the_users_file(traced, text, tmp_path):
    home = sys.modules["sharing"]
    model = load(text, tmp_path).rematerialize(copy.deepcopy(traced.target.module))
    before = len(home.SEEN)
    with torch.no_grad():
        model.eval()(*traced.target.args)
    assert len(home.SEEN) == before + 3


def test_models_of_the_file_itself_have_its_own(text, tmp_path):
    file = load(text, tmp_path)
    model = file.rematerialize(file.Net().train())
    model(torch.randn(6, 8)).sum().backward()
    assert len(file.SEEN) == 3


def test_originals_of_two_modules_each_have_theirs(traced, text, tmp_path):
    path = tmp_path / "other.py"
    path.write_text(SOURCE)
    other, file = imported_file(path), load(text, tmp_path)
    home = sys.modules["sharing"]
    models = [file.rematerialize(net) for net in (copy.deepcopy(traced.target.module), other.Net().train())]
    before = len(home.SEEN)
    for model in (*models, *models):
        model(*traced.target.args).sum().backward()
    parts = sum(p.grad is not None for p in models[1].parameters())
    assert parts == len([*models[1].parameters()])
    assert len(other.SEEN) == 6
    assert len(home.SEEN) == before + 6


def both(home, file, x):
    """An original, and a copy of it as the file has it, each with its step and its evaluation."""
    torch.manual_seed(0)
    theirs = home.Net()
    ours = file.rematerialize(copy.deepcopy(theirs))
    found = []
    for model in (theirs, ours):
        out = model.train()(x)
        out.sum().backward()
        found.append([out, model.eval()(x), *(p.grad for p in model.parameters())])
    return all(map(torch.equal, *found))


def test_what_the_users_file_is_given_later_is_seen(traced, text, tmp_path):
    path = tmp_path / "changing.py"
    path.write_text(SOURCE)
    home, file, (x,) = imported_file(path), load(text, tmp_path), traced.target.args
    assert both(home, file, x)
    home.ACTS = {"sin": torch.cos}
    assert both(home, file, x)
    home.__spec__.loader.exec_module(home)  # as importlib.reload does: the same dict, with other classes
    assert both(home, file, x)


def test_functions_ask_for_the_same_classes(tmp_path):
    path = tmp_path / "by_functions.py"
    path.write_text(BY_FUNCTIONS)
    torch.manual_seed(0)
    traced = traced_module(imported_file(path).Net().train(), (torch.randn(6, 8),), {}, path)
    found = found_in(traced)
    for seed in range(3):
        result = trained(traced, text_of(traced, found, random_rows(found, random.Random(seed), 0.9)), tmp_path)
        assert result.identical, result.differences


BY_FUNCTIONS = """
from typing import NamedTuple

import torch
from torch import nn


class State(NamedTuple):
    hidden: torch.Tensor


def opened(state):
    return torch.sin(state.hidden) if isinstance(state, State) else torch.cos(state)


def twice(state, factor=2.0, *, shift=1.0):
    return torch.exp(-opened(state)) * factor + shift


class Start(nn.Module):
    def forward(self, x):
        return State(x)


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, state):
        y = torch.tanh(self.up(twice(state)))
        return State(self.down(y * torch.sigmoid(y)) + opened(state))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.start, self.stages = Start(), nn.ModuleList(Stage() for _ in range(3))

    def forward(self, x):
        state = self.start(x)
        for stage in self.stages:
            state = stage(state)
        return torch.cos(state.hidden)
"""


CALLING = """
import functools

import torch
from torch import nn


class Given:
    def __init__(self, scale):
        self.scale = scale


def decorated(function):
    @functools.wraps(function)
    def inner(*args):
        return 2 * function(*args)

    return inner


def warm(given, h):
    scale = given.scale if isinstance(given, Given) else 7.0
    return torch.tanh(h * scale) * torch.sigmoid(h)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    @decorated
    def forward(self, given, x):
        x = warm(given, self.lin(x))
        return x if isinstance(given, Given) else torch.cos(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.given = nn.Linear(8, 8), Given(1.5)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        x = warm(self.given, self.lin(x))
        for block in self.blocks:
            x = block(self.given, x)
        return x if isinstance(self.given, Given) else torch.sin(x)
"""


def runs_again(file, model, given):
    """How many parts run again in a training step."""
    again, count = file.Part.again, []
    file.Part.again = lambda part: (count.append(part.entry.name), again(part))[1]
    model(*given).sum().backward()
    file.Part.again = again
    return sorted(count)


def test_methods_that_only_call_functions_with_marks_are_taken_over(tmp_path):
    """That of the model itself, which is a training step in the file, and one that is decorated."""
    path = tmp_path / "calling.py"
    path.write_text(CALLING)
    traced = traced_module(imported_file(path).Net().train(), (torch.randn(6, 8),), {}, path)
    found = found_in(traced)
    marked = [v for v in found.tree.vertices if found.is_marked(v) and v.text.function.is_at_top]
    candidates = [c for c in found.ways if len(c.vertices) == 1 and c.vertices[0] in marked]
    outer = [c for c in candidates if not any(o.holds(c) for o in candidates)]
    text = text_of(traced, found, tuple(Row(c) for c in outer))
    result = trained(traced, text, tmp_path)
    assert result.identical, result.differences
    file = load(text, tmp_path)
    original = copy.deepcopy(traced.target.module)
    names = runs_again(file, file.rematerialize(original), traced.target.args)
    assert names == runs_again(file, file.rematerialize(file.Net().train()), traced.target.args)
    assert {name.partition(".")[0] for name in names} == {"blocks", *(n for n in names if "." not in n)} and len(names) >= 3
