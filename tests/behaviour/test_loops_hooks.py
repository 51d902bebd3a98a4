"""Hooks on submodules, while parts of the forward pass run again: they fire once, and what they change is never lost."""

from __future__ import annotations

import copy
import types
from collections import Counter

import pytest
import torch
from parted import Net, X, exact, planned, same, step
from torch import nn
from torch.nn.utils import prune

from remat_codegen import parts as helpers
from remat_codegen.parts import adopt, parts


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.drop, self.down = nn.Linear(8, 16), nn.Dropout(), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(parts(self).part("act", lambda x: self.drop(x.tanh()), self.up(x)).sin())


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner, self.last = nn.LayerNorm(8), Inner(), nn.Linear(8, 8)

    def forward(self, x):
        return self.last(x + self.inner(self.norm(x)).exp().cos())


PLANS = [{"": "norm inner"}, {"": "inner/inside", "inner": "act"}, {"": "inner", "inner": "up act/inside"}, {"inner": "act"}]
NAMES = ["norm", "inner", "inner.up", "inner.drop", "inner.down", "last"]


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Outer().train()


def counted(model, fired):
    """A probe of each kind on all modules of a model."""
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda m, args, n=name: fired.update([("pre", n)]))
        module.register_forward_hook(lambda m, args, out, n=name: fired.update([("post", n, float(out.sum()))]))
        module.register_forward_hook(lambda m, args, kwargs, out, n=name: fired.update([("named", n)]), with_kwargs=True)
        module.register_full_backward_pre_hook(lambda m, go, n=name: fired.update([("before", n, float(go[0].sum()))]))
        module.register_full_backward_hook(lambda m, gi, go, n=name: fired.update([("back", n, float(go[0].sum()))]))


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_probes_fire_once_with_the_originals_values(net, plan):
    """Also where the module is inside of a part that runs again."""
    other, seen, wanted = planned(net, plan), Counter(), Counter()
    counted(other, seen)
    counted(net, wanted)
    for _ in range(2):
        same(step(other, [X]), step(net, [X]))
    assert seen == wanted and sum(seen.values()) == 2 * 5 * (len(NAMES) + 1)


def in_place(module, args, out):
    out.mul_(3)


CHANGES = {  # what hooks do that parts compute with: (kind of hook, module, hook)
    "gives another output": ("forward", "inner.up", lambda m, args, out: out * 2),
    "gives other inputs": ("forward_pre", "inner.down", lambda m, args: (args[0] + 1,)),
    "changes its output in place": ("forward", "inner.up", in_place),
    "draws": ("forward", "inner.up", lambda m, args, out: setattr(m, "noise", float(torch.rand(3).sum()))),
    "sets what a module has": ("forward_pre", "inner.drop", lambda m, args: setattr(m, "p", 0.25)),
    "computes for autograd": ("forward", "inner.up", lambda m, args, out: setattr(m, "extra", out.exp())),
}


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_hook_changes_is_the_same_when_a_part_runs_again(net, change, plan):
    kind, name, hook = CHANGES[change]
    getattr(net.get_submodule(name), f"register_{kind}_hook")(hook)
    exact(net, plan, X)


def test_probes_beside_a_hook_that_changes_values_fire_again_and_can_tell(net):
    """Such a hook may read what the probe left: all of them fire, as in a checkpoint."""
    state: dict = {}
    fired = Counter()

    def keep(module, args):
        fired[helpers.running_again()] += 1
        state["x"] = args[0]

    for name in ("inner.up", "inner.down"):  # a stash that all layers share, as adapters by hooks have it
        net.get_submodule(name).register_forward_pre_hook(keep)
        net.get_submodule(name).register_forward_hook(lambda m, args, out: out + state["x"].mean())
    exact(net, {"": "inner"}, X)
    assert fired[True] and fired[False]


def test_hooks_of_the_forward_pass_count_whatever_comes_and_goes_before_the_backward_pass(net):
    def run(model):
        model.zero_grad()
        torch.manual_seed(1)
        handle = model.inner.up.register_forward_hook(lambda m, args, out: out * 2)
        out = model(X)
        handle.remove()
        late = model.inner.down.register_forward_hook(lambda m, args, out: out * 5)
        out.square().mean().backward()
        late.remove()
        return [out, *(p.grad for p in model.parameters())]

    other = planned(net, {"": "inner"})
    same(run(other), run(net))
    assert not any(m._forward_hooks for m in other.modules())


def test_hooks_that_remove_themselves_and_that_add_others(net):
    def once(module, args, out):
        fired["once"] += 1
        handle.remove()
        module.register_forward_hook(lambda m, args, out: fired.update(["added"]))

    fired: Counter = Counter()
    other = planned(net, {"": "inner"})
    handle = other.inner.up.register_forward_hook(once)
    for _ in range(3):
        other(X).sum().backward()
    assert fired == {"once": 1, "added": 2}
    assert all(not isinstance(hook, helpers.Watched) for hook in other.inner.up._forward_hooks.values())


def test_an_error_in_forward_leaves_hooks_as_they_were(net):
    def stumble(module, args):
        raise KeyError("stumbled")

    other = planned(net, {"": "inner"})
    other.inner.down.register_forward_pre_hook(stumble)
    with pytest.raises(KeyError):
        other(X)
    assert [*other.inner.down._forward_pre_hooks.values()] == [stumble]


def test_models_with_hooks_are_copied(net):
    fired: Counter = Counter()
    other = planned(net, {"": "inner"})
    counted(other, fired)
    same(step(copy.deepcopy(other), [X]), step(net, [X]))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weights_that_hooks_compute():
    def made():
        torch.manual_seed(0)
        net = Outer().train()
        nn.utils.weight_norm(net.inner.up)  # sets `weight` before each call, and returns nothing
        prune.l1_unstructured(net.inner.down, "weight", 0.5)
        return net

    other, net = adopt(made(), {"": "inner"}), made()
    for _ in range(2):
        same(step(other, [X]), step(net, [X]))


SAID: dict = {}


class Told(nn.Module):
    """Its forward reads what hooks of several modules leave in one place."""

    def __init__(self, returns):
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
        for module in (self.one, self.two):
            module.register_forward_hook(lambda m, args, out: (SAID.update(out=out), out if returns else None)[1])

    def forward(self, x):
        def both(x):
            self.one(x)
            y = SAID["out"].sin()
            self.two(x)
            return (y * SAID["out"].cos()).exp()

        return parts(self).part("both", both, x)


@pytest.mark.parametrize("options", ["", "/inside", "/twice"])
def test_what_hooks_tell_forward_is_told_again_or_refused(options):
    """A hook that only looks is not called again; where forward reads what it left, a part would compute other values."""
    torch.manual_seed(0)
    for returns in (False, True):
        net = Told(returns).train()
        wanted, other = step(net, [X]), planned(net, f"both{options}")
        if returns:
            same(step(other, [X]), wanted)
        else:
            with pytest.raises(RuntimeError, match=r"both computed other values .* must return what they are given"):
                step(other, [X])


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_no_numbers_are_compared(odd):
    """Where hooks only look, steps whose loss is NaN train as the original's; what is finite beside that still counts."""

    def run(self, kept, x):
        return kept.part("a", torch.exp, self.one(x)).sin().sum()

    net = Net(run, one=nn.Linear(8, 8)).train()
    x = X.clone()
    x[0, 0] = odd
    other = planned(net, "a")
    other.one.register_forward_hook(lambda module, args, out: None)
    pairs = zip(step(other, [x]), step(net, [x]), strict=True)
    for a, b in [pair for pair in pairs if pair[1] is not None]:
        assert torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isnan(), b.isnan())
    place = helpers.Place.__new__(helpers.Place)
    place.truth, place.part = (
        helpers._some(x),
        types.SimpleNamespace(step=types.SimpleNamespace(hooks=True), error=RuntimeError),
    )
    place.like = ()
    place.check(x)
    with pytest.raises(RuntimeError, match="computed other values"):
        place.check(torch.where(x == odd, x, x + 1))
