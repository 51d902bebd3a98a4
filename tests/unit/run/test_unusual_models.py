"""Whole runs of the command on small models that do something unusual: each file is exact, and within its budget."""

from __future__ import annotations

import pytest

from remat_codegen.ask.request import Request
from remat_codegen.ask.target import load_target
from remat_codegen.errors import UnsupportedError
from remat_codegen.run import marked
from remat_codegen.show.results import Progress
from remat_codegen.trace import trace

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
"""

GIVEN_UNREAD = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def message(self, near, far, linear):
        return F.relu(near + linear(near)).sin().exp().tanh()

    def forward(self, x, index):
        for linear in self.linears:
            given = {"near": x.index_select(0, index), "far": x.exp().index_select(0, index)}
            x = x + self.message(**given, linear=linear)[: len(x)]
            if x.mean() > 1e9:  # decided by a value: only files with marks can be made
                return x
        return x


def example_inputs():
    return torch.randn(60, 32), torch.arange(600) % 60
"""

HELD_BY_A_CALL = """
import functools


def gone(wide, module, x):
    y = x + wide[:, :64]
    del wide  # now only the call that waits for this has it
    for _ in range(4):
        y = F.gelu(module.linear(y)).tanh()
    return y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            block.forward = functools.partial(gone, torch.cat([x.sin()] * 16, -1), block)
            x = x + block(x)
            del block.forward
        return x


def example_inputs():
    return (torch.randn(256, 64),)
"""

FILLED_LATER = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.linears[2].register_forward_hook(lambda module, given, out: None)

    def forward(self, x):
        for linear in self.linears:
            x = x + F.rrelu(linear(x), training=self.training).sin() * torch.sigmoid(x)
        return x


def example_inputs():
    return (torch.randn(64, 64),)
"""

MODULATED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linears, self.modulate = nn.ModuleList(nn.Linear(32, 32) for _ in range(4)), nn.Linear(8, 64)

    def film(self, x, given):
        scale, shift = given.chunk(2, -1)
        return x * (1 + scale[..., None, :]) + shift[..., None, :]

    def forward(self, x, given):
        given = self.modulate(given)
        for linear in self.linears:
            x = F.elu(self.film(linear(x), given)) * torch.sigmoid(x)
        return x


def example_inputs():
    return torch.randn(4, 32, 32), torch.randn(4, 8)
"""

ASSERTED = """
class Quantise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, step):
        assert step > 0, step
        ctx.save_for_backward(x, step)
        return (x / step).round().clamp(-8, 7) * step

    @staticmethod
    def backward(ctx, grad):
        x, step = ctx.saved_tensors
        inside = ((x / step).abs() < 8).to(x.dtype)
        return grad * inside, (grad * (1 - inside)).sum().view_as(step)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.step = nn.Parameter(torch.full((1,), 0.1))

    def forward(self, x):
        for linear in self.linears:
            x = torch.tanh(linear(Quantise.apply(x, self.step)).sin().exp())
        return x


def example_inputs():
    return (torch.randn(64, 64),)
"""

SHAPED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.shapes = {"up": torch.Size((64, 32)), "down": torch.Size((32, 64))}
        self.make = nn.Linear(8, sum(shape.numel() for shape in self.shapes.values()))

    def forward(self, x, given):
        for _ in range(3):
            up, down = self.make(given).split([shape.numel() for shape in self.shapes.values()])
            h = F.linear(x, up.view(self.shapes["up"])).sin().exp().tanh()
            x = x + F.linear(h, down.view(self.shapes["down"]))
        return x


def example_inputs():
    return torch.randn(200, 32), torch.randn(8)
"""

ESCAPED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4))), nn.Linear(64, 4)
        self.kept = {}
        self.body[1].register_forward_hook(lambda module, given, out: self.kept.update(h=out))

    def forward(self, x):
        x = torch.sin(x)
        y = checkpoint(self.body, x, use_reentrant=RE)
        return self.head(y) + self.kept["h"].square().mean()


def example_inputs():
    return (torch.randn(64, 64, requires_grad=True),)
"""

IN_A_LIST = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(64, 64), nn.Linear(64, 4)

    def run(self, x):
        y = self.body(x).sin().exp().tanh()
        return y, [y * 2]

    def forward(self, x):
        y, others = checkpoint(self.run, torch.sin(x), use_reentrant=RE)
        return self.head(y) + others[0].square().mean()


def example_inputs():
    return (torch.randn(64, 64, requires_grad=True),)
"""


def asked(folder, source, budget, edition=None):
    path = folder / "model.py"
    path.write_text(HEAD + source)
    return Request(f"{path}:Net", budget, folder / "file.py", verify=True, edition=edition)


SHARED_LIST = """
class Level(nn.Module):
    def __init__(self, index, heads):
        super().__init__()
        self.block = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
        self.head, self.index, self.heads = nn.Linear(32, 5), index, heads

    def forward(self, x):
        x = x + self.block(x)
        self.heads[self.index] = self.head(x)
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = [torch.rand(1)] * 4
        self.levels = nn.Sequential(*(Level(i, self.heads) for i in range(4)))

    def forward(self, x):
        self.levels(x)
        return torch.stack(self.heads, 1)


def example_inputs():
    return torch.randn(4, 32, 32)
"""

NARROWED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32)) for _ in range(3))

    def forward(self, x, mask):
        for layer in self.layers:
            x = x + layer(x).sin()
        first = mask.sum(1).max()  # a tensor of one number
        return torch.narrow(x, 1, first, 8) * x.narrow(1, first - 1, 8)


def example_inputs():
    return torch.randn(8, 32, 32), torch.ones(8, 3, dtype=torch.long)
"""

LEFT_OUT_BY_CHANCE = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(8))
        self.head = nn.Linear(64, 64)

    def forward(self, x):
        for layer in self.layers:
            if not (self.training and torch.rand([]) < 0.5):
                x = x + layer(x)
            if torch.rand(1).item() > 0.9:
                x = x.sin()
        return self.head(x)


def example_inputs():
    return torch.randn(32, 16, 64)
"""

UNNAMED = """
from torch.utils import _pytree


class Output(dict):
    pass


_pytree.register_pytree_node(Output, lambda o: ([*o.values()], [*o]), lambda v, names: Output(zip(names, v)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32)) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return Output(sample=x)


def example_inputs():
    return torch.randn(16, 32, 32)
"""

GIVEN_FOR_ITS_TYPE = """
class Angles(nn.Module):
    def forward(self, x, places):
        angles = places[:, :, None].float() * torch.linspace(0, 1, 64).expand(1, 1, 64)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.angles = nn.Embedding(16, 64), Angles()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4))

    def forward(self, numbers):
        x = self.embed(numbers)
        cos, sin = self.angles(x, torch.arange(numbers.shape[1])[None])
        for layer in self.layers:
            x = layer(x * cos + x.flip(-1) * sin)
        return x


def example_inputs():
    return (torch.arange(16).repeat(8, 4),)
"""


@pytest.mark.parametrize(
    ("source", "budget"),
    [
        pytest.param(GIVEN_UNREAD, "70%", id="a method is given what it does not read"),
        pytest.param(HELD_BY_A_CALL, "70%", id="a call holds what its function has let go of"),
        pytest.param(FILLED_LATER, "70%", id="an operation saves what it fills later"),
        pytest.param(MODULATED, "60%", id="a view is taken between two operations"),
        pytest.param(ASSERTED, "60%", id="a Function asserts something of its numbers"),
        pytest.param(SHAPED, "75%", id="a dict has the sizes of weights"),
        pytest.param(ESCAPED.replace("RE", "False"), "80%", id="a hook keeps something of a checkpoint"),
        pytest.param(SHARED_LIST, "60%", id="modules share a list that is written anew"),
        pytest.param(NARROWED, "70%", id="narrow begins where a tensor says"),
        pytest.param(LEFT_OUT_BY_CHANCE, "70%", id="layers are left out by chance"),
        pytest.param(UNNAMED, "80%", id="a class of results has no names for what is in it"),
        pytest.param(GIVEN_FOR_ITS_TYPE, "70%", id="a module is given a tensor for its type alone"),
    ],
)
def test_it_trains_alike_within_its_budget(tmp_path, source, budget):
    found = marked.generate(asked(tmp_path, source, budget), Progress(None)).verify
    assert found is not None and found.ok, found.failures()


def test_what_a_view_is_taken_of_is_marked(tmp_path):
    marked.generate(asked(tmp_path, MODULATED, "50%", edition=2), Progress(None))
    assert "shift[..., None, :]" in (tmp_path / "file.py").read_text()


@pytest.mark.parametrize(("model", "line"), [(ESCAPED, "y = checkpoint("), (IN_A_LIST, "y, others = checkpoint(")])
def test_what_has_no_gradient_in_truth_is_given_none(tmp_path, model, line):
    source = model.replace("RE", "True")
    where = HEAD.count("\n") + source[: source.index(line)].count("\n") + 1
    with pytest.raises(UnsupportedError, match=r"checkpoint\(use_reentrant=True\) makes, but does not return") as refused:
        marked.generate(asked(tmp_path, source, "80%"), Progress(None))
    assert refused.value.where == f"model.py:{where}"
    marked.generate(asked(tmp_path, model.replace("RE", "False"), "80%"), Progress(None))


def test_layers_that_chance_leaves_out_are_planned_for(tmp_path):
    source = tmp_path / "model.py"
    source.write_text(HEAD + LEFT_OUT_BY_CHANCE)
    target = load_target(f"{source}:Net")
    found = trace(target.module, target.args, target.kwargs)
    assert sum(op.base == "gelu" for op in found.operations) == 8
