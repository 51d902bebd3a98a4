"""What a part reads beside what it is given: where forward sets that anew, a part would compute with the later value."""

from __future__ import annotations

import copy
import random
from functools import partial
from pathlib import Path

import pytest
import torch
from parted import Net as Parted
from parted import X, planned, same, step

from remat_codegen.ask.request import Request
from remat_codegen.ask.target import load_target
from remat_codegen.errors import RematError, UnsupportedError
from remat_codegen.marked import replays
from remat_codegen.marked.proof import imported
from remat_codegen.profile.devices import DEVICES
from remat_codegen.run import marked
from remat_codegen.show.results import Progress, Report
from remat_codegen.trace import absent
from remat_codegen.trace.training import example_loss
from remat_codegen.verify.beside import load_generated

MODEL = """
import torch
from torch import nn


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.drop, self.norm = nn.Linear(64, 64), nn.Dropout(0.1), nn.BatchNorm1d(64)
        self.inner = Inner()
        self.register_buffer("mean", torch.zeros(64))


class Inner(nn.Module):
    def forward(self, h):
        return (h * self.s).exp().sin().cos()


class Attribute(Base):
    def forward(self, x):
        for _ in range(4):
            h = self.lin(x)
            self.s = h.detach().mean(0)
            h = (h * self.s).exp().sin().cos()
            x = x + h
        return x


class Once(Base):
    # Exact in a loop that goes back at once, and not where a second forward pass comes between.
    def forward(self, x):
        h = self.lin(x)
        self.s = h.detach().mean(0)
        for _ in range(4):
            h = (h * self.s).exp().sin().cos()
        return x + h


class Entry(Base):
    def forward(self, x):
        self.seen = []
        for _ in range(4):
            h = self.lin(x)
            self.seen.append(h.detach().mean(0))
            h = (h * self.seen[-1]).exp().sin().cos()
            x = x + h
        return x


class Buffer(Base):
    def forward(self, x):
        for _ in range(4):
            h = self.lin(x)
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
            h = (h * self.mean).exp().sin().cos()
            x = x + h
        return x


class Inside(Base):
    def forward(self, x):
        for _ in range(4):
            h = self.lin(x)
            self.inner.s = h.mean(0)
            x = x + self.inner(h)
        return x


STATE = [None]


class Place:  # helpers have things of these names, too, which then have others
    def keep(self, h):
        return (h * STATE[0]).sigmoid()


def _view(h, how):
    return Place().keep(h) if how else torch.sigmoid(h * STATE[0])


class Named(Base):
    def forward(self, x):
        h, STATE[0] = x, x.mean(0)
        for i in range(4):
            h = _view(torch.tanh(self.lin(h)), i % 2).exp().sin()
        return h


class Number(Base):
    # The same in each step of this size, and not where a forward pass on another size comes between.
    def scaled(self, h):
        return (h * self.rows).exp().sin().cos()

    def forward(self, x):
        self.rows = 1 / x.shape[0]
        for _ in range(4):
            x = x + self.scaled(self.lin(x))
        return x


class Moving(Base):
    # A norm of one's own, which assigns what batch norms change in place.
    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(64))

    def forward(self, x):
        for _ in range(4):
            h = self.lin(x)
            h = (h - self.running_mean).exp().sin().cos()
            self.running_mean = 0.9 * self.running_mean + 0.1 * h.detach().mean(0)
            x = x + h
        return x


class Handed(Base):
    # What it sets is for those who look at it later; what it computes with is a variable.
    def forward(self, x):
        for _ in range(4):
            h = self.lin(x)
            scale = h.detach().mean(0)
            self.scale = scale
            h = (self.drop(h) * scale).exp().sin().cos()
            x = x + self.norm(h)
        return x
"""
INPUTS = "x=float32[512,64]"
READING = ["Entry", "Number"]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    file = tmp_path_factory.mktemp("replays") / "model.py"
    file.write_text(MODEL)
    return file


def asked(target: Path, name: str, edition: int | None) -> Request:

    return Request(f"{target}:{name}", "60%", target.with_name(f"{name}_{edition}.py"), inputs=INPUTS, edition=edition)


@pytest.mark.parametrize("name", READING)
def test_parts_that_read_what_forward_sets_are_refused(target, name):
    with pytest.raises(UnsupportedError, match=r"since forward sets what it reads: \w+ in "):
        marked.generate(asked(target, name, 2), Progress())


CONSTANTS = """
import torch
import torch.nn as nn

NUMBERS = [1.0]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x) * torch.tensor([0.5, 1.5]).repeat(32)).exp().sin() CHANGE
        return x


def example_inputs():
    return (torch.randn(512, 64, generator=torch.Generator().manual_seed(0)),)
"""


def test_a_constant_that_is_made_anew_is_no_other(tmp_path):
    path = tmp_path / "constants.py"
    path.write_text(CONSTANTS.replace(" CHANGE", ""))
    report = marked.generate(Request(f"{path}:Net", "60%", tmp_path / "out.py", edition=2), Progress())
    assert "torch.tensor([0.5, 1.5])" in (tmp_path / "out.py").read_text()
    own = load_target(f"{path}:Net").module.train()
    ours = load_generated(Path(report.output)).rematerialize(copy.deepcopy(own))
    x = torch.randn(512, 64)
    for model in (own, ours):
        model(x).sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(own.parameters(), ours.parameters(), strict=True))


def test_a_constant_of_other_numbers_is_another(tmp_path):
    path = tmp_path / "constants.py"
    changed = CONSTANTS.replace("torch.tensor([0.5, 1.5])", "torch.tensor([NUMBERS[0], 1.5])")
    path.write_text(changed.replace(" CHANGE", "\n            NUMBERS[0] += 1.0"))
    with pytest.raises(RematError):  # no part reads it, and no table without such parts fits
        marked.generate(Request(f"{path}:Net", "45%", tmp_path / "out.py", edition=2), Progress())


def assert_exact(target: Path, name: str, report: Report) -> None:
    """Two steps, of which both forward passes come first."""
    assert report.planned_peak_bytes <= report.budget_bytes
    own = load_target(f"{target}:{name}", inputs=INPUTS).module.train()
    ours = load_generated(Path(report.output)).rematerialize(copy.deepcopy(own))
    x = torch.randn(512, 64, generator=torch.Generator().manual_seed(0))
    grads = []
    for model in (own, ours):
        torch.manual_seed(0)
        for out in [model(x), model(2 * x)]:
            out.square().mean().backward()
        grads.append([p.grad for p in model.parameters()] + [*model.buffers()])
    assert all(a is b or torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("edition", [None, 2])
def test_what_the_user_calls_as_a_helper_is_called_is_looked_at(target, edition):
    try:
        report = marked.generate(asked(target, "Named", edition), Progress())
    except UnsupportedError as error:
        assert edition == 2 and "since forward sets what it reads" in error.line()
    else:
        assert_exact(target, "Named", report)


@pytest.mark.parametrize("name", [READING[0], *(pytest.param(name, marks=pytest.mark.slow) for name in READING[1:])])
def test_otherwise_the_file_has_functions_and_is_exact(target, name):
    report = marked.generate(asked(target, name, None), progress := Progress())
    assert any("written as functions" in note for note in progress.noted)  # or by what a table takes, as costs are
    assert_exact(target, name, report)


def test_a_part_that_cannot_run_again_is_left_out_of_the_table(target):
    report = marked.generate(asked(target, "Inside", 2), Progress())
    assert_exact(target, "Inside", report)


def test_parts_on_a_device_that_is_not_there_know_results_of_each_other_again():
    """By their memory, which helpers look for in plain tensors alone."""
    module, inputs = absent.moved(torch.nn.Linear(3, 2), (X.T, {"x": X}), DEVICES["h100"])
    model, (args, _) = replays.copied_with(False, module, inputs, {})
    tensors = [*model.parameters(), args[0], args[1]["x"]]
    assert {type(t) for t in tensors} == {torch.nn.Parameter, torch.Tensor} and all(t.is_meta for t in tensors)
    assert [t.stride() for t in tensors[2:]] == [X.T.stride(), X.stride()]
    assert all(p.requires_grad for p in model.parameters()) and not args[0].requires_grad


def test_operations_of_the_helpers_are_none_of_a_part():
    with replays.Calls([X]) as calls:
        replays._aside_of_calls(X.new_empty)(0)
        X.exp()
    assert [func for func, *_ in calls.calls] == [torch.ops.aten.exp.default]


@pytest.mark.parametrize("name", ["Buffer", "Moving", "Attribute", "Once"])
def test_buffers_and_attributes_that_forward_sets_are_as_they_were_for_each_part(target, name):
    report = marked.generate(asked(target, name, 2), Progress())
    own = load_target(f"{target}:{name}", inputs=INPUTS).module.train()
    ours = load_generated(Path(report.output)).rematerialize(copy.deepcopy(own))
    x, ends = torch.randn(512, 64, generator=torch.Generator().manual_seed(0)), []
    for model in (own, ours):
        for out in [model(x), model(2 * x[:100])]:  # both forward passes come first
            out.square().mean().backward()
        ends.append([p.grad for p in model.parameters()] + [*model.buffers()])
    assert all(a is b or torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_what_is_handed_over_is_no_matter(target):
    """Dropout, batch norm, and attributes that nobody reads: none of this is another thing in a second run."""
    report = marked.generate(asked(target, "Handed", 2), Progress())
    own = load_target(f"{target}:Handed", inputs=INPUTS).module.train()
    ours = load_generated(Path(report.output)).rematerialize(copy.deepcopy(own))
    x = torch.randn(512, 64, generator=torch.Generator().manual_seed(0))
    same(step(ours, [x]), step(own, [x]))


class TestDifference:
    """Of files whose helpers are those that are tested everywhere."""

    def found(self, run, plan, **modules):
        from remat_codegen import parts

        net = Parted(run, lin=torch.nn.Linear(8, 8), **modules).train()
        own = {"Part": parts.Part, "Place": parts.Place, "rematerialize": staticmethod(lambda model: planned(model, plan))}
        file = type("File", (), {**own, "_all": staticmethod(parts._all)})
        return replays.difference(file, net, (X,), {}, (), example_loss)

    def test_an_object_with_what_another_part_made(self):
        """Which that makes again: the tensors in it are others, but the same object's."""

        class Pyramid:
            def __init__(self, x):
                self.levels = [x.sin(), x.cos()]

            def __call__(self, x):
                return x * self.levels[0].exp() + self.levels[1].exp()

        def run(self, kept, x):
            pyramid = kept.part("a", Pyramid, self.lin(x))
            return kept.part("b", lambda pyramid, x: pyramid(x.tanh()), pyramid, x)

        def another(self, kept, x):
            pyramid = kept.part("a", Pyramid, self.lin(x))
            y = kept.part("b", lambda x: pyramid(x.tanh()), x)  # which looks it up when it runs again
            pyramid.levels = [x, x]
            return y

        assert self.found(run, {"": "a b"}) is None
        assert "exp" in str(self.found(another, {"": "b"}))

    def test_numbers_that_forward_sets(self):
        def run(self, kept, x):
            for i in range(2):
                self.k = i + 1.5
                x = kept.part("a", lambda x: (x * self.k).exp(), self.lin(x))
            return x

        assert str(self.found(run, "a")) == "k in a"

    def test_numbers_that_python_draws(self):
        def run(self, kept, x):
            self.k = random.random()
            return kept.part("a", lambda x: (x * self.k).exp(), self.lin(x))

        assert str(self.found(run, "a")) == "k in a"

    def test_what_is_captured_as_a_variable(self):
        def run(self, kept, x):
            for i in range(2):
                s, k = x.mean(0), i + 1.5
                x = kept.part("a", lambda x: (x * s * k).exp(), self.lin(x))  # noqa: B023 - as it is now
            return x

        assert self.found(run, "a") is None

    @pytest.mark.parametrize("plan", ["a b", "a/inside b/inside", "a/twice b", "outer/inside a b", "a/late b"])
    def test_parts_that_read_each_other(self, plan):
        def run(self, kept, x):
            def both(x):
                a = kept.part("a", lambda x: (x * 2).exp(), self.lin(x))
                return kept.part("b", lambda a, x: a.sin() * x.cos() * self.lin.weight[0], a, x)

            return kept.part("outer", both, x).tanh()

        assert self.found(run, plan) is None

    def test_what_cannot_run_without_data_is_not_seen(self):
        def run(self, kept, x):
            y = kept.part("a", torch.exp, self.lin(x))
            return y if y.sum() > 0 else -y

        with pytest.raises(replays.Unseen):
            self.found(run, "a")

    def test_it_leaves_the_model_as_it_was(self, target):
        module = load_target(f"{target}:Handed", inputs=INPUTS).module.train()
        before = {name: value.clone() for name, value in module.state_dict().items()}
        own = dict(vars(module))
        text = target.with_name("Handed_2.py")
        if not text.exists():
            marked.generate(asked(target, "Handed", 2), Progress())
        with imported(text.read_text()) as file:
            back = partial(example_loss, loss="cross-entropy")
            assert replays.difference(file, module, (torch.randn(512, 64),), {}, (), back) is None
        assert vars(module) == own and all(torch.equal(v, before[n]) for n, v in module.state_dict().items())
