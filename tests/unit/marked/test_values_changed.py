"""What modules have of numbers, modes and words may be changed after forward: parts run again with what there was."""

from __future__ import annotations

import dataclasses
import gc
import types
import weakref

import pytest
import torch
import torch.nn.functional as F
from parted import Net, X, linear, planned, same
from torch import nn


@dataclasses.dataclass
class Config:
    power: float = 2.0
    inner: types.SimpleNamespace = dataclasses.field(default_factory=lambda: types.SimpleNamespace(by={"q": 1.0}))


class Scaled(nn.LayerNorm):
    gain = 1.25

    def forward(self, x):
        return super().forward(x) * self.gain


def run(self, kept, x):
    y = kept.part("a", lambda x: self.norm(self.drop(F.silu(x * self.scale))), self.one(x))
    z = kept.part("b", lambda y: y.abs() ** self.config.power + self.options["shift"] * y.sin(), y)
    z = z + kept.part("d", lambda y: torch.tanh(y) * self.config.inner.by["q"], y)
    z = kept.part("c", lambda z: z.sin() if self.mode == "sin" and self.flag is None else z.cos() * self.sizes[0], z)
    return self.two(z)


def net():
    made = Net(run, one=linear(), two=linear(), drop=nn.Dropout(0.3), norm=Scaled(8)).train()
    made.scale, made.mode, made.flag, made.sizes = 1.5, "sin", None, (2.0, "x")
    made.config, made.options = Config(), {"shift": 0.5}
    return made


CHANGES = {
    "scale": lambda m: setattr(m, "scale", 0.3),
    "dropout": lambda m: setattr(m.drop, "p", 0.0),
    "eps": lambda m: setattr(m.norm, "eps", 1.0),
    "mode": lambda m: setattr(m, "mode", "cos"),
    "flag": lambda m: setattr(m, "flag", 1),
    "sizes": lambda m: (setattr(m, "mode", "cos"), setattr(m, "sizes", (5.0, "x"))),
    "configuration": lambda m: setattr(m.config, "power", 3.0),
    "configuration within": lambda m: m.config.inner.by.update(q=-1.0),
    "of the class": lambda m: setattr(m.norm, "gain", 0.2),
    "dict": lambda m: m.options.update(shift=2.0),
    "gone": lambda m: delattr(m, "scale"),
    "eval": lambda m: m.eval(),
}


@pytest.mark.parametrize("twice", [False, True], ids=["one forward", "two forwards"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_parts_run_again_with_what_there_was(change, twice):
    torch.manual_seed(0)
    plain = net()
    other = planned(plain, "a b c d")
    ends = []
    for model in (plain, other):
        for _ in range(2):
            torch.manual_seed(1)
            loss = model(X).square().mean()
            changed = {k: v for k, v in vars(model).items() if k in ("scale", "mode", "flag", "sizes")}
            change(model)
            if twice and hasattr(model, "scale"):
                loss = loss + model(X).square().mean()
            after = [dict(vars(m)) for m in model.modules()]
            loss.backward()
            assert after == [dict(vars(m)) for m in model.modules()]
            vars(model).update(changed)
            model.drop.p, model.norm.eps, model.config.power, model.options["shift"] = 0.3, 1e-5, 2.0, 0.5
            model.config.inner.by["q"] = 1.0
            vars(model.norm).pop("gain", None)
            model.train()
        ends.append([p.grad for p in model.parameters()])
    same(*ends)


def test_what_is_added_later_is_looked_at_from_then_on():
    ends = []
    torch.manual_seed(0)
    plain = Net(lambda self, kept, x: kept.part("a", lambda x: x.exp() * getattr(self, "late", 1.0), self.one(x)), one=linear())
    for model in (plain, planned(plain, "a")):
        model(X).sum().backward()
        model.late = 2.0
        loss = model(X).sum()
        model.late = 3.0
        loss.backward()
        ends.append([p.grad for p in model.parameters()])
    same(*ends)


def test_models_that_know_themselves_are_not_kept():
    model = planned(net(), "a b c d")
    model.trainer = types.SimpleNamespace(steps=1, model=model)
    model(X).sum().backward()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_forward_that_takes_modules_away_is_refused_by_name():
    def run(self, kept, x):
        y = kept.part("a", lambda x: x.exp() * self.scale, self.one(x))
        del self.two
        return y

    model = Net(run, one=linear(), two=linear(), drop=nn.Dropout(0.3))
    model.scale = model.drop.rate = 2.0
    loss = planned(model, "a")(X).sum()
    with pytest.raises(RuntimeError, match="modules were added or taken away between forward and backward"):
        loss.backward()
