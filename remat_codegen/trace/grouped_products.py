"""Products by groups of rows (`torch._grouped_mm`, of mixtures of experts) on tensors without data.

PyTorch's own rule for them knows bfloat16 alone, where its kernels take other types, too; libraries are then told that they are
traced, and call something else than when they run. Rows of the result begin at multiples of 16 bytes, as kernels ask it of what
they are given; the rule knows it on builds for CUDA only.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from remat_codegen.torch_seam import set_fake_result

GROUPED = "_grouped_mm"
ALIGNED_BYTES = 16
_HELD: list[Any] = []  # what is registered is there for as long as these are


@functools.cache
def known_without_data() -> None:
    """Has this process know what products by groups give on tensors without data, of every type that kernels take."""
    operation = getattr(getattr(torch.ops.aten, GROUPED, None), "default", None)
    if operation is None or torch.version.hip:  # there, rows lie one after the other
        return
    set_fake_result(operation, lambda mode, function, *args, **kwargs: _result(*args, **kwargs))
    library = torch.library.Library("aten", "IMPL")
    library.impl(GROUPED, _result, "Meta")
    _HELD.append(library)


def _result(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """An empty result: of rows in groups by a matrix for each, of matrices by columns in groups, or a matrix for each group."""
    if left.dim() == right.dim() == 2:
        assert offs is not None
        size = (offs.shape[0], left.shape[0], right.shape[1])
    else:
        size = (*left.shape[:-1], right.shape[-1]) if right.dim() == 3 else (left.shape[-2], right.shape[-1])
    dtype = out_dtype or left.dtype
    numbers = ALIGNED_BYTES // dtype.itemsize
    row = (size[-1] + numbers - 1) // numbers * numbers
    stride = (size[-2] * row, row, 1)[-len(size) :]
    return left.new_empty_strided(size, stride, dtype=dtype)
