"""Moves on a `Ledger`: fit a limit by splits, spend room by taking runs out, and a search that does both around random places.

    swap    a repeat is taken out though there is no room to hold what it writes, and cheaper things are dropped instead
    shake   a few things are dropped near each other, and the room is spent on runs that take longer
    later   a repeat moves to the stage of its first reader

A trial is kept if the step takes hardly longer and keeps to the limit, else the log undoes it: ejection chains and large
neighbourhood search on the orders of `hierarchy`, with neither an order nor its memory counted anew. Deterministic: random
choices are seeded, and the work is counted by the ledger.
"""

from __future__ import annotations

import random
from bisect import bisect_left

import numpy as np

from remat_codegen.planners.base.deadline import check
from remat_codegen.planners.search.ledger import Ledger

MOST_FIXES = 24  # splits that one trial may need to fit again
NEAR = 40  # positions around a change in which room is spent
SPENT = 24  # runs that a trial tries to take out
WARMTH = 0.01  # how much slower a trial may leave the step for a while, in parts of its overhead
SLACK = 0.5  # of what taking a run out wins: by so much the step may take longer until what is then free is spent
LOOKED_AT = 3  # of the most promising gaps, whose whole cost is looked at
STUCK = 400  # more splits than this many times without getting below: the limit is given up


def fit(ledger: Ledger, limit: int, rounds: int) -> bool:
    """Splits where memory is highest until it keeps to the limit; whether it does."""
    for _ in range(rounds):
        check()
        if ledger.peak <= limit:
            return True
        if not _relieve(ledger, limit, None):
            return False
    return ledger.peak <= limit


def _relieve(ledger: Ledger, limit: int, rng: random.Random | None) -> bool:
    """One split at the highest position; whether one was found."""
    row = ledger.memory[: len(ledger.keys)]
    ledger.work += 4 + len(row) // 256
    worst = int(row.argmax())
    key, need = ledger.keys[worst], int(row[worst]) - limit
    over = (row > limit).nonzero()[0]
    first, last = ledger.keys[int(over[0])], ledger.keys[int(over[-1])]
    rows = _promising(ledger, key, need, first, last, rng)
    if rng is not None:
        return any(_split(ledger, int(r), limit) for r in rows[:LOOKED_AT])
    best: tuple[float, int] | None = None
    for gap in rows[:LOOKED_AT]:
        mark, before, peak = len(ledger.log), ledger.time, int(row[worst])
        if ledger.split(int(gap), limit):
            position = bisect_left(ledger.keys, key)
            freed = min(need, peak - int(ledger.memory[position]))
            rate = freed / (ledger.time - before + 1)
            if freed > 0 and (best is None or rate > best[0]):
                best = rate, ledger.log[mark][1]
        ledger.undo(mark)
    return best is not None and ledger._run_at(best[1], limit)


def _split(ledger: Ledger, row: int, limit: int) -> bool:
    mark = len(ledger.log)
    if ledger.split(row, limit):
        return True
    ledger.undo(mark)
    return False


def _promising(ledger: Ledger, key: int, need: int, first: int, last: int, rng: random.Random | None) -> np.ndarray:
    """The gaps over a key, those first that free most of what is needed for the time of rebuilding."""
    rows = ledger.gaps_over(key)
    if not len(rows):
        return rows
    covers = 1.0 + (ledger.gap_start[rows] < first) + (ledger.gap_end[rows] > last)
    score = np.minimum(ledger.gap_size[rows], need) * covers / ledger.gap_price[rows]
    if rng is not None:
        score = score * np.exp(ledger.noise.normal(0.0, 0.7, len(score)))
    ledger.work += len(rows) // 8
    return rows[_largest(score, 2 * LOOKED_AT)]


def _largest(score: np.ndarray, count: int) -> np.ndarray:
    """Where the largest scores stand, the largest first, of equal ones the first. So few are wanted that not all are sorted."""
    if len(score) <= count:
        return (-score).argsort(kind="stable")
    least = np.partition(score, len(score) - count)[len(score) - count]
    found = (score >= least).nonzero()[0]
    return found[(-score[found]).argsort(kind="stable")[:count]]


def spend(ledger: Ledger, limit: int) -> None:
    """Takes repeats out while there is room, the most time for the bytes first."""
    changed = True
    while changed:
        check()
        changed = False
        ranked = sorted((-_rate(ledger, key), key) for key in ledger.repeats())
        for _, key in ranked:
            if _is_there(ledger, key) and ledger.fits_without(key, limit):
                mark = len(ledger.log)
                ledger.take_out(key)
                if ledger.peak > limit:
                    ledger.undo(mark)
                else:
                    changed = True


def _is_there(ledger: Ledger, key: int) -> bool:
    index = bisect_left(ledger.keys, key)
    return index < len(ledger.keys) and ledger.keys[index] == key


def _rate(ledger: Ledger, key: int) -> float:
    """The time of a repeat for the bytes and positions over which its results would have to be held."""
    node = ledger.node(key)
    p = bisect_left(ledger.keys, key)
    price = 1.0
    for data in ledger.problem.writes[node]:
        if ledger.read_after(data, key) is not None:
            price += ledger.problem.size[data] * (p - ledger.position(ledger.touched_before(data, key)))
    ledger.work += 4
    return ledger.problem.time[node] / price


class Search:
    """Trials on a ledger that keeps to a limit: `run` until some work is done."""

    def __init__(self, ledger: Ledger, seed: int) -> None:
        self.ledger, self.rng = ledger, random.Random(seed)
        ledger.noise = np.random.default_rng(seed)
        self.tried = [0, 0, 0]
        self.kept = [0, 0, 0]

    def run(self, limit: int, work: int, fastest_ns: int = 0, warmth: float = WARMTH) -> None:
        """Trials until the ledger's work has grown by so much, or there is nothing to gain; leaves the fastest order that came
        by. Nothing faster than `fastest_ns` is taken, and what is slower by `warmth` only for a while."""
        ledger, last = self.ledger, self.ledger.work + work
        fastest_ns = max(fastest_ns, ledger.problem.plain_ns)
        best, best_ns, first = ledger.repeats(), ledger.time, ledger.work
        while ledger.work < last and ledger.time > fastest_ns:
            check()
            ledger.log.clear()
            before = ledger.time
            kind = self.rng.choices((0, 1, 2), (6, 3, 1))[0]
            done = (self._swap, self._shake, self._later)[kind](limit, before)
            self.tried[kind] += 1
            ledger.work += 8 + len(ledger.keys) // 64
            slower = warmth * (1 - (ledger.work - first) / work) * self.rng.random() ** 3 * (best_ns - ledger.problem.plain_ns)
            if done and fastest_ns <= ledger.time <= before + slower and ledger.peak <= limit:
                self.kept[kind] += ledger.time < before
                if ledger.time < best_ns:
                    best, best_ns = ledger.repeats(), ledger.time
            else:
                ledger.undo(0)
        if ledger.time > best_ns:
            ledger.reset(best)

    def _repeat(self) -> int | None:
        """A repeat: of three drawn, the one that takes the longest."""
        keys, loss = self.ledger.keys, self.ledger.problem.loss
        if len(keys) <= loss + 1:
            return None
        drawn = [keys[self.rng.randrange(loss + 1, len(keys))] for _ in range(8)]
        again = [k for k in drawn if self.ledger.repeated(k)][:3]
        return max(again, key=lambda k: self.ledger.problem.time[self.ledger.node(k)], default=None)

    def _swap(self, limit: int, before: int) -> bool:
        ledger, key = self.ledger, self._repeat()
        if key is None:
            return False
        ledger.take_out(key)
        most = before + (before - ledger.time) * SLACK
        for _ in range(MOST_FIXES):
            if ledger.peak <= limit:
                self._spend_near(self._touched(key), limit)
                return True
            if not _relieve(ledger, limit, self.rng) or ledger.time > most:
                return False
        return False

    def _shake(self, limit: int, before: int) -> bool:
        ledger, rng = self.ledger, self.rng
        ledger.gaps()
        rows = (ledger.gap_end[: ledger.used] >= 0).nonzero()[0]
        if not len(rows):
            return False
        ledger.work += len(rows) // 64
        centre = int(ledger.gap_end[int(rows[rng.randrange(len(rows))])])
        width = rng.choice((1, 3, 10, 30)) * ledger.stride
        near = rows[np.abs(ledger.gap_end[rows] - centre) <= width].tolist()
        for row in rng.sample(near, min(len(near), rng.choice((1, 1, 2, 3)))):
            ledger.gaps()
            if ledger.gap_end[row] >= 0:
                _split(ledger, row, limit)
        for _ in range(MOST_FIXES // 4):
            if ledger.peak <= limit:
                break
            if not _relieve(ledger, limit, rng):
                return False
        if ledger.peak > limit or not ledger.log:
            return False
        self._spend_near(self._touched(centre), limit)
        return True

    def _touched(self, key: int) -> tuple[int, int]:
        """The first and last key of what the trial changed."""
        keys = [key, *(k for _, k in self.ledger.log)]
        return min(keys), max(keys)

    def _spend_near(self, span: tuple[int, int], limit: int) -> None:
        ledger = self.ledger
        fresh = {k for added, k in ledger.log if added}
        low = max(ledger.problem.loss + 1, bisect_left(ledger.keys, span[0]) - NEAR)
        high = min(len(ledger.keys), bisect_left(ledger.keys, span[1]) + NEAR)
        near = [k for k in ledger.keys[low:high] if ledger.repeated(k) and k not in fresh]
        ledger.work += (high - low) // 8
        if len(near) > SPENT:
            near = self.rng.sample(near, SPENT)
        near.sort(key=lambda k: -ledger.problem.time[ledger.node(k)] * self.rng.random())
        for key in near:
            if _is_there(ledger, key) and ledger.fits_without(key, limit):
                ledger.take_out(key)

    def _later(self, limit: int, before: int) -> bool:
        ledger, key = self.ledger, self._repeat()
        if key is None:
            return False
        node = ledger.node(key)
        reads = [r for d in ledger.problem.writes[node] if (r := ledger.read_after(d, key)) is not None]
        if not reads:
            return False
        later = ledger.stage(min(reads)) * ledger.stride + node
        if later <= key:
            return False
        ledger.remove(key)
        return ledger._run_at(later, limit)
