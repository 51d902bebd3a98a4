"""Models that checkpoint where they are told to, as those of transformers: with a plan, they say that it takes its place."""

from __future__ import annotations

import copy
import functools
import pickle
import warnings

import pytest
import torch
from parted import X, same, step
from torch import nn
from torch.utils.checkpoint import checkpoint

from remat_codegen.ask.live_model import without_plan
from remat_codegen.integrations import at_first_step
from remat_codegen.parts import adopt, parts, training_step
from remat_codegen.trace import trace

INNER: list[int] = []  # calls of the layers' own code
TOLD = "gradient checkpointing is left out, for the plan takes its place"


class Layer(nn.Module):
    gradient_checkpointing = False

    def __init__(self):
        super().__init__()
        self.up, self.drop, self.down = nn.Linear(8, 32), nn.Dropout(), nn.Linear(32, 8)

    def forward(self, x):
        if self.gradient_checkpointing and self.training:
            return self.checkpointed(self.inner, x)
        return self.inner(x)

    def inner(self, x):
        INNER.append(1)
        return self.down(parts(self).part("act", lambda x: self.drop(x.tanh()), self.up(x)).sin())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
        for layer in self.layers:
            layer.checkpointed = functools.partial(checkpoint, **gradient_checkpointing_kwargs or {"use_reentrant": False})
            layer.gradient_checkpointing = True


PLAN = {"layers.0": "act", "layers.1": "act"}


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Model().train()


def told(model):
    with pytest.warns(UserWarning, match=TOLD) as found:
        model.gradient_checkpointing_enable()
    assert [warning.filename for warning in found] == [__file__]
    return model


def calls(model):
    """How often layers run in a step."""
    found: list = []
    for layer in model.layers:
        layer.up.register_forward_pre_hook(lambda module, args: found.append(module))
    step(model, [X])
    return len(found)


def test_a_model_with_a_plan_says_that_it_does_not_checkpoint(net):
    model = told(adopt(copy.deepcopy(net), PLAN))
    wanted = step(net, [X])
    for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        same(step(one, [X]), wanted)
        assert calls(one) == 3
    net.gradient_checkpointing_enable()
    same(step(net, [X]), wanted)


def test_what_was_told_to_before_goes_without(net):
    wanted = step(net, [X])
    net.gradient_checkpointing_enable()
    with pytest.warns(UserWarning, match=TOLD):
        model = adopt(net, PLAN)
    same(step(model, [X]), wanted)
    assert calls(model) == 3


def test_without_its_plan_it_checkpoints_again(net):
    model = without_plan(adopt(net, PLAN))
    with warnings.catch_warnings(action="error"):
        model.gradient_checkpointing_enable()
    assert calls(model) == 6


def test_a_plan_that_is_made_at_the_first_step_is_for_no_checkpoints(net, tmp_path):
    file = tmp_path / "model_remat.py"
    original = copy.deepcopy(net)
    model = told(at_first_step(net, "70%", file, planner="dtr"))
    x = X.repeat(256, 1)  # so that there is something to forget
    same(step(model, [x]), step(original, [x]))
    assert "PLAN = {\n" in file.read_text() and "as written" not in file.read_text()
    same(step(told(model), [x]), step(original, [x]))


def test_what_a_model_around_it_told_it_is_left_out_at_the_first_step(net):
    """As trl's trainers do, whose model has the planned one in it."""
    x, original = X.repeat(256, 1), copy.deepcopy(net)
    model = at_first_step(net, "70%", planner="dtr")
    Model.gradient_checkpointing_enable(model)
    with pytest.warns(UserWarning, match=TOLD):
        found = step(model, [x])
    same(found, step(original, [x]))
    assert calls(model) == 3


class Checkpointing(nn.Module):
    """Whose forward checkpoints, whoever trains it; `options` are those of the call."""

    def __init__(self, **options):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.options = options

    def forward(self, x):
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, **self.options)
        return x


PLANS = [PLAN, {"layers": "0 2"}, {"": "layers.0 layers.1", "layers.1": "act"}]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("by_class", [False, True])
def test_the_plan_takes_the_place_of_checkpoints_in_forward(plan, by_class):
    torch.manual_seed(0)
    net = Checkpointing(use_reentrant=False)
    wanted = step(net, [X])
    model = copy.deepcopy(net)
    if by_class:

        class Planned(Checkpointing):
            forward = training_step(Checkpointing.forward, plan)

        model.__class__ = Planned
    else:
        adopt(model, plan)
    same(step(model, [X]), wanted)
    assert (calls(net), calls(model)) == (6, 3), "hooks see each layer once"
    INNER.clear()
    step(model, [X])
    assert len(INNER) == 3 + len([n for names in plan.values() for n in names.split() if n != "act"])


def selective():
    return torch.utils.checkpoint.create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])


def in_another_type():
    return torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("context_fn", [selective, in_another_type])
def test_checkpoints_with_contexts_go_on_unless_these_only_choose(plan, context_fn):
    torch.manual_seed(0)
    net = Checkpointing(use_reentrant=False, context_fn=context_fn)
    wanted = step(net, [X])
    model = adopt(copy.deepcopy(net), plan)
    same(step(model, [X]), wanted)
    INNER.clear()
    step(model, [X])
    parts_again = len([n for names in plan.values() for n in names.split() if n != "act"])
    assert len(INNER) == 3 + (parts_again if context_fn is selective else 3)


def test_an_exception_within_a_checkpoint_is_that_of_the_model():
    torch.manual_seed(0)
    model = adopt(Checkpointing(use_reentrant=False), PLAN)
    model.layers[1].up.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(X)


def test_helpers_go_before_checkpoints_once(net):
    def depth():
        found = [f for name, f in vars(torch.utils.checkpoint).items() if name.startswith("_checkpoint_without_reentrant_gen")]
        return len([*iter(lambda: found.append(getattr(found[-1], "__wrapped__", None)) or found[-1], None)])

    adopt(copy.deepcopy(net), PLAN)
    before = depth()
    adopt(copy.deepcopy(net), PLAN)
    assert depth() == before > 0


def test_a_checkpoint_around_the_model_still_goes_first():
    torch.manual_seed(0)
    net = Checkpointing(use_reentrant=False)
    ran = []
    for one in (net, adopt(copy.deepcopy(net), PLAN)):
        INNER.clear()
        torch.manual_seed(1)
        checkpoint(one, X, use_reentrant=False).sum().backward()
        ran.append((len(INNER), [p.grad for p in one.parameters()]))
    assert ran[0][0] == ran[1][0] > 3
    same(ran[0][1], ran[1][1])


def test_checkpoints_are_seen_where_a_file_has_been_used_before():
    torch.manual_seed(0)
    net = Checkpointing(use_reentrant=False)
    adopt(copy.deepcopy(net), PLAN)
    assert any(operation.regions for operation in trace(net.train(), (X,), {}).operations)
