"""Simulated annealing (Kirkpatrick, Gelatt and Vecchi, 1983) over tables of parts: where the search of choose.py ends far above
the plan. That one goes on to what is better only, by one change of all equal layers or of one; this one also goes on to what is
a little worse, by several changes at once.

A table that takes longer by d is gone on with at the chance exp(-d / temperature). The temperature falls to nothing, and the
price of a byte above the limit rises meanwhile, so that it may be left for a while, but not in the end. What is drawn has a
fixed seed, and what ends it is a number of tables, so that it finds the same anywhere.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Generic

from remat_codegen.marked.candidates import Candidate, Rows, V
from remat_codegen.marked.choose import Chooser, Priced
from remat_codegen.marked.moves import OFFERED, OPTIONS, Move, dropping, merging, setting, splitting

WARM = 0.003  # of the step's time: the temperature to begin with
DEARER = 4.0  # times as dear as at first is a byte above the limit in the end
MOST_MOVES = 20  # that are made for each table that is priced: some lead to none, or to one that is known
TOGETHER = (1, 1, 1, 2, 3)  # moves that are made at once
LONGER = 2  # times as many tables as the search may price from one start


def annealed(chooser: Chooser[V], start: Priced[V], seed: int, until: float = math.inf) -> Priced[V]:
    """The best table that comes by from a start, which may be above the limit, or the start. `until` is a moment of
    time.monotonic(); without one, no clock is looked at."""
    chooser.until, tables = until, LONGER * chooser.tables
    chooser.most = chooser.tried + tables
    return chooser.simpler(chooser.within(_Annealing(chooser, seed).run(start, tables), chooser.tried + tables // 4))


class _Annealing(Generic[V]):
    def __init__(self, chooser: Chooser[V], seed: int) -> None:
        self.chooser, self.rng = chooser, random.Random(seed)
        self.groups = [list(group) for group in chooser.candidates.groups()]

    def run(self, start: Priced[V], tables: int) -> Priced[V]:
        """The best of so many tables."""
        chooser, first = self.chooser, self.chooser.tried
        now = best = start
        for _ in range(MOST_MOVES * tables if self.groups else 0):
            done = (chooser.tried - first) / tables
            if done >= 1 or chooser.enough(first + tables):
                break
            price = chooser.a_byte * DEARER**done
            most_ns = now.rank(price)[1] + WARM * chooser.step_ns * (1 - done) * self.rng.expovariate(1)
            found = chooser.price(self._moved(now.rows), slowest_ns=most_ns)
            if found is not None and found.rank(price)[1] <= most_ns:
                now = found
                best = chooser.least([best, now])
        return best

    def _moved(self, rows: Rows[V]) -> Rows[V]:
        for _ in range(self.rng.choice(TOGETHER)):
            rows = self._move(rows)(rows)
        return rows

    def _move(self, rows: Rows[V]) -> Move[V]:
        """Fewer parts, other options, smaller parts or larger ones: of one candidate, or of all of the same code."""
        kind = self.rng.choices((dropping, setting, splitting, merging), (5, 5, 3, 7))[0] if rows else merging
        some = self._some([row.candidate for row in rows]) if kind is not merging else []
        if kind is dropping:
            return dropping(set(some))
        if kind is setting:
            return setting(set(some), *self.rng.choice(OPTIONS))
        within = [inner for outer in some for inner in self.chooser.candidates.largest_within(outer)]
        if within:
            return splitting(some, within, self.rng.choice(OFFERED), self.rng.random() < 1 / 2)
        group = self.rng.choice(self.groups)
        some = group if self.rng.random() < 1 / 2 else [self.rng.choice(group)]
        return merging(some, self.rng.choice(OFFERED), self.rng.random() < 2 / 3)

    def _some(self, candidates: Sequence[Candidate[V]]) -> list[Candidate[V]]:
        one = self.rng.choice(candidates)
        return [c for c in candidates if c.key == one.key] if self.rng.random() < 1 / 2 else [one]
