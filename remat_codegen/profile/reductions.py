"""What CUDA's reductions allocate for themselves: where few outputs are sums of many numbers, several blocks of threads share
an output, and hold what each has found in global memory until the last of them adds that up.

By `setReduceConfig` of PyTorch's ATen/native/cuda/Reduce.cuh. The gradient of a bias is such a sum, and may take twice as much
as what it sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from remat_codegen.profile.devices import Device

WARP, MOST_THREADS = 32, 512
LEAST_VALUES, MOST_VALUES = 16, 256  # that one thread reduces, before outputs are shared
WIDEST = 4  # numbers that are loaded at once
RESIDENT_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536, (12, 0): 1536}  # of a multiprocessor, by generation
USUAL_RESIDENT_THREADS = 2048

Axes = list[tuple[int, int]]  # stride and size, the fastest first


def reduction_bytes(x: torch.Tensor, dims: Sequence[int], number_bytes: int, gpu: Device) -> list[int]:
    """The pieces of memory that the reduction of some dimensions (none: of all) allocates beside its result. `number_bytes` is
    the size of what it accumulates in."""
    gone = {d % x.dim() for d in dims} or set(range(x.dim()))
    strides = list(zip(x.stride(), x.shape, strict=True))
    reduced, kept = _merged(strides[d] for d in gone), _merged(s for d, s in enumerate(strides) if d not in gone)
    if not reduced or not x.numel():
        return []
    return _Launch(reduced, kept, int(x.storage_offset())).shared_bytes(number_bytes, gpu)


def _merged(axes: Iterable[tuple[int, int]]) -> Axes:
    """Axes, the fastest first, those that lie within each other as one."""
    found: Axes = []
    for stride, size in sorted(axes):
        if size == 1:
            continue
        if found and found[-1][0] * found[-1][1] == stride:
            found[-1] = found[-1][0], found[-1][1] * size
        else:
            found.append((stride, size))
    return found


@dataclass
class _Launch:
    """How threads share a reduction."""

    reduced: Axes
    kept: Axes
    offset: int
    step_input: int = field(default=1, init=False)
    step_output: int = field(default=1, init=False)

    def shared_bytes(self, number_bytes: int, gpu: Device) -> list[int]:
        """What blocks leave for each other, and a counter for each."""
        inputs, outputs = (math.prod(size for _, size in axes) for axes in (self.reduced, self.kept))
        along = not self.kept or self.reduced[0][0] < self.kept[0][0]  # threads side by side share an output
        wide = 1 if along else self._wide()
        first = (inputs // WIDEST if self._is_plain(inputs) else inputs) if along else outputs // wide
        width, height = _block(first, outputs if along else inputs, MOST_THREADS // wide)
        if along:
            self.step_input *= width
        else:
            self.step_output *= width
        across = -(-inputs // self.step_input) >= min(height * LEAST_VALUES, MOST_VALUES)
        if across:
            self.step_input *= height
        else:
            self.step_output *= height
        values, grid = -(-inputs // self.step_input), -(-(outputs // wide) // self.step_output)
        resident = RESIDENT_THREADS.get(gpu.compute_capability, USUAL_RESIDENT_THREADS)
        most = gpu.multiprocessors * (resident // (width * height))
        if not across or values < MOST_VALUES or grid > most:
            return []
        blocks = max(min(-(-most // grid), -(-values // LEAST_VALUES)), -(-values // MOST_VALUES))
        each = number_bytes * outputs * blocks * (1 if along else width * wide)
        return [each, 4 * grid] if blocks > 1 else []

    def _is_plain(self, inputs: int) -> bool:
        return not self.kept and len(self.reduced) == 1 and self.reduced[0][0] == 1 and inputs >= MOST_THREADS // WIDEST

    def _wide(self) -> int:
        """How many outputs a thread loads at once."""
        if not self.kept or self.kept[0][0] != 1:
            return 1
        others = [stride for stride, _ in (*self.reduced, *self.kept[1:])]
        return math.gcd(WIDEST, self.offset, self.kept[0][1], *others)


def _block(first: int, second: int, threads: int) -> tuple[int, int]:
    """Width and height of a block of threads."""
    first, second = (threads if n >= threads else 1 << max(0, n.bit_length() - 1) for n in (first, second))
    height = min(second, threads // min(first, WARP))
    return min(first, threads // height), height
