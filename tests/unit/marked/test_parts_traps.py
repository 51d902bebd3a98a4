"""Cases that tried to break parts: each is right, or loud."""

from __future__ import annotations

import copy
import random
import threading

import numpy
import pytest
import torch
import torch.nn.functional as F
from parted import Net, X, exact, linear, loud, planned, same, simple, step
from torch import nn

from remat_codegen import parts as helpers

# ---------------------------------------------------------------------------- the table


@pytest.mark.parametrize("plan", ["two.zz", "zz", "one.zz/inside", "a/outside", "zz.a", "a#0.b", "one/inside/result"])
def test_entries_that_name_nothing(plan):
    loud(plan.split("/")[0].split("#")[0], simple(), plan)


def test_rows_that_name_nothing():
    loud("gone", simple(), {"gone": ""})
    loud("gone", simple(), {"gone": "a"})


def test_another_table_and_another_module():
    net = planned(simple(), "a")
    net(X).sum().backward()
    net.two = nn.Sequential(linear(), nn.SiLU())
    net.forward.plan["two"] = "0 1/inside"
    net(X).sum().backward()
    del net.two
    net.two = linear()
    with pytest.raises(ValueError, match=r"two\.0"):
        net(X)


# ---------------------------------------------------------------------------- what a part captures


def test_variables_bound_anew():
    def run(self, kept, x):
        flag, scale = True, 2.0
        x = kept.part("a", lambda x: F.silu(x) * scale if flag else x, self.one(x))
        flag, scale = False, 9.0
        return kept.part("b", lambda x: x.exp() * scale, x)

    exact(Net(run, one=linear()), "a b", X)


def test_functions_within_functions_bound_anew():
    def run(self, kept, x):
        scale = 2.0

        def inner(x):
            return F.silu(x) * scale

        x = kept.part("a", lambda x: inner(x).exp(), self.one(x))
        scale = 5.0
        return x

    exact(Net(run, one=linear()), "a/inside", X)


def test_a_captured_tensor_that_changes():
    def run(self, kept, x):
        bias = torch.ones(8)
        x = kept.part("a", lambda x: (F.silu(x) + bias).exp().sin(), self.one(x))
        bias.add_(1)
        return x

    told = "a cannot run again: a tensor that it captures was changed in place: write into a clone, or take it out of the plan"
    loud(told, Net(run, one=linear()).train(), "a/inside")


def test_an_input_that_changes():
    def run(self, kept, x):
        x = self.one(x) * 2
        y = kept.part("a", lambda x: F.silu(x).exp().sin(), x)
        x.add_(1)
        return y

    told = "a cannot run again: its input, tensor 0, was changed in place: write into a clone, or take it out of the plan"
    loud(told, Net(run, one=linear()).train(), "a/inside")


def test_a_list_that_changes_afterwards():
    def run(self, kept, x):
        things = [self.one(x), x]
        y = kept.part("a", lambda ts: (ts[0].sin() * ts[1]).exp(), things)
        things.pop()
        return y

    exact(Net(run, one=linear()), "a/inside", X)


def test_a_part_that_changes_its_input():
    loud("a changes an input in place", simple(lambda x: x.sigmoid_()))


def test_parameters_as_inputs():
    net = Net(lambda self, kept, x: kept.part("a", lambda x, w: (x @ w).exp(), x, self.one.weight), one=linear())
    exact(net, "a/inside", X)


# ---------------------------------------------------------------------------- changes between forward and backward


def change_weight(model):
    with torch.no_grad():
        model.one.weight.add_(1)


def replace_weight(model):
    model.two.weight = nn.Parameter(torch.zeros(8, 8))


def test_parameters_changed():
    told = r"one\.weight was changed in place between .*: step optimizers, load or move weights after backward"
    loud(told, simple(), between=change_weight)


def test_modes_changed_are_as_they_were():
    net, ends = simple(lambda x: F.silu(x), drop=nn.Dropout()), []
    net.run = lambda self, kept, x: self.two(kept.part("a", lambda x: self.drop(F.silu(x)), self.one(x)))
    for model in (planned(net, "a"), net):
        torch.manual_seed(0)
        out = model(X)
        model.eval()
        out.sum().backward()
        assert not any(m.training for m in model.modules())
        ends.append([p.grad for p in model.parameters()])
    same(*ends)


def test_modules_changed():
    other = linear()
    loud("modules were added", simple(), between=lambda model: setattr(model, "two", other))


def test_long_chains():
    def run(self, kept, x):
        x = self.one(x)
        for _ in range(400):
            x = kept.part("a", lambda x: x.sin(), x)
        return x

    assert len(exact(Net(run, one=linear()), "a", X)) == 2 * 399  # nobody needs the last one's result


def test_parameters_replaced_are_as_they_were():
    net = Net(
        lambda self, kept, x: self.one(kept.part("a", lambda x: self.two(x).exp(), x)), one=linear(), two=linear()
    ).train()
    model, other = planned(net, "a"), copy.deepcopy(net)
    outs = [m(X) for m in (model, other)]
    weights = [m.two.weight for m in (model, other)]
    replace_weight(model)
    for out in outs:
        out.sum().backward()
    same([weights[0].grad], [weights[1].grad])
    assert not model.two.weight.any()


def test_functional_call():
    net = Net(
        lambda self, kept, x: self.one(kept.part("a", lambda x: self.two(x).exp(), x)), one=linear(), two=linear()
    ).train()
    net.register_buffer("scale", torch.ones(8))
    grads = []
    for model in (planned(net, {"": "a one/inside"}), net):
        given = {n: (p.detach() * 2).requires_grad_() for n, p in model.named_parameters()}
        out = torch.func.functional_call(model, given, (X,))
        grads.append(torch.autograd.grad(out.sum(), given.values()))
    same(*grads)


def test_a_buffer_changed():
    net = Net(lambda self, kept, x: kept.part("a", lambda x: (x * self.scale).exp().sin(), self.one(x)), one=linear()).train()
    net.register_buffer("scale", torch.ones(8))
    loud("scale was changed in place: do it after backward", net, "a/inside", between=lambda model: model.scale.add_(1))


def test_a_buffer_that_the_part_changes():
    def f(self, x):
        self.scale.add_(1)
        return (x * self.scale).exp()

    net = Net(lambda self, kept, x: kept.part("a", lambda x: f(self, x), self.one(x)), one=linear()).train()
    net.register_buffer("scale", torch.ones(8))
    loud("changes scale", net, "a/inside")


@pytest.mark.parametrize("plan", ["a/inside", "a"])
def test_a_buffer_that_the_part_assigns(plan):
    def f(self, x):
        self.scale = 0.9 * self.scale + 0.1 * x.detach().mean(0)
        return (x * self.scale).exp()

    net = Net(lambda self, kept, x: kept.part("a", lambda x: f(self, x), self.one(x)), one=linear()).train()
    net.register_buffer("scale", torch.ones(8).mul_(2))  # of another version than what is assigned
    same(step(planned(net, plan), [X]), step(copy.deepcopy(net), [X]))


@pytest.mark.parametrize("plan", ["a/inside b", "a b/inside", "a/inside b/inside", "a b", "a/twice b"])
@pytest.mark.parametrize("rows", [0, 1])
def test_tensors_without_numbers(plan, rows):
    def forward(self, kept, x):
        some = kept.part("a", lambda x: self.one(x[:rows]).exp().sin(), x)
        return kept.part("b", lambda x, some: x.exp() * some.sum() + some.square().sum(), x, some)

    net = Net(forward, one=linear()).train()
    same(step(planned(net, plan), [X]), step(copy.deepcopy(net), [X]))


def test_optimizers_that_step_inside_of_backward():
    ends = []
    for net in (simple(), simple()):
        net.load_state_dict(torch.manual_seed(0) and {n: torch.full_like(p, 0.1) for n, p in net.state_dict().items()})
        model = planned(net, "a b one two/inside") if not ends else net
        optimizer = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(lambda p, o=optimizer: [o[p].step(), o[p].zero_grad()][0])
        for _ in range(3):
            model(X).square().sum().backward()
        ends.append([p.detach() for p in model.parameters()])
    same(*ends)


# ---------------------------------------------------------------------------- chance


def test_pythons_random():
    loud("Python's or NumPy's random", simple(lambda x: F.silu(x) * random.random()))


def test_numpys_random():
    loud("Python's or NumPy's random", simple(lambda x: F.silu(x) * float(numpy.random.rand())))


def test_threads_that_draw_from_numpy_beside_a_step():
    drawing, model = threading.Event(), planned(simple(F.silu), "a b")

    def draw():
        while not drawing.is_set():
            numpy.random.rand()

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for _ in range(5):
            step(model, [X])
    finally:
        drawing.set()
        thread.join()


def test_other_generators_outside_of_parts():
    def run(self, kept, x):
        return kept.part("a", F.silu, self.one(x)).exp() * random.random() * float(numpy.random.rand())

    model = planned(Net(run, one=linear()).train(), "a")
    state = random.getstate()
    model(X).sum().backward()
    assert state != random.getstate()


def checked(net, plan="a b", between=lambda model: None):
    try:
        helpers.CHECK = True
        loud("a computed other values .*; let no counter, cache, flag or generator of its own decide", net, plan, between)
    finally:
        helpers.CHECK = False


def test_check_mode_finds_what_nothing_else_does():
    generator = torch.Generator().manual_seed(0)
    checked(simple(lambda x: F.silu(x) * torch.rand(8, generator=generator)))
    counts = []
    checked(simple(lambda x: (counts.append(1), F.silu(x) * len(counts))[1]))
    table = {"scale": 1.0}
    checked(simple(lambda x: F.silu(x) * table["scale"]), between=lambda model: table.update(scale=3.0))
    values = torch.ones(8)
    checked(simple(lambda x: F.silu(x) * values), between=lambda model: values.data.fill_(2))


def test_check_mode_knows_nan():
    net = simple(lambda x: F.silu(x) * float("nan"))
    try:
        helpers.CHECK = True
        planned(net, "a b")(X).sum().backward()
    finally:
        helpers.CHECK = False


class Workspace(torch.autograd.Function):
    """Saves bytes beside its input, as kernels of libraries do, not all of which they write."""

    left = 0

    @staticmethod
    def forward(ctx, x):
        Workspace.left += 1
        ctx.save_for_backward(x, torch.full((64,), Workspace.left, dtype=torch.uint8))
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0].cos() * grad


def test_bytes_that_a_library_keeps_for_itself_are_not_compared():
    net = simple(Workspace.apply)
    try:
        helpers.CHECK = True
        same(step(planned(net, "a b"), [X]), step(net, [X]))
    finally:
        helpers.CHECK = False
    model = planned(net, "a b")
    model.one.register_forward_hook(lambda *_: None)
    same(step(model, [X]), step(net, [X]))


def test_named_tuples_that_look_at_what_they_are_given():
    packed = torch.nn.utils.rnn.pack_padded_sequence(X.reshape(2, 3, 8), torch.tensor([3, 2]), batch_first=True)

    def run(self, kept, x):
        given = torch.nn.utils.rnn.PackedSequence(torch.tanh(self.one(x)[:5]), packed.batch_sizes)
        return kept.part("a", lambda sequence: self.rnn(sequence)[0].data, given)

    net = Net(run, one=linear(), rnn=torch.nn.GRU(8, 8))
    same(step(planned(net, "a"), [X]), step(net, [X]))


# ---------------------------------------------------------------------------- what runs again saves other things


def test_more_less_and_other_things():
    for text, first, again in (
        ("saved more", lambda x: x.sin(), lambda x: x.sin().cos().tanh()),
        ("saved (less|other)", lambda x: x.sin().cos().tanh(), lambda x: x.sin()),
        ("saved other", lambda x: x.sin().cos(), lambda x: x[:3].sin().cos()),
        ("saved other", lambda x: x.sin().cos(), lambda x: x.t().contiguous().t().sin().cos()),
        ("saved other", lambda x: x.double().sin().float(), lambda x: x.sin()),
    ):
        calls = []
        net = simple(lambda x, f=first, g=again, calls=calls: (calls.append(1), (f if len(calls) == 1 else g)(x))[1])
        loud(f"{text} .*let no counter, cache, flag or generator of its own decide what it does", net)


def test_an_exception_while_a_part_runs_again():
    fail = []

    def f(x):
        if fail and fail.pop():
            raise KeyError("now")
        return F.dropout(F.silu(x))

    net = simple(f)
    model = planned(net, "a b")
    torch.manual_seed(5)
    out, state = model(X), torch.get_rng_state()
    fail.append(True)
    with pytest.raises(KeyError, match="now"):
        out.sum().backward(retain_graph=True)
    assert torch.equal(state, torch.get_rng_state()) and helpers.RUNNING.get() is None
    for parameter in model.parameters():
        parameter.grad = None
    out.sum().backward()
    torch.manual_seed(5)
    net(X).sum().backward()
    same([p.grad for p in model.parameters()], [p.grad for p in net.parameters()])


def test_an_exception_in_forward():
    fail = [True]
    net = simple(lambda x: F.silu(x) if not fail else fail.pop() and x.no_such_thing)
    model = planned(net, "a b")
    with pytest.raises(AttributeError):
        model(X)
    assert helpers.RUNNING.get() is None
    same(step(model, [X]), step(net, [X]))
