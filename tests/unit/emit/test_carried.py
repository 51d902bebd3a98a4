"""Files whose statements change what is carried, trained in a process that imports the generated file alone; and those that
change more than a copy of them may, for which the file wraps the original."""

from __future__ import annotations

import pytest
from fresh import FORWARD, model_file, trains_as_the_original

CALLS_OP = "    def forward(self, x):\n        return self.b(torch.tanh({}(self.a(x))).exp())\n"
OPERATION = """
@torch.library.custom_op("carried_tests::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return x * 3

@scale.register_fake
def _(x):
    return torch.empty_like(x)

def backward(ctx, gradient):
    return gradient * 3
"""
LIBRARY = """
library = torch.library.Library("carried_tests", "DEF")
library.define("scale(Tensor x) -> Tensor")
library.impl("scale", lambda x: x * 3, "CompositeExplicitAutograd")
torch.library.register_fake("carried_tests::scale", torch.empty_like, lib=library)
torch.library.register_autograd("carried_tests::scale", lambda ctx, gradient: gradient * 3, lib=library)
"""


@pytest.mark.parametrize(
    ("top", "call"),
    [
        (f"{OPERATION}scale.register_autograd(backward)\n", "scale"),
        (f"{OPERATION}torch.library.register_autograd('carried_tests::scale', backward)\n", "torch.ops.carried_tests.scale"),
        (LIBRARY, "torch.ops.carried_tests.scale"),
        ("import operations  # noqa: F401\n", "torch.ops.carried_tests.scale"),
    ],
)
def test_what_defines_an_operation_is_not_defined_twice(top, call, tmp_path):
    (tmp_path / "operations.py").write_text(f"import torch\n{LIBRARY}")
    trains_as_the_original(model_file(top, CALLS_OP.format(call)), tmp_path, carried=False)


CHANGED = """
import contextlib
import functools

TABLE, LATER = {}, {}

class Part(nn.Module):
    one = two = three = four = 1.0

@functools.singledispatch
def act(x):
    return 0

def halved(x, k=9):
    return x / k

try:
    assert "unset" in TABLE
    FIVE = 5
except AssertionError:
    FIVE = 6
with contextlib.suppress(AttributeError):
    nn.NoSuchModule
    FIVE = 7

def register(kind):
    kind.two = 2
"""
CHANGES = """
Net.act = lambda self, x: act(x)
@act.register
def _(x: torch.Tensor):
    return x.tanh()
halved.__defaults__ = (2,)
alias = Part
alias.one = 3
register(Part)
for kind in (Part,):
    setattr(kind, "three", 5)
type(kind()).four = 7
TABLE["k"] = 11
[LATER.update({i: i}) for i in (13,)]
def fill():
    for table in (TABLE,):
        table["l"] = 17
fill()
"""
READS_THEM = """    def forward(self, x):
        p = Part
        x = x * (p.one * p.two * p.three * p.four * FIVE * TABLE["k"] * TABLE["l"] * LATER[13] / 1e6)
        return self.b(halved(self.act(self.a(x))).exp().sin())
"""


def test_what_changes_what_is_carried_is_carried(tmp_path):
    made = trains_as_the_original(model_file(CHANGED, READS_THEM, CHANGES), tmp_path, carried=True)
    assert "alias.one = 3" in made


def test_what_a_file_sets_of_torch_is_carried_when_a_function_sets_it(tmp_path):
    top = "def set_up():\n    torch.set_default_dtype(torch.float64)\nset_up()\ntorch.manual_seed(3)\n"
    forward = FORWARD.replace("(x)", "(x.to(torch.get_default_dtype()))")
    trains_as_the_original(model_file(top, forward), tmp_path, carried=True)


DOUBLE = "from torch.nn import functional\nold = functional.gelu\nfunctional.gelu = lambda x: 2 * old(x)\n"
WITH = FORWARD.replace("torch.tanh", "{}")
WRAPPED = {
    "a function of torch's is replaced": model_file(DOUBLE, WITH.format("torch.nn.functional.gelu")),
    "another forward by its name": model_file(
        "def other(self, x):\n    return self.b(torch.sigmoid(self.a(x)).exp().sin())\n",
        bottom='setattr(Net, "forward", other)\n',
    ),
    "defaults of forward": model_file(
        "", FORWARD.replace("x)", "x, k=2)", 1).replace("(x))", "(x) * k)", 1), "Net.forward.__defaults__ = (3,)\n"
    ),
    "an import after a definition": model_file(
        "def act(x):\n    return x * 2\nfrom torch import sigmoid as act\n", WITH.format("act")
    ),
    "a random constant": model_file("torch.manual_seed(5)\nW = torch.randn(4)\n", WITH.format("W * torch.tanh")),
    "a name set by text": model_file("def act(x):\n    return x * 2\nglobals()['act'] = torch.sigmoid\n", WITH.format("act")),
    "the module by its name": model_file(
        "import sys\ndef act(x):\n    return x * 2\nsys.modules[__name__].act = torch.sigmoid\n", WITH.format("act")
    ),
    "an import for its effects": model_file("import patches  # noqa: F401\n", WITH.format("torch.nn.functional.gelu")),
    "a class that another file changes": model_file(
        "",
        WITH.format("self.act"),
        "from patches_of_net import helper\n\ndef main():\n    helper()\n",
        "\n    def act(self, x):\n        return x * 2\n",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", WRAPPED)
def test_what_a_copy_would_do_otherwise_is_wrapped(what, tmp_path):
    (tmp_path / "patches.py").write_text(DOUBLE)
    (tmp_path / "patches_of_net.py").write_text(
        "import model\ndef act(self, x):\n    return x.sigmoid()\ndef helper(): pass\nmodel.Net.act = act\n"
    )
    trains_as_the_original(WRAPPED[what], tmp_path, carried=False)
