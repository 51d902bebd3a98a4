"""One kind of block in two ways, every other in one, and every block forward once: for loose budgets.

Where all blocks of a kind forget a little more, or a little less, the step takes that often: a budget between the two is best
met by a few that run in another way. The dynamic program finds such plans as well, and others that are faster by next to
nothing and have more ways to run, which are as many functions in the generated file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from remat_codegen.planners.base.judge import Candidate
from remat_codegen.planners.chain.chain import Chain
from remat_codegen.planners.chain.options import Option
from remat_codegen.planners.chain.rk_rotor import Backward, Forward, Operation
from remat_codegen.planners.chain.ways import MOST_WAYS, ONCE, PRICE, Ways, price

TRIES = 24  # how many candidates are simulated


def twofold(chain: Chain, budget_bytes: int, slowest_ns: float, step_ns: float, dearest: float) -> Candidate | None:
    """The candidate of this form with the lowest price, below `dearest`, that fits and takes at most `slowest_ns`; None if none
    is found. PRICE is a share of `step_ns`."""
    if math.prod(len(f.options) for f in chain.distinct) > MOST_WAYS:
        return None
    search = _Search(chain, budget_bytes)
    tried = 0
    for way, place, option, count in search.cheapest(slowest_ns, step_ns, dearest):
        for more in range(3):  # peaks are estimates
            operations = search.operations(way, place, option, count + more)
            if tried == TRIES:
                return None
            if operations is None:
                break
            tried += 1
            found = chain.candidate(operations)
            cheap = price(chain, operations, found.time_ns, step_ns) < dearest and found.time_ns <= slowest_ns
            if cheap and found.peak_bytes <= budget_bytes:
                return found
            if not cheap:
                break
    return None


class _Search:
    def __init__(self, chain: Chain, budget_bytes: int) -> None:
        self.chain, self.ways, self.budget_bytes = chain, Ways(chain), budget_bytes
        self.count = Counter(self.ways.place)
        self.time_ns, self.peak_bytes = self.ways.estimates((0, len(chain.families)))
        middle = int(np.argsort(self.peak_bytes)[len(self.peak_bytes) // 2])
        known = chain.candidate(self.ways.operations(middle, (0, len(chain.families))))
        self.peak_bytes = self.peak_bytes + (known.peak_bytes - self.peak_bytes[middle])  # what surrounds the chain
        self.time_ns = self.time_ns + (known.time_ns - self.time_ns[middle])

    def cheapest(self, slowest_ns: float, step_ns: float, dearest: float) -> Iterator[tuple[int, int, int, int]]:
        """By price: a way for every family, the family with a second one, that option, and how many blocks run so."""
        length = self.ways.length((0, len(self.chain.families)))
        found = []
        for place, blocks in self.count.items():
            for option, other in enumerate(self.chain.distinct[place].options if blocks > 1 else ()):
                count, time_ns = self._blended(place, other)
                prices = time_ns + PRICE * step_ns * (length + self.ways.lengths[ONCE][place][option])
                good = (count >= 1) & (count < blocks) & (time_ns <= slowest_ns) & (prices < dearest)
                found += [(prices[way], int(way), place, option, int(count[way])) for way in np.flatnonzero(good)]
        yield from (row[1:] for row in sorted(found))

    def _blended(self, place: int, other: Option) -> tuple[np.ndarray, np.ndarray]:
        """For each way: how many blocks of a family have to run in another one to fit the budget, and what all take then."""
        ways = self.ways
        frees = ways.saved_bytes[place] - other.saved_bytes
        excess = self.peak_bytes - self.budget_bytes
        count = np.where((frees > 0) & (excess > 0), -(-excess // np.maximum(frees, 1)), 0)
        slower = other.forward_ns + other.backward_ns - ways.forward_ns[place] - ways.backward_ns[place]
        return count, self.time_ns + count * slower

    def operations(self, way: int, place: int, option: int, count: int) -> list[Operation] | None:
        """The last blocks of a family in another way; None if it has not that many."""
        blocks = range(len(self.chain.families))
        others = [b for b in blocks if self.ways.place[b] == place]
        if count >= len(others):
            return None
        chosen = {b: option if b in others[-count:] else int(self.ways.chosen[self.ways.place[b], way]) for b in blocks}
        return [*map(Forward, blocks), *(Backward(b, chosen[b]) for b in reversed(blocks))]
