"""What an optimizer of torch.optim holds for each parameter between two steps.

Found by reading the state of each optimizer of PyTorch 2.13 after one step: tensors of the parameter's own shape and dtype
(fused or not, with `foreach` or without), and tensors of one number of torch's default dtype, most of which stay on the CPU for
a parameter on a GPU. `tests/unit/ask/test_optimizers.py` compares with the optimizers of the PyTorch that is there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

NO_OPTIMIZER = "none"


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of one parameter: `copies` tensors like it, `numbers` of one number on its device, `counters` on the CPU.
    `factored`: instead of a copy, the sums over the last dimension and over the one before it, where there are two."""

    copies: int = 0
    numbers: int = 0
    counters: int = 0
    factored: bool = False


OPTIMIZERS = {
    "adamw": Kept(2, counters=1),
    "adam": Kept(2, counters=1),
    "adam-amsgrad": Kept(3, counters=1),
    "sgd": Kept(),
    "sgd-momentum": Kept(1),
    "adafactor": Kept(counters=1, factored=True),
    "adagrad": Kept(1, counters=1),
    "rmsprop": Kept(1, counters=1),
    "rmsprop-centered-momentum": Kept(3, counters=1),
    "adadelta": Kept(2, counters=1),
    "adamax": Kept(2, counters=1),
    "nadam": Kept(2, counters=2),
    "radam": Kept(2, counters=1),
    "rprop": Kept(2, counters=1),
    "asgd": Kept(1, numbers=2, counters=1),
    NO_OPTIMIZER: Kept(),
}


def state_pieces(name: str, shape: Sequence[int], item_bytes: int, number_bytes: int, on_cpu: bool) -> list[int]:
    """The bytes of each tensor that an optimizer keeps, for one parameter, on the parameter's device.

    `item_bytes` are those of one number of the parameter, `number_bytes` of torch's default dtype.
    """
    kept = OPTIMIZERS[name]
    pieces = [math.prod(shape) * item_bytes] * kept.copies
    if kept.factored and len(shape) > 1:
        *before, rows, columns = shape
        pieces += [math.prod((*before, rows)) * item_bytes, math.prod((*before, columns)) * item_bytes]
    elif kept.factored:
        pieces.append(math.prod(shape) * item_bytes)
    return pieces + [number_bytes] * (kept.numbers + (kept.counters if on_cpu else 0))


def smaller_than(name: str) -> list[str]:
    """The optimizers that keep fewer copies of a parameter than one does, the most first."""

    def copies(kept: Kept) -> float:
        return kept.copies + 0.5 * kept.factored

    fewer = [n for n, kept in OPTIMIZERS.items() if n != NO_OPTIMIZER and copies(kept) < copies(OPTIMIZERS[name])]
    return sorted(fewer, key=lambda n: -copies(OPTIMIZERS[n]))
