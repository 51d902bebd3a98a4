"""Products by groups of rows, on tensors without data and in a trace."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from remat_codegen.torch_seam import FakeTensorMode
from remat_codegen.trace import grouped_products
from remat_codegen.trace.tracing import trace

pytestmark = pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="this PyTorch has none")
OFFSETS = torch.tensor([3, 6, 8], dtype=torch.int32)
CASES = {
    "rows": (torch.randn(8, 8), torch.randn(3, 5, 8).transpose(1, 2), OFFSETS),
    "depth": (torch.randn(8, 8), torch.randn(5, 8).t(), OFFSETS),
    "each": (torch.randn(3, 8, 12), torch.randn(3, 5, 12).transpose(1, 2), None),
    "columns": (torch.randn(3, 8, 12), torch.randn(8, 12).t(), OFFSETS),
}


def _product(given: Callable[[torch.Tensor], torch.Tensor], name: str) -> torch.Tensor:
    left, right, offsets = (t if t is None else given(t) for t in CASES[name])
    return torch.nn.functional.grouped_mm(left, right, offs=offsets)


@pytest.mark.parametrize("name", CASES)
def test_results_without_data_lie_as_real_ones(name: str) -> None:
    grouped_products.known_without_data()
    real = _product(lambda tensor: tensor, name)
    with FakeTensorMode() as mode:
        fake = _product(mode.from_tensor, name)
    empty = _product(lambda tensor: tensor.to("meta"), name)
    for found in (fake, empty):
        assert (found.shape, found.stride(), found.dtype) == (real.shape, real.stride(), real.dtype)
        assert found.untyped_storage().nbytes() == real.untyped_storage().nbytes()


class _Experts(torch.nn.Module):
    """As libraries do it: another operation where they are traced."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 8, 8))

    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return x @ self.weight[0]
        return torch.nn.functional.grouped_mm(x, self.weight, offs=offsets)


def test_the_trace_has_what_runs() -> None:
    found = trace(_Experts(), (torch.randn(8, 8), OFFSETS), {})
    assert [o.name for o in found.operations if "mm" in o.name] == ["aten._grouped_mm.default"]
