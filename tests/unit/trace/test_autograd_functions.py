"""The user's autograd.Functions are operations like others; what no file could call, or no plan could forget, is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import zoo
from emitted import droppable, emit, load, model_of, rebuilding, zoo_model
from torch import nn

from remat_codegen.ask.request import Request
from remat_codegen.errors import UnsupportedError
from remat_codegen.run import pipeline
from remat_codegen.show.results import Progress
from remat_codegen.verify.beside import compare

HEAD = '''import enum
import random

import torch
from torch import nn
from torch.autograd import Function, grad
from torch.utils.checkpoint import checkpoint


class double(Function):
    """A name that a variable might have."""

    @staticmethod
    def forward(ctx, x, *others):
        ctx.others = others
        ctx.mark_non_differentiable()
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return (3 * g, *(None for _ in ctx.others))


class Holds(double):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * 2


class Hides(double):
    @staticmethod
    def forward(ctx, x):
        ctx.again = lambda: [x]
        return x * 2


class Draws(double):
    @staticmethod
    def forward(ctx, x):
        return x * random.random()


OWN, TABLE = torch.Generator(), torch.zeros(3)


class Generates(double):
    @staticmethod
    def forward(ctx, x):
        return x * torch.rand(x.shape, generator=OWN)


class Counts(double):
    @staticmethod
    def forward(ctx, x, table):
        table[0].add_(1)
        return x * 2


class Same(double):
    pass


first = Same.apply


class Same(double):
    pass


class Alone(double):
    @staticmethod
    def forward(ctx, x):
        return (x * 2,)


class Twice(double):
    @staticmethod
    def forward(ctx, x):
        y = x * 2
        return y, y.view_as(y)


class Needs(double):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.numpy() * 2)


class Overwrites(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.sigmoid()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y.mul_(1 - y).mul_(g)


class Scales(double):
    @staticmethod
    def backward(ctx, g):
        return (g.mul_(3), *(None for _ in ctx.others))


class Mode(enum.IntEnum):
    B = 2


class Writes(double):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x.mul_(2))
        return x


class Looks(double):
    @staticmethod
    def forward(ctx, x):
        ctx.others = ()
        return x.view_as(x)


class Both(double):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x), x * 2


class Listed(double):
    @staticmethod
    def forward(ctx, parts):
        return parts[0] * parts[1]


class Step(double):
    """Has the name of a helper of generated files."""


class kept(double):
    pass


class Within(Function):
    """Its backward builds a graph of its own, and goes back through it."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.tanh(x @ weight)

    @staticmethod
    def backward(ctx, g):
        x, weight = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            torch.tanh(x @ weight).backward(g)
        return x.grad, weight.grad


class Number(double):
    @staticmethod
    def forward(ctx, x):
        return x * 2, 1


class Own(double):
    @classmethod
    def apply(cls, x):
        return super().apply(x.sin())


def local():
    class Local(double):
        pass

    return Local.apply


ste = double.apply
inner = local()
'''

NET = """

class Net(nn.Linear):
    def forward(self, x):
        h = super().forward(x).relu()
        return {}
"""

REFUSED = {
    "Holds.apply(h)": "the autograd.Function Holds holds tensors as attributes of ctx, where none can be forgotten",
    "Hides.apply(h)": "the autograd.Function Hides holds tensors as attributes of ctx, where none can be forgotten",
    "Draws.apply(h)": "the autograd.Function Draws draws from another generator than PyTorch's",
    "Generates.apply(h)": "the autograd.Function Generates draws from another generator than PyTorch's",
    "Counts.apply(h, h.cos())": "the autograd.Function Counts changes what it is given in place",
    "first(h)": "the autograd.Function Same is not what its name stands for in its file",
    "sum(Twice.apply(h))": "the autograd.Function Twice returns tensors that share their memory",
    "Needs.apply(h)": r"the autograd.Function Needs fails on tensors without data \(.*numpy",
    "Overwrites.apply(h).sin()": "the backward of Overwrites.apply writes into a tensor that it has not made",
    "Scales.apply(h).sin()": "the backward of Scales.apply writes into a tensor that it has not made",
    "Alone.apply(h)[0]": "the autograd.Function Alone returns something else than tensors",
    "double.apply(h, Mode.B)": "the autograd.Function double is given a Mode, which no file can hold",
    "double.apply(h, h.shape)": "the autograd.Function double is given a Size, which no file can hold",
    "h + Within.apply(h.detach().requires_grad_(), self.weight)": "the autograd.Function Within is given a tensor whose",
    "Writes.apply(h.sin())": "the autograd.Function Writes changes what it is given in place",
    "h @ Looks.apply(self.weight)": "the autograd.Function Looks returns a parameter or an input as it is",
    "Both.apply(h)[1]": "the autograd.Function Both returns something new beside what it is given",
    "Number.apply(h)[0]": "the autograd.Function Number returns something else than tensors",
    "Own.apply(h)": "the autograd.Function Own has an `apply` of its own",
    "inner(h)": "the autograd.Function Local is defined inside of a function",
    "torch.vmap(double.apply)(h)": "the autograd.Function double is called inside of torch.vmap",
    "double.apply(h, self)": "the autograd.Function double is given a Net, which no file can hold",
    "double.apply(h, [h])": "the autograd.Function double is given a list, which no file can hold",
    "h * grad(h.sum(), x, create_graph=True)[0]": r"torch.autograd.grad\(\) inside of forward",
}


def written(expression: str, folder: Path) -> str:
    """The file for a model that returns an expression of `h`, verified."""
    (folder / "model.py").write_text(HEAD + NET.format(expression))
    request = Request(
        f"{folder / 'model.py'}:Net", "100%", folder / "out.py", "4, 4", "float32[2,4] requires_grad", verify=True
    )
    report = pipeline.generate(request, Progress(None))
    assert report.verify.ok, report.verify.failures()
    return (folder / "out.py").read_text()


@pytest.mark.parametrize("expression", REFUSED)
def test_what_no_file_could_do_is_refused_with_the_line(expression, tmp_path):
    with pytest.raises(UnsupportedError, match=rf"^model.py:\d+: {REFUSED[expression]}"):
        written(expression, tmp_path)
    x = torch.ones(2, requires_grad=True)
    assert torch.autograd.grad(zoo.swish(x).sum(), x)[0].tolist() == pytest.approx([0.9277, 0.9277], abs=1e-4)


def test_a_class_with_the_name_of_a_variable(tmp_path):
    text = written("double.apply(h).sin() + double.apply(h.cos(), 2, (1.0, None), torch.float32)", tmp_path)
    assert "double.apply(h)" in text and "double.apply(h.cos(), 2, (1.0, None), torch.float32)" in text


def test_a_function_under_another_name(tmp_path):
    """`ste` was bound when the file was imported, before anything was traced."""
    assert "double.apply(" in written("ste(h).sin()", tmp_path)


def test_a_function_with_the_name_of_a_helper(tmp_path):
    text = written("Step.apply(h).sin()", tmp_path)
    assert "Step.apply(" in text and "_of_the_user" not in text
    with pytest.raises(UnsupportedError, match=r"^model.py:\d+: the class kept has a name that generated code uses; rename it"):
        written("kept.apply(h).sin()", tmp_path)


def test_a_backward_that_goes_back_itself(tmp_path):
    assert "Within.apply(" in written("h + Within.apply(Within.apply(h, self.weight).sin(), self.weight).exp()", tmp_path)


def test_functions_without_a_way_back_are_what_they_compute(tmp_path):
    assert ".apply(" not in written("h + ste(x.detach())", tmp_path).partition("def run_forward")[0].partition("_forward(m")[2]


def test_nothing_goes_back_through_what_stands_in_a_list(tmp_path):
    """PyTorch looks at a Function's arguments only, not into them."""
    assert "with torch.no_grad():" in written("h + Listed.apply([h, h.sin()])", tmp_path)


@pytest.mark.parametrize("wraps", [False, True])
def test_how_a_file_reaches_them(wraps, tmp_path):
    module, args, kwargs, model = zoo_model("functions")
    source = None if wraps else Path(zoo.__file__).read_text()
    text = emit(module, args, kwargs, model, rebuilding(model.graph, set(droppable(model.graph))), source)
    assert ('function_of(m.original, "Swish").apply(' in text) == wraps
    assert "Rounded.apply(m.a[0].weight, 4)" in text or wraps
    found = compare(module, load(text, tmp_path).rematerialize, args, kwargs)
    assert {what: d.where for what, d in found.differences.items() if d.worst is not None} == {}


class Cast(torch.autograd.Function):
    """Under autocast, as libraries write it."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.T, x.T.to(grad.dtype) @ grad


class Casting(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Parameter(torch.eye(8))

    def forward(self, x):
        return Cast.apply(torch.tanh(self.a(x)), self.b.to(torch.get_autocast_dtype("cpu"))).sin()


def test_functions_under_autocast(tmp_path):
    autocast = (("cpu", torch.bfloat16),)
    module, args = Casting(), (torch.randn(4, 8),)
    model = model_of(module, args, {}, autocast)
    text = emit(module, args, {}, model, rebuilding(model.graph, set(droppable(model.graph))), None)
    found = compare(module, load(text, tmp_path, "casting").rematerialize, args, {}, autocast=autocast)
    assert {what: d.where for what, d in found.differences.items() if d.worst is not None} == {}
