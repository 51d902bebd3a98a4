"""Segments of equal length, each run forward once more before its way back (Chen et al., 2016), every kind of block in one way.

In a tight budget, rk-Rotor lets blocks run again in ever new patterns, which are as many functions in the generated file. In a
chain of repetitions, checkpoints at equal distances cost hardly more, and the schedule is a loop.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from remat_codegen.planners.base.judge import Candidate
from remat_codegen.planners.chain.chain import Chain
from remat_codegen.planners.chain.ways import MOST_WAYS, PRICE, Bounds, Ways, price, runs_again

TRIES = 60  # how many candidates are simulated
MOST_FIRST = 12  # blocks of the first segment that are tried


def periodic(chain: Chain, budget_bytes: int, slowest_ns: float, step_ns: float) -> tuple[float, Candidate] | None:
    """The candidate of this form with the lowest price that fits the budget and takes at most `slowest_ns`, and its price; None
    if none is found. PRICE is a share of `step_ns`.

    Times and peaks are estimated for all of them; the simulator judges at most TRIES.
    """
    if math.prod(len(f.options) for f in chain.distinct) > MOST_WAYS:
        return None
    ways, promising = Ways(chain), []
    for bounds in dict.fromkeys(_segmentations(chain)):
        time_ns, peak_bytes = ways.estimates(bounds)
        wanted = np.flatnonzero((time_ns <= slowest_ns) & (peak_bytes <= budget_bytes))
        prices = time_ns + PRICE * step_ns * ways.length(bounds)
        promising.append(_by_price(bounds, wanted, prices, peak_bytes))
    errors: dict[Bounds, int] = {}  # of the estimated peaks: much the same for all ways, less so for all bounds
    tries = 0
    for _, peak, way, bounds in heapq.merge(*promising):
        if peak + errors.get(bounds, min(errors.values(), default=0)) > budget_bytes:
            continue
        operations = ways.operations(way, bounds)
        found = chain.candidate(operations)
        if found.peak_bytes <= budget_bytes and found.time_ns <= slowest_ns:
            return price(chain, operations, found.time_ns, step_ns), found
        errors[bounds] = max(errors.get(bounds, 0), found.peak_bytes - peak)
        tries += 1
        if tries == TRIES:
            break
    return None


def _by_price(
    bounds: Bounds, wanted: np.ndarray, prices: np.ndarray, peak_bytes: np.ndarray
) -> Iterator[tuple[float, int, int, Bounds]]:
    """Those ways that are wanted: their prices, ascending, their estimated peaks in bytes, and what they are."""
    for way in wanted[np.argsort(prices[wanted], kind="stable")]:
        yield prices[way], peak_bytes[way], int(way), bounds


def _segmentations(chain: Chain) -> Iterator[Bounds]:
    """Bounds at equal distances, but for those that would run a block again that must not.

    The first segment may be shorter, and the last one, which does not run again, longer. What is no repetition may stand before
    them as a segment of its own.
    """
    blocks = len(chain.families)
    sealed = [b for b, link in enumerate(chain.links) if link.sealed]
    period = _period(chain)
    head = 1 if chain.families.count(chain.families[0]) == 1 else 0
    for length in range(period, blocks // 2 + 1, period):
        for first in range(1, min(length, MOST_FIRST) + 1):
            starts = [*range(first + head, blocks, length)]
            for segments in range(1, len(starts) + 1):
                bounds = 0, *starts[:segments], blocks
                for found in dict.fromkeys([bounds, (0, *range(1, head + 1), *bounds[1:])]):
                    again = [p for p in pairwise(found) if runs_again(*p, found)]
                    if not any(begin <= b < end for b in sealed for begin, end in again):
                        yield found


def _period(chain: Chain) -> int:
    """After how many blocks the kinds repeat."""
    kinds = [id(f) for f in chain.families]

    def repeated(distance: int) -> int:
        return sum(a == b for a, b in zip(kinds, kinds[distance:], strict=False))

    return max(range(1, max(2, len(kinds) // 2)), key=repeated)
