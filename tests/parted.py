"""Steps of models with parts beside the same ones without a plan: what tests/unit/marked/test_parts*.py share."""

from __future__ import annotations

import contextlib
import copy
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from remat_codegen import parts as helpers
from remat_codegen.parts import adopt

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(3))


class Net(torch.nn.Module):
    """A model whose forward is a function: `run(self, kept, *inputs)`."""

    def __init__(self, run, **modules):
        super().__init__()
        self.run = run
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs, **named):
        return self.run(self, helpers.parts(self), *inputs, **named)

    def marks(self):  # PLAN may name what the class has as a mark
        return "a", ["b"], "c", ["d"], "e", ["outer"], "inner", ["middle"], "f1", ["f2"], "f3", ["f4"]


def step(model, inputs, loss=lambda out: out.square().mean(), around=contextlib.nullcontext):
    """Everything that a training step leaves behind."""
    inputs = [t.detach().clone().requires_grad_(t.requires_grad) if torch.is_tensor(t) else t for t in inputs]
    for parameter in model.parameters():
        parameter.grad = None
    torch.manual_seed(1)
    with around():
        out = model(*inputs)
    loss(out).backward()
    outs = out if isinstance(out, (tuple, list)) else [out]
    grads = [t.grad for t in (*model.parameters(), *inputs) if torch.is_tensor(t)]
    return [*outs, torch.get_rng_state(), *grads, *(b.clone() for b in model.buffers())]


def same(found, wanted):
    assert len(found) == len(wanted)
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert (a is None) == (b is None) and (a is None or torch.equal(a, b)), f"the {i}-th differs"


def planned(model, plan):
    """A copy of the model, with a plan."""
    return adopt(copy.deepcopy(model), plan if isinstance(plan, dict) else {"": plan})


def exact(model, plan, *inputs, **how):
    """Runs both twice: the plan changes nothing, and check mode finds nothing. Returns which parts ran again."""
    model = model.train()
    other = planned(model, plan)
    ran = []
    again = helpers.Part.again
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, helpers.Part, "again", again)
        helpers.Part.again = lambda part, *args: (ran.append(part.entry.name), again(part, *args))[1]
        for check in (False, True):
            stack.callback(setattr, helpers, "CHECK", helpers.CHECK)
            helpers.CHECK = check
            same(step(other, inputs, **how), step(model, inputs, **how))
    return ran


def linear():
    return nn.Linear(8, 8)


def simple(f=F.silu, **modules):
    """One part `a`, whose result is read; one part `b`, whose input it is."""
    one, two = linear(), linear()
    return Net(
        lambda self, kept, x: self.two(kept.part("b", torch.sin, kept.part("a", lambda x: f(x), self.one(x)))),
        one=one,
        two=two,
        **modules,
    ).train()


def loud(text, net, plan="a b", between=lambda model: None, inputs=(X,)):
    """Raises `text` in forward, or in backward after `between`; a step afterwards works as if nothing had been."""
    model = planned(net, plan)
    state = torch.get_rng_state()
    with pytest.raises((RuntimeError, ValueError), match=text):
        out = model(*inputs)
        between(model)
        out.square().mean().backward()
    assert torch.equal(state, torch.get_rng_state())
    assert helpers.RUNNING.get() is None


class Memory(TorchDispatchMode):
    """What is alive of all that operations make in here, and the most of it: cheaper than the profiler's record."""

    def __init__(self):
        super().__init__()
        self.known, self.alive, self.most = set(), 0, 0

    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        given = {a.untyped_storage()._cdata for a in args if isinstance(a, torch.Tensor) and a.layout is torch.strided}
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            strided = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
            if strided and tensor.untyped_storage()._cdata not in given:
                self.see(tensor.untyped_storage())
        return result

    def see(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key not in self.known:
            self.known.add(key)
            self.alive += size
            self.most = max(self.most, self.alive)
            weakref.finalize(storage, self.forget, key, size)

    def forget(self, key, size):
        self.known.discard(key)
        self.alive -= size


def peak(work):
    """The most bytes alive at once of what `work` makes."""
    with Memory() as memory:
        work()
    return memory.most


def held(net, *inputs):
    """Bytes that a forward pass leaves alive."""
    with Memory() as memory:
        out = net(*inputs)
    assert out.grad_fn is not None
    return memory.alive
