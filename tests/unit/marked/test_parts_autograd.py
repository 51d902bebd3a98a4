"""Ways through autograd, what is around parts and inside of them, and copies of models with parts."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from parted import Net, X, exact, linear, loud, planned, same, simple, step
from torch import nn
from torch.utils.checkpoint import checkpoint

from remat_codegen import parts as helpers

# ---------------------------------------------------------------------------- ways through autograd


def test_double_backward():
    net, grads = simple(), []
    for model in (planned(net, "a b"), net):
        x = X.clone().requires_grad_()
        (g,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        grads.append(torch.autograd.grad(g.square().sum(), model.parameters(), allow_unused=True))
    same(*grads)


def test_retain_graph_and_two_outputs():
    net = Net(lambda self, kept, x: kept.part("a", lambda x: (x.sin().exp(), x.cos().exp()), self.one(x)), one=linear()).train()
    for order in ((0, 1), (1, 0), (0, 0, 1)):
        grads = []
        for model in (planned(net, "a"), net):
            outs = model(X)
            for i in order:
                outs[i].sum().backward(retain_graph=True)
            grads.append([p.grad for p in model.parameters()])
            net.zero_grad()
        same([g.clone() for g in grads[0]], [g * 0 + g for g in grads[0]])


def test_two_forwards_before_two_backwards():
    ends = []
    net = nn.Sequential(linear(), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(), linear()).train()
    for model in (planned(net, "1 2 3"), copy.deepcopy(net)):
        torch.manual_seed(0)
        a, b = model(X), model(X + 1)
        b.square().sum().backward()
        a.square().sum().backward()
        ends.append([p.grad for p in model.parameters()] + [*model.buffers(), torch.get_rng_state()])
    same(*ends)


def test_backward_in_another_thread():
    net, ends = simple(lambda x: F.dropout(F.silu(x))), []
    for model in (planned(net, "a b"), copy.deepcopy(net)):
        torch.manual_seed(0)
        out = model(X)
        thread = threading.Thread(target=lambda out=out: out.sum().backward())
        thread.start()
        thread.join()
        ends.append([p.grad for p in model.parameters()] + [torch.get_rng_state()])
    same(*ends)


def test_gradients_taken_in_forward():
    def run(self, kept, x):
        y = kept.part("a", F.silu, self.one(x))
        (g,) = torch.autograd.grad(kept.part("b", torch.exp, y).sum(), y, create_graph=True)
        return kept.part("c", torch.sin, g * y)

    exact(Net(run, one=linear()), "a b c", X)


def test_gradients_taken_inside_of_a_part():
    def f(x):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            return x * torch.autograd.grad(y.sin().exp().sum(), y)[0]

    loud("a still runs", simple(f))


def test_custom_functions():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * x
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, grad):
            x, y = ctx.saved_tensors
            return grad * 2 * x + 0 * y

    exact(simple(Square.apply), "a b", X)


def test_sparse_and_integer_tensors():
    def f(x):
        s = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.ones(2), (6, 6))
        return torch.sparse.mm(s, x).sin()[torch.tensor([0, 1, 1, 2, 3, 4])] * (x > 0)

    exact(simple(f), "a b", X)


def test_weight_norm_and_orthogonal():
    net = nn.Sequential(
        nn.utils.parametrizations.weight_norm(linear()), nn.utils.parametrizations.orthogonal(linear()), nn.SiLU()
    )
    exact(nn.Sequential(net, linear()), "0/inside 0.0 0.1 0.2", X)


# ---------------------------------------------------------------------------- what is around, and inside


def test_no_grad_and_hooks_inside():
    def run(self, kept, x):
        with torch.no_grad():
            y = kept.part("a", torch.exp, self.one(x))
        with torch.autograd.graph.save_on_cpu():
            y = y + kept.part("b", torch.sin, self.one(x))
        return y * kept.part("c", lambda x: torch.sin(x.exp()), self.two(x))

    assert exact(Net(run, one=linear(), two=linear()), "a b c", X) == ["c"] * 2


def test_a_part_with_other_hooks_inside():
    def f(x):
        with torch.autograd.graph.save_on_cpu():
            x = x.sin()
        with torch.no_grad():
            y = x.exp()
        return x.cos() * y

    exact(simple(f), "a b", X)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_inside_and_around(reentrant):
    def run(self, kept, x):
        x = kept.part("a", torch.sin, self.one(x))
        x = checkpoint(lambda x: self.two(kept.part("b", torch.cos, x).tanh()), x, use_reentrant=reentrant)
        return kept.part("c", lambda x: self.two(x).exp(), x)

    net = Net(run, one=linear(), two=linear())
    exact(net, "a b c", X)
    around = Net(lambda self, kept, x: checkpoint(self.net, x, use_reentrant=reentrant), net=net).train()
    wanted = step(around, [X.clone().requires_grad_()])
    around.net = planned(net, "a b c")
    same(step(around, [X.clone().requires_grad_()]), wanted)
    inside = Net(
        lambda self, kept, x: kept.part("a", lambda x: checkpoint(self.two, x, use_reentrant=reentrant).exp(), self.one(x)),
        one=linear(),
        two=nn.Sequential(linear(), nn.Dropout(), nn.SiLU()),
    )
    exact(inside, "a", X)


def test_save_on_cpu_around():
    exact(simple(), "a b", X, around=torch.autograd.graph.save_on_cpu)


def test_nested_models():
    inner = planned(simple(), "a b")
    net = Net(lambda self, kept, x: kept.part("a", lambda x: self.net(x).exp(), x), net=inner)
    exact(net, {"": "a/inside", "net": "b"}, X)
    exact(Net(lambda self, kept, x: self.net(x), net=inner), {}, X)
    both = Net(lambda self, kept, x: self.net(kept.part("a", torch.sin, self.net(x))), net=inner)
    exact(both, {"": "a"}, X)  # the plan of the outer one counts


# ---------------------------------------------------------------------------- copies


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(linear(), nn.SiLU(), nn.Dropout(), linear())

    def forward(self, x):
        return self.body(helpers.parts(self).part("act", torch.sin, x))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(copied):
    net = Small().train()
    model = planned(net, {"": "act", "body": "1 2"})
    for used in (False, True):
        other = copied(model)
        ran = []
        other.forward  # noqa: B018
        assert other.forward.module() is other and list(other.state_dict()) == list(net.state_dict())
        again = helpers.Part.again
        try:
            helpers.Part.again = lambda part, ran=ran, again=again: (ran.append(part.entry.name), again(part))[1]
            same(step(other, [X.clone().requires_grad_()]), step(net, [X.clone().requires_grad_()]))
        finally:
            helpers.Part.again = again
        assert sorted(ran) == ["act", "body.1", "body.2"], used
        step(model, [X])
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    same(step(averaged.module, [X]), step(net, [X]))


def test_the_signature_is_that_of_the_model():
    import inspect

    assert str(inspect.signature(planned(Small(), "act").forward)) == "(x)"
