"""What surrounds models in training: hooks, DDP, FSDP2, the process's settings, the table itself."""

from __future__ import annotations

import copy

import pytest
import torch
from parted import Net, exact, planned, same, step
from tied import PLAN, TOKENS, Tied, in_two
from torch import nn

import remat_codegen.parts as helpers
from remat_codegen.parts import adopt

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(3))


# ---------------------------------------------------------------------------- hooks


def test_hooks_in_a_part_and_around_it_fire_once():
    net, fired = planned(Tied().train(), {"": "h.0/inside", "h.1": "norm"}), []
    for name, module in net.named_modules():
        module.register_forward_pre_hook(lambda m, args, n=name: fired.append(("pre", n)))
        module.register_forward_hook(lambda m, args, out, n=name: fired.append(("post", n)))
        module.register_full_backward_hook(lambda m, gi, go, n=name: fired.append(("back", n)))
    net(TOKENS).sum().backward()
    names = [name for name, m in net.named_modules() if not isinstance(m, nn.ModuleList)]
    assert sorted(fired) == sorted((kind, name) for name in names for kind in ("pre", "post", "back"))


def test_hooks_on_tensors_and_hooks_that_change_values():
    def run(self, kept, x):
        y = kept.part("a", lambda x: self.two(x).exp(), self.one(x))
        y.register_hook(lambda g: (fired.append(1), g * 2)[1])
        return kept.part("b", torch.sin, y)

    fired: list = []
    net = Net(run, one=nn.Linear(8, 8), two=nn.Linear(8, 8))
    net.two.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    net.one.register_forward_hook(lambda m, args, out: out + 1)
    exact(net, "a b one two", X)
    assert len(fired) == 4


# ---------------------------------------------------------------------------- several processes


def _models():
    torch.manual_seed(0)
    net = Tied().train()
    return net, adopt(copy.deepcopy(net), PLAN)


def _ddp(rank):
    grads = []
    for model in _models():
        for kwargs in ({}, {"static_graph": True}, {"find_unused_parameters": True}):
            wrapped = nn.parallel.DistributedDataParallel(copy.deepcopy(model), **kwargs)
            for _ in range(2):
                wrapped.zero_grad()
                wrapped((TOKENS + rank) % 20).square().mean().backward()
            grads.append([p.grad.numpy() for p in wrapped.parameters()])
    return all((a == b).all() for x, y in zip(grads[:3], grads[3:], strict=True) for a, b in zip(x, y, strict=True))


def _fsdp(rank):
    from torch.distributed.fsdp import fully_shard

    grads = []
    for model in _models():
        for block in model.h:
            fully_shard(block)
        fully_shard(model)
        for _ in range(2):
            model.zero_grad()
            model((TOKENS + rank) % 20).square().mean().backward()
        grads.append([p.grad.full_tensor().numpy() for p in model.parameters()])
    return all((a == b).all() for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("run", [_ddp, _fsdp], ids=["ddp", "fsdp2"])
@pytest.mark.slow
def test_two_processes(run):
    assert in_two(run) == [True, True]


# ---------------------------------------------------------------------------- settings


def test_nothing_of_the_process_is_left_changed():
    before = [read() for read, _ in helpers.SETTINGS]

    def f(x):
        assert torch.get_default_dtype() is torch.float64 and torch.are_deterministic_algorithms_enabled()
        assert torch.get_float32_matmul_precision() == "high" and not torch.backends.cuda.flash_sdp_enabled()
        return (x * torch.tensor(2.0)).sin().to(torch.float32)

    model = planned(Net(lambda self, kept, x: kept.part("a", f, self.one(x)).exp(), one=nn.Linear(8, 8)).train(), "a")
    new = [torch.float64, "high", 2, False, False, True, False, True, False, torch.float16, torch.bfloat16]
    try:
        helpers._set(new, before)
        assert [read() for read, _ in helpers.SETTINGS] == new
        torch.set_autocast_enabled("cpu", False)
        out = model(X)
    finally:
        helpers._set(before, [None] * len(before))
    out.sum().backward()
    assert [read() for read, _ in helpers.SETTINGS] == before and torch.is_autocast_cache_enabled()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_weights_cast_while_a_part_ran_again_are_not_used_in_the_next_step():
    net = Net(lambda self, kept, x: kept.part("a", lambda x: self.one(x).sin(), x).float(), one=nn.Linear(8, 8)).train()
    steps = []
    for model in (planned(net, "a/inside"), copy.deepcopy(net)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(X).sum()
                loss.backward()
            optimizer.step()
        steps.append([p.detach() for p in model.parameters()])
    same(*steps)


# ---------------------------------------------------------------------------- other ways to call


def test_other_sizes_and_named_inputs():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.act = nn.Linear(8, 8), Two()

        def forward(self, x, *, scale):
            return self.act(self.one(x), by=scale).exp()

    class Two(nn.Module):
        def forward(self, x, by=1.0):
            return x.sin() * by

    net = Named().train()
    other = planned(net, "act one/inside")
    for rows in (3, 6):
        for scale in (2.0, torch.ones(8, requires_grad=True)):
            a, b = other(X[:rows], scale=scale), net(X[:rows], scale=scale)
            same(
                [a, *torch.autograd.grad(a.sum(), [*other.parameters()])],
                [b, *torch.autograd.grad(b.sum(), [*net.parameters()])],
            )


def test_forward_that_an_instance_has_of_its_own():
    net = Tied().train()
    net.h[0].norm.forward = lambda x, norm=net.h[0].norm: type(norm).forward(norm, x) * 2
    other = adopt(net, {"": "h.0.norm"})
    a = step(other, [TOKENS])
    other.forward = other.forward.__wrapped__
    same(a, step(other, [TOKENS]))


def test_frozen_parameters_and_inputs_without_gradient():
    net = Tied().train()
    net.h[0].requires_grad_(False)
    net.h[1].fc.requires_grad_(False)
    net.wte.requires_grad_(False)
    for p in net.parameters():
        p.grad = None
    exact(net, PLAN, TOKENS)


def test_other_modes_of_modules():
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 8)).train()
    for model in (net, other := planned(net, "1 2")):
        model[1].eval()
    same(step(other, [X]), step(net, [X]))


def test_layers_that_are_dropped_by_chance():
    import random

    def run(self, kept, x):
        x = self.one(x)
        for _ in range(6):
            if random.random() < 0.5:
                x = kept.part("a", torch.sin, x)
        return x.exp()

    net = Net(run, one=nn.Linear(8, 8)).train()
    random.seed(1)
    a = step(planned(net, "a"), [X])
    state = random.getstate()
    random.seed(1)
    same(a, step(net, [X]))
    assert state == random.getstate()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_generators_of_devices():
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 8)).cuda()
    state = torch.cuda.get_rng_state()
    a = step(planned(net.train(), "1"), [X.cuda()])
    torch.cuda.set_rng_state(state)
    same(a, step(net, [X.cuda()]))
