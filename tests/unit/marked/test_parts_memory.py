"""What places free, and that everything goes when autograd lets go: with the garbage collector off."""

from __future__ import annotations

import copy
import gc
import math
import weakref

import pytest
import torch
import torch.nn.functional as F
from parted import Net, held, peak, planned, same, step
from torch import nn

import remat_codegen.parts as helpers
from remat_codegen.parts import adopt, parts, training_step

SIZE = 256 * 256 * 4
X = torch.randn(256, 256)


@pytest.fixture(autouse=True)
def _uncollected():
    """What other tests left is looked at no more, such as frames that a compiler knows."""
    gc.collect()
    gc.disable()
    gc.freeze()
    yield
    gc.enable()


def left():
    """What is still there of the steps of this test."""
    return [o for o in gc.get_objects() if type(o) in (helpers.Part, helpers.Place, helpers.Step, helpers.Held)]


def chain(length, tail=0):
    """Elementwise operations whose results autograd keeps, `length` of them in parts."""

    def run(self, kept, x):
        x = self.one(x)
        for _ in range(length):
            x = kept.part("a", lambda x: F.silu(x).sigmoid(), x)
        for _ in range(tail):
            x = x.sin()
        return x.sum()

    return Net(run, one=nn.Linear(256, 256, bias=False)).train()


def test_forward_leaves_only_what_is_not_rebuilt():
    net = chain(8)
    assert held(net, X) > 9 * SIZE
    assert held(planned(net, "a"), X) < 1.1 * SIZE  # the chain runs again from the input of the first
    assert 9 * SIZE < held(planned(net, "a/inside"), X) < 9.2 * SIZE  # the last one's result, too: exp saves it
    assert 8 * SIZE < held(planned(net, "a/result"), X) < 10 * SIZE


def test_results_that_nobody_saves_do_not_keep_what_they_were_made_of():
    def run(self, kept, x):
        for _ in range(8):
            x = x + kept.part("a", torch.sin, self.one(x) * 2) * 0.5
        return x.sum()

    net = Net(run, one=nn.Linear(256, 256, bias=False)).train()
    assert held(planned(net, "a"), X) <= held(net, X) + 4096


def test_steps_reach_their_peak():
    net = chain(1, 3)
    other = planned(net, "a")
    peaks = [peak(lambda m=m: m(X).backward()) for m in (net, other)]
    assert peaks[1] < peaks[0] - 0.9 * SIZE


def test_a_value_for_parts_goes_after_the_last_of_them():
    """Between f3, which is the last to read what f1 gives, and the way back through that."""

    def run(self, kept, x):
        one = kept.part("f1", torch.exp, self.one(x))
        two = kept.part("f2", torch.sin, one)
        three = kept.part("f3", torch.mul, one, two)
        return torch.utils.checkpoint.checkpoint(seen, three.sin(), use_reentrant=False).sum()

    def seen(x):
        alive.append(sum(place.value is not None for o in gc.get_objects() if type(o) is helpers.Part for place in places(o)))
        return x.sin()

    def places(part):
        return [place for ref in part.results if ref and (place := ref()) and part.entry.name == "f1"]

    alive: list[int] = []
    for options, there in (("", 1), ("/shared", 0)):
        step(planned(Net(run, one=nn.Linear(256, 256)).train(), f"f1{options} f2 f3"), [X])
        assert alive[-1] in (there, 0)


def test_three_levels():
    def run(self, kept, x):
        def middle(x):
            for _ in range(8):
                x = kept.part("inner", lambda x: x.sin().cos(), x)
            return x

        def outer(x):
            return kept.part("middle", middle, kept.part("middle", middle, x))

        return kept.part("outer", outer, self.one(x)).sum()

    net = Net(run, one=nn.Linear(256, 256, bias=False)).train()
    peaks = [peak(lambda m=m: m(X).backward()) / SIZE for m in (net, planned(net, "outer middle inner"), planned(net, "outer"))]
    assert peaks[1] < 0.65 * peaks[0] and peaks[1] < peaks[2]


def test_nothing_is_left_after_a_step_or_a_forward_without_backward():
    def run(self, kept, x):
        def outer(x):
            return kept.part("inner", lambda x: F.dropout(F.silu(x)), self.one(x)).exp()

        x = kept.part("a", F.silu, kept.part("outer", outer, x))
        seen.append(weakref.ref(x))
        return self.two(x)

    seen: list = []
    net = planned(Net(run, one=nn.Linear(256, 256), two=nn.Linear(256, 256)).train(), "a outer inner/twice")
    for backward in (False, True):
        step(net, [X]) if backward else net(X)
        assert not any(ref() is not None for ref in seen)
    assert not left()


def test_nothing_is_left_after_an_exception():
    def run(self, kept, x):
        x = kept.part("a", F.silu, self.one(x))
        if fail:
            raise KeyError
        return kept.part("b", lambda x: F.silu(x) if not fail else x.nothing, x).exp()

    net, fail = planned(Net(run, one=nn.Linear(256, 256)).train(), "a b"), []
    out = net(X)
    fail.append(1)
    for call in (lambda: net(X), lambda out=out: out.sum().backward()):
        try:
            call()
        except (KeyError, AttributeError) as error:
            error.__traceback__ = None
            del error
    fail.clear()
    out = call = None
    assert not left()


def test_what_inner_parts_lend_each_other_goes():
    def run(self, kept, x):
        def outer(x):
            y = kept.part("a", torch.exp, self.one(x))
            return kept.part("b", torch.sin, y) + y, y

        z, y = kept.part("outer", outer, x)
        return self.two(z) * y

    net = planned(Net(run, one=nn.Linear(256, 256), two=nn.Linear(256, 256)).train(), "outer a b")
    out = net(X)
    out.sum().backward(retain_graph=True)
    del out
    assert not left()


def test_models_go_without_the_garbage_collector():
    net = planned(chain(2), "a one")
    net(X).backward()
    seen = weakref.ref(net)
    del net
    assert seen() is None


def test_addresses_that_are_used_again():
    """Results die at once, and others get their memory: none may be taken for them."""

    def run(self, kept, x):
        for _ in range(50):
            kept.part("a", torch.sin, x * 3)
            x = (x * 1.5).tanh() * torch.ones_like(x).mul_(2)
        return self.one(x)

    net = Net(run, one=nn.Linear(16, 16)).train()
    x = torch.randn(16, 16, requires_grad=True)
    same(step(planned(net, "a"), [x]), step(net, [x]))


def test_in_place_activations_of_a_resnet_cost_nothing():
    layers = [layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))]
    net, x = nn.Sequential(*layers, nn.Conv2d(8, 8, 1)).train(), torch.randn(4, 8, 64, 64)
    plan = " ".join(str(i) for i in range(12) if i % 3)
    size = x.numel() * 4
    assert held(planned(net, plan), x) < held(net, x) - 3.9 * size
    peaks = [peak(lambda m=m: m(x).sum().backward()) / size for m in (net, planned(net, plan))]
    assert peaks[1] < peaks[0] - 1.5
    same(step(planned(net, plan), [x]), step(net, [x]))


# ---------------------------------------------------------------------------- the examples of issue 26, smaller


class Residual(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(4, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.dropout = nn.Dropout(0.1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x):
        kept = parts(self)
        h = self.conv1(kept.part("activation1", lambda x: F.silu(self.norm1(x)), x))
        h = self.conv2(kept.part("activation2", lambda h: self.dropout(F.silu(self.norm2(h))), h))
        return h + self.skip(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.down = nn.ModuleList([Residual(8, 8), Residual(8, 16)])
        self.shrink, self.grow = nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.middle, self.up = Residual(16, 16), nn.ModuleList([Residual(32, 16), Residual(16, 8)])

    def forward(self, x):
        a = self.down[0](self.stem(x))
        b = self.down[1](self.shrink(a))
        x = self.up[0](torch.cat([self.middle(b), b], 1))
        return self.out(self.up[1](torch.cat([self.grow(x), a], 1)))


UNET = dict.fromkeys(("down.0", "down.1", "middle", "up.0", "up.1"), "activation1 activation2")


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.drop = heads, nn.Dropout(0.1)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, 2))
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()

        def probs(q, k):
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
            return self.drop(F.softmax(scores.masked_fill(~mask, float("-inf")), -1))

        return self.c_proj((parts(self).part("probs", probs, q, k) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.fc, self.proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.proj(parts(self).part("gelu", F.gelu, self.fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.h, self.ln_f = nn.Embedding(50, 64), nn.ModuleList(Block(64, 4) for _ in range(4)), nn.LayerNorm(64)
        self.head = nn.Linear(64, 50, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.wte(tokens)
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


INNER = {f"h.{i}": "ln_1 ln_2 attn.probs gelu" for i in range(4)}
TOKENS = torch.randint(0, 50, (4, 64), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("kind", "plan", "given", "most"),
    [
        (UNet, UNET, torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)), 0.78),
        (GPT, INNER, TOKENS, 0.6),
        (GPT, {"": "h.0/inside h.1/inside h.2/inside"}, TOKENS, 0.6),
        (GPT, {"": "h.0/inside h.1/inside h.2/inside", **INNER}, TOKENS, 0.4),
        (GPT, {"": "h.0/inside/twice h.1 h.2/inside", "h.1": "attn/inside", "h.1.attn": "probs"}, TOKENS, 0.6),
    ],
)
def test_hand_made_examples(kind, plan, given, most):
    net = kind().train()
    other = adopt(copy.deepcopy(net), plan)
    for _ in range(2):
        same(step(other, [given]), step(net, [given]))
    peaks = [peak(lambda m=m: step(m, [given])) for m in (net, other)]
    assert peaks[1] < most * peaks[0], f"{peaks[1] / peaks[0]:.2f}"


def test_a_marked_root():
    class Root(GPT):
        forward = training_step(GPT.forward, INNER)

    net = GPT().train()
    root = Root().train()
    root.load_state_dict(net.state_dict())
    same(step(root, [TOKENS]), step(net, [TOKENS]))


def test_a_value_for_parts_goes_after_those_within_others(monkeypatch):
    """What f1 gives is given to `outer` and to `inner`, which stands in that one; then autograd has f1 run once more."""

    def run(self, kept, x):
        def outer(x):
            return kept.part("inner", torch.sin, x).cos()

        return kept.part("outer", outer, kept.part("f1", torch.exp, self.one(x))).sum()

    there, again = [], helpers.Part.again

    def watched(part):
        there.extend(place().value is not None for place in part.results if place and place() and part.entry.name == "f1")
        again(part)

    monkeypatch.setattr(helpers.Part, "again", watched)
    step(planned(Net(run, one=nn.Linear(256, 256)).train(), "f1/shared outer inner"), [X])
    assert there == [False]
