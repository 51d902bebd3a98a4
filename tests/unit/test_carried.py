"""Files whose statements change what is carried, trained in a process that imports the generated file alone."""

from __future__ import annotations

import pytest
from fresh import model_file, trains_as_the_original

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
        (f"{OPERATION}torch.library.register_autograd('carried_tests::scale', backward)\n", "scale"),
        (f"{OPERATION}torch.library.register_autograd('carried_tests::scale', backward)\n", "torch.ops.carried_tests.scale"),
        (LIBRARY, "torch.ops.carried_tests.scale"),
        ("import operations  # noqa: F401\n", "torch.ops.carried_tests.scale"),
    ],
)
def test_what_defines_an_operation_is_not_defined_twice(top, call, tmp_path):
    (tmp_path / "operations.py").write_text(f"import torch\n{LIBRARY}")
    trains_as_the_original(model_file(top, CALLS_OP.format(call)), tmp_path, carried=False)
