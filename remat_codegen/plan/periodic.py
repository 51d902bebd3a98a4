"""Segments of equal length, each run forward once more before its way back (Chen et al., 2016), every kind of block in one way.

In a tight budget, rk-Rotor lets blocks run again in ever new patterns, which are as many functions in the generated file. In a
chain of repetitions, checkpoints at equal distances cost hardly more, and the schedule is a loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from remat_codegen.plan.rotor import Backward, Forward, Operation

if TYPE_CHECKING:
    from remat_codegen.plan.rockmate import Candidate, Chain

MOST_WAYS = 2_000  # combinations of one option for each family that are looked at
TRIES = 24  # how many candidates are simulated
Bounds = tuple[int, ...]  # where segments begin, and the number of blocks


def periodic(chain: Chain, budget_bytes: int, slowest_ns: float) -> Candidate | None:
    """The fastest candidate of this form that fits the budget and takes at most `slowest_ns`; None if none is found.

    Times and peaks are estimated for all of them; the simulator judges at most TRIES.
    """
    if math.prod(len(f.options) for f in chain.distinct) > MOST_WAYS:
        return None
    ways = _Ways(chain)
    promising = []
    for bounds in _segmentations(chain):
        time_ns, peak_bytes = ways.estimates(bounds)
        wanted = np.flatnonzero((time_ns <= slowest_ns) & (peak_bytes <= budget_bytes))
        promising += [(time_ns[way], peak_bytes[way], int(way), bounds) for way in wanted]
    tries = error = 0
    for _, peak, way, bounds in sorted(promising):
        if peak + error > budget_bytes:
            continue
        found = chain.candidate(ways.operations(way, bounds))
        if found.peak_bytes <= budget_bytes and found.time_ns <= slowest_ns:
            return found
        tries, error = tries + 1, max(error, found.peak_bytes - peak)
        if tries == TRIES:
            break
    return None


def _segmentations(chain: Chain) -> Iterator[Bounds]:
    """Bounds at equal distances, in which every segment but the first and the last begins with the same kind of block.

    Blocks that must not run again are in the last segment.
    """
    blocks = len(chain.families)
    sealed = max((b for b, link in enumerate(chain.links) if link.sealed), default=-1)
    period = _period(chain)
    for length in range(period, blocks // 2 + 1, period):
        for first in range(1, length + 1):
            bounds = (0, *range(first, blocks, length), blocks)
            if sealed < 0 or sealed >= bounds[-2]:
                yield bounds


def _period(chain: Chain) -> int:
    """After how many blocks the kinds repeat."""
    kinds = [id(f) for f in chain.families]

    def repeated(distance: int) -> int:
        return sum(a == b for a, b in zip(kinds, kinds[distance:], strict=False))

    return max(range(1, max(2, len(kinds) // 2)), key=repeated)


class _Ways:
    """All combinations of one option for each family; what they take, as arrays over the combinations."""

    def __init__(self, chain: Chain) -> None:
        places = {id(f): place for place, f in enumerate(chain.distinct)}
        self.place = [places[id(f)] for f in chain.families]  # by block
        self.chosen = np.indices([len(f.options) for f in chain.distinct]).reshape(len(chain.distinct), -1)
        self.output_bytes = [f.piece.output_bytes for f in chain.distinct]
        options = [f.options for f in chain.distinct]
        self.forward_ns = self._each([[o.forward_ns for o in many] for many in options])
        self.backward_ns = self._each([[o.backward_ns for o in many] for many in options])
        self.saved_bytes = self._each([[o.saved_bytes for o in many] for many in options])
        self.peak_bytes = self._each([[max(o.forward_peak_bytes, o.backward_peak_bytes) for o in many] for many in options])

    def _each(self, of_options: list[list[int]]) -> list[np.ndarray]:
        return [np.array(values)[chosen] for values, chosen in zip(of_options, self.chosen, strict=True)]

    def estimates(self, bounds: Bounds) -> tuple[np.ndarray, np.ndarray]:
        """Time (ns) and peak (bytes), but for what surrounds the chain."""
        time_ns = sum(self.forward_ns[p] + self.backward_ns[p] for p in self.place)
        time_ns = time_ns + sum(self.forward_ns[p] for p in self.place[: bounds[-2]])
        peak, inputs = np.zeros_like(self.peak_bytes[0]), 0
        for begin, end in pairwise(bounds):
            kept = np.full_like(peak, inputs)
            for place in self.place[begin:end]:
                peak = np.maximum(peak, kept + self.peak_bytes[place])
                kept += self.saved_bytes[place] + self.output_bytes[place]
            inputs += self.output_bytes[self.place[end - 1]]
        return time_ns, peak

    def operations(self, way: int, bounds: Bounds) -> list[Operation]:
        """Everything forward; then each segment, from the last on, forward again but for the last, and backward."""
        found: list[Operation] = [*map(Forward, range(bounds[-1]))]
        for begin, end in reversed([*pairwise(bounds)]):
            found += map(Forward, range(begin, end)) if end < bounds[-1] else ()
            found += [Backward(b, int(self.chosen[self.place[b], way])) for b in reversed(range(begin, end))]
        return found
