"""Parts that run again: what they give is what the model gives without them, bit by bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from parted import Net, exact, loud, planned, same, step
from torch import nn

from remat_codegen import parts as helpers
from remat_codegen.parts import parts, training_step

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(3))


def linear():
    return nn.Linear(8, 8)


def test_without_a_step_a_part_is_the_plain_call():
    assert parts(nn.Identity()).part("any", lambda x, y: (x, y), 1, 2) == (1, 2)


def test_a_part_runs_again_once():
    net = Net(lambda self, kept, x: self.two(kept.part("a", lambda x: F.silu(self.norm(x)), self.one(x))))
    net.one, net.two, net.norm = linear(), linear(), nn.LayerNorm(8)
    assert exact(net, "a", X) == ["a", "a"]


def test_its_result_is_kept_inside():
    net = Net(lambda self, kept, x: self.two(kept.part("a", lambda x: F.silu(self.norm(x)), self.one(x))))
    net.one, net.two, net.norm = linear(), linear(), nn.LayerNorm(8)
    assert exact(net, "a/inside", X) == ["a", "a"]
    assert exact(net, "a/result", X) == ["a", "a"]


def test_chains_run_again_from_the_start():
    def run(self, kept, x):
        x = self.one(x)
        for name, f in (("a", F.silu), ("b", torch.tanh), ("c", torch.sigmoid)):
            x = kept.part(name, f, x)
        return self.two(x)

    net = Net(run, one=linear(), two=linear())
    assert exact(net, "a b c", X)[:3] == ["a", "b", "c"]
    exact(net, "a/twice b/twice c/twice", X)
    exact(net, "a/twice b/inside c/result/twice", X)


def test_twice_gives_its_result_to_the_reader_only():
    def run(self, kept, x):
        x = kept.part("a", lambda x: F.silu(F.silu(x)), self.one(x))
        return self.two(kept.part("b", torch.exp, x))

    net = Net(run, one=linear(), two=linear())
    other, results = planned(net.train(), "a/twice b"), []
    out = other(X)
    seen = helpers.Part.result_for
    try:
        helpers.Part.result_for = lambda part, place: (results.append(place.value), seen(part, place))[1]
        out.sum().backward()
    finally:
        helpers.Part.result_for = seen
    assert results == [None]
    exact(net, "a/twice b", X)


@pytest.mark.parametrize(
    ("again", "runs"),
    [
        ("", "f1 f2 f3 f4"),
        ("/twice", "f1 f2 f1 f3 f4"),
        ("/thrice", "f1 f2 f1 f3 f1 f4"),
        ("/fourfold", "f1 f2 f1 f3 f1 f4 f1"),
        ("/shared", "f1 f2 f3 f4 f1"),
    ],
)
def test_how_often_a_part_runs_again_that_three_are_given(again, runs, monkeypatch):
    """As test_demand.py has it: f2, f3 and f4 read what f1 gives, and so does what is outside of parts."""

    def run(self, kept, x):
        one = kept.part("f1", F.silu, self.one(x))
        outside = one.square()
        two = kept.part("f2", torch.exp, one)
        three = kept.part("f3", lambda a, b: torch.sin(a * b), one, two)
        four = kept.part("f4", lambda a, b: torch.sin(a + b), one, three)
        return self.two(four.sigmoid()) + outside

    ran, repeat = [], helpers.Part.repeat
    monkeypatch.setattr(helpers.Part, "repeat", lambda part, *args: (repeat(part, *args), ran.append(part.entry.name))[0])
    exact(Net(run, one=linear(), two=linear()), f"f1{again} f2 f3 f4", X)
    assert ran == runs.split() * 2


@pytest.mark.parametrize("again", ["twice", "thrice", "fourfold", "shared", "twice/late", "thrice/late"])
def test_values_for_readers_alone_in_other_company(again):
    """Several results, of which one is a view; readers within parts; one that draws; a second way back."""

    def run(self, kept, x):
        a, b, c = kept.part("f1", lambda x: (x.exp(), x.sin()[:, :4], F.dropout(x)), self.one(x))
        d = kept.part("f2", lambda a, b: kept.part("f3", torch.mul, a[:, :4].sin(), b).cos(), a, b)
        e = kept.part("f4", lambda b, c: F.dropout(b.exp()) * c[:, 4:].sin(), b, c)
        return self.two(a.sigmoid()).sin() + torch.cat([d * e, b.square()], 1)

    net = Net(run, one=linear(), two=linear())
    for plan in (f"f1/{again} f2 f3 f4", f"f1/{again} f2/{again} f4/{again}", f"f1/{again} f3/{again} f4", f"f1/{again} f4"):
        exact(net, plan, X)
        other, grads = planned(net.train(), plan), []
        for _ in range(2):
            torch.manual_seed(0)
            out = other(X)
            for _ in range(2):
                grads += [torch.autograd.grad(out.sum(), [*other.parameters()], retain_graph=True)]
        same(grads[0], grads[1])
        same(grads[0], grads[2])


def test_dropout_draws_the_same_numbers_and_the_generator_stays():
    def run(self, kept, x):
        x = kept.part("a", lambda x: F.dropout(F.silu(x)), self.one(x))
        x = kept.part("b", F.silu, x)
        return F.dropout(self.two(x))

    exact(Net(run, one=linear(), two=linear()), "a b", X)


def test_states_of_generators_are_held_only_where_a_part_draws():
    def run(self, kept, x):
        return kept.part("b", F.dropout, kept.part("a", F.silu, self.one(x))).exp()

    held, learn = [], helpers.Part.learn
    try:
        helpers.Part.learn = lambda part, inputs: (learn(part, inputs), held.append(len(part.states)))
        planned(Net(run, one=linear()).train(), "a b")(X)
    finally:
        helpers.Part.learn = learn
    assert held == [0, 1]


def test_parts_within_parts():
    def run(self, kept, x):
        def middle(x):
            return torch.tanh(kept.part("inner", lambda x: F.dropout(F.silu(self.two(x))), x)) + x

        def outer(x):
            return kept.part("middle", middle, F.silu(self.three(x))) * 2

        return self.two(kept.part("outer", outer, self.one(x)))

    net = Net(run, one=linear(), two=linear(), three=linear())
    for options in ("", "/inside", "/result", "/twice", "/inside/twice", "/result/twice"):
        exact(net, f"outer{options} middle inner", X)
        exact(net, f"outer middle{options} inner", X)
        exact(net, f"outer middle inner{options}", X)
        exact(net, f"outer{options} inner{options}", X)


def test_an_inner_part_reads_another_inner_part():
    def run(self, kept, x):
        def outer(x):
            x = kept.part("a", F.silu, self.one(x))
            x = kept.part("b", torch.exp, x)
            return self.two(x)

        return kept.part("outer", outer, x).exp()

    exact(Net(run, one=linear(), two=linear()), "outer/inside a b", X)
    exact(Net(run, one=linear(), two=linear()), "outer a/twice b", X)


def test_several_results_and_structures():
    def run(self, kept, x):
        a, (b, c) = kept.part("a", lambda d: (d["x"].exp(), [d["x"].sin(), d["y"][0].cos()]), {"x": self.one(x), "y": (x, 3)})
        found = kept.part("b", lambda a, b: {"s": (a * b).sigmoid(), "n": 3, "v": a.view(-1)}, a, b)
        return (found["s"] * c * found["n"]).exp() + found["v"].view_as(a).sin()

    exact(Net(run, one=linear()), "a b", X.requires_grad_())


def test_views_of_results():
    def run(self, kept, x):
        q, k, v = kept.part("a", lambda x: torch.cat([x.exp(), x.sin(), x.cos()], 1), self.one(x)).chunk(3, dim=1)
        return (q.t() @ k).exp().sum() * v[1:, ::2]

    exact(Net(run, one=linear()), "a", X)


def test_conjugated_and_negated_views():
    def run(self, kept, x):
        z = kept.part("a", lambda x: torch.complex(x.exp(), x.sin()), self.one(x))
        w = kept.part("b", lambda z: z.conj() * z.exp(), z.conj())
        return (w * z.conj()).abs() + (z.conj().imag * z.imag) * torch.view_as_real(z * z).sum(-1)

    exact(Net(run, one=linear()), "a b", X)


def test_a_part_that_returns_its_input():
    def run(self, kept, x):
        x = kept.part("a", lambda x: x, self.one(x))
        return kept.part("b", lambda x: x.view(-1), x).exp() * kept.part("c", lambda x: self.one.weight[0], x).sum()

    exact(Net(run, one=linear()), "a b c", X)


def test_parts_in_loops():
    def run(self, kept, x):
        for scale in (1.0, 2.0, 3.0):
            x = self.one(kept.part("a", lambda x: F.silu(x * scale), x))  # noqa: B023
        return x

    assert exact(Net(run, one=linear()), "a", X)[:3] == ["a", "a", "a"]


class Marked(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.act, self.proj = nn.BatchNorm1d(8), nn.SiLU(), nn.Linear(8, 8)

    def forward(self, x):
        kept = parts(self)
        return self.proj(kept.part("act", lambda x: self.act(self.norm(x)), x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.ModuleList([Marked(), Marked()])
        self.act = nn.ReLU(inplace=True)
        self.shared = self.h[0]

    def forward(self, x):
        for block in self.h:
            x = self.act(block(x) + x)
        return self.shared(x)


def test_module_calls_and_calls_by_number():
    net = Model()
    assert "h.0.act" in exact(net, {"": "h.1/inside", "h.0": "act#1", "h.1": "norm act proj/inside"}, X)
    assert exact(net, {"": "h.0#0/inside shared#1/twice"}, X)
    assert exact(net, {"": "h.0#1/inside", "h.0": "norm#0 act/inside"}, X)


def test_a_mark_by_number():
    class Twice(nn.Module):
        def forward(self, x):
            return parts(self).part("mark", torch.exp, x)

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.twice = linear(), Twice()

        def forward(self, x):
            return self.one(self.twice(self.one(self.twice(self.one(x)))))

    assert exact(Root(), {"twice": "mark#1"}, X) == ["twice.mark"] * 2
    assert exact(Root(), {"twice": "mark"}, X) == ["twice.mark"] * 4
    assert exact(Root(), {"twice": "mark#7"}, X) == []
    assert exact(Root(), {"twice": "mark#0..1"}, X) == ["twice.mark"] * 4
    assert exact(Root(), {"twice": "mark#1..5"}, X) == ["twice.mark"] * 2


def test_batch_norm_moves_once():
    exact(Model(), {"": "h.0 h.1/inside shared#2/twice", "h.0": "norm"}, X)
    net = nn.Sequential(nn.Conv1d(6, 6, 1), nn.InstanceNorm1d(6, affine=True, track_running_stats=True), nn.SiLU())
    same(step(planned(net.train(), "0 1 2"), [X]), step(net, [X]))  # saves copies of what moved, which it does not read


def test_in_place_on_what_is_lent():
    net = nn.Sequential(linear(), nn.BatchNorm1d(8), nn.ReLU(inplace=True), linear(), nn.BatchNorm1d(8), nn.ReLU(inplace=True))
    net.append(linear())
    for plan in ("1 2", "1 2 4 5", "1/twice 2/twice 4 5/twice", "1 2/inside 4/result 5"):
        exact(net, plan, X)
    exact(nn.Sequential(linear(), nn.Sequential(net), nn.ReLU()), "1 1.0.1 1.0.2 1.0.4 1.0.5", X)


def test_a_result_that_is_changed_in_place_later():
    def run(self, kept, x):
        h = kept.part("a", lambda x: self.two(x.exp()), self.one(x))
        y = kept.part("b", torch.neg, h)
        h = h.tanh_() + y
        return self.two(h) * F.relu(kept.part("c", torch.cos, y), inplace=True)

    exact(Net(run, one=linear(), two=linear()), "a c", X)


def test_autocast_is_as_it_was():
    def run(self, kept, x):
        x = kept.part("a", lambda x: F.silu(self.one(x)), x)
        return kept.part("b", lambda x: self.two(x).float().softmax(-1), x).log()

    net = Net(run, one=linear(), two=linear())
    exact(net, "a b", X, around=lambda: torch.autocast("cpu", torch.bfloat16))
    exact(net, "a/twice b/inside", X, around=lambda: torch.autocast("cpu", torch.bfloat16))
    assert torch.is_autocast_cache_enabled() and not torch.is_autocast_enabled("cpu")


def test_settings_are_as_they_were():
    def run(self, kept, x):
        x = self.one(x).view(1, 2, 3, 8)
        x = kept.part("a", lambda x: F.scaled_dot_product_attention(x, x, x) * torch.tensor(0.1).double().float(), x)
        return x.exp()

    def around():
        return torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH])

    exact(Net(run, one=linear()), "a", X, around=around)
    exact(Net(run, one=linear()), "a", X, around=lambda: torch.autograd.set_detect_anomaly(False))
    net = planned(
        Net(lambda self, kept, x: kept.part("a", lambda x: (x * torch.ones(())).exp(), x), one=linear()).train(), "a/inside"
    )
    out = net(X.clone().requires_grad_())
    torch.set_default_dtype(torch.float64)
    try:
        out.sum().backward()
    finally:
        torch.set_default_dtype(torch.float32)


def test_evaluation_and_no_grad_know_no_parts():
    net = planned(Model().train(), {"": "h.0", "h.1": "act"})
    with torch.no_grad():
        assert net(X).grad_fn is None
    net.eval()
    net(X).sum().backward()


def test_a_class_whose_forward_is_a_step():
    class Root(Model):
        forward = training_step(Model.forward, {"h.0": "act", "": "h.1/inside"})

    torch.manual_seed(0)
    root = Root().train()
    torch.manual_seed(0)
    model = Model().train()
    same(step(root, [X]), step(model, [X]))


VIEWS = {
    "rows": lambda x: x[3:],
    "columns": lambda x: x[:, 4:],
    "all of it": lambda x: x.view(*x.shape),
    "turned": lambda x: x.t()[:6, :6],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    "plan", ["a b c", "a/twice b/twice c", "a b/twice c", "a/late b c", "a b/late c", "a/late b/twice/late c/late"]
)
def test_a_view_that_is_changed_in_place_is_exact_or_refused(view, plan):
    """`y = x[3:]; y += z`, and x is read afterwards: what b gives is a view of what a gave."""

    def run(self, kept, x):
        x = kept.part("a", torch.sin, self.one(x))
        y = VIEWS[view](x)
        z = self.two(X.detach())[: y.shape[0], : y.shape[1]]
        kept.part("b", lambda y, z: y.add_(z), y, z)
        return self.one(kept.part("c", torch.sin, x))

    net = Net(run, one=linear(), two=linear()).train()
    wanted = step(net, (X,))
    try:
        found = step(planned(net, plan), (X,))
    except RuntimeError as error:
        assert plan not in ("a b c", "a/late b c") and "again" in str(error)
        return
    same(found, wanted)


def test_late_values_are_kept_until_they_are_read():
    def run(self, kept, x):
        x = kept.part("a", torch.exp, self.one(x))
        return self.two(kept.part("b", torch.sin, x)) + x

    net = Net(run, one=linear(), two=linear())
    assert exact(net, "a/late b", X) == ["b", "a"] * 2  # read by sin, and then by exp: two steps
    assert exact(net, "a/late", X) == ["a"] * 2
    exact(net, "a/late b/late", X)
    exact(net, "a/twice/late b/late", X)


def test_late_values_that_are_changed_meanwhile_are_noticed():
    """By whoever has them, under a counter of its own."""

    def run(self, kept, x):
        a = kept.part("a", torch.sin, self.one(x))
        e = torch.sin(a) + self.two(X.detach()) * a.data
        with torch.no_grad():
            a.add_(1)
        return e

    net = planned(Net(run, one=linear(), two=linear()).train(), "a/late")
    with pytest.raises(RuntimeError, match="changed in place"):
        net(X).sum().backward()


@pytest.mark.parametrize(
    ("f", "options", "again"),
    [
        (lambda x: F.softmax(x, -1), "inside", False),  # saves what it gives, which is kept
        (lambda x: F.softmax(x * 2, -1), "inside", False),
        (lambda x: F.softmax(x, -1).exp(), "inside", True),  # saves two, of which one is given
        (lambda x: F.softmax(x, -1).t().contiguous().t(), "inside", True),  # gives another memory
        (lambda x: F.softmax(x, -1).t(), "inside", False),  # gives a view of it
        (F.silu, "inside", False),  # saves what it is given, which it holds
        (lambda x: F.silu(x).sin(), "inside", True),
        (F.silu, "", True),
    ],
)
def test_what_is_kept_anyway_is_not_rebuilt(f, options, again):
    net = Net(lambda self, kept, x: kept.part("a", f, self.one(x)).sin(), one=linear())
    assert ("a" in exact(net, f"a/{options}".strip("/"), X)) == again


def test_what_is_kept_may_not_change():
    def run(self, kept, x):
        y = kept.part("a", lambda x: F.softmax(x, -1), self.one(x))
        z = y + 1
        y.mul_(2)
        return z + y

    loud("a cannot run again: what it gave was changed in place", Net(run, one=linear()).train(), "a/inside")
