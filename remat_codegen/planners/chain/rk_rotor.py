"""rk-Rotor: which option each block of a chain takes, and which blocks run forward again (Rockmate, section 3.4 and appendix
C).

C(s, t, m) is the least time to run blocks s..t forward and backward in m slots of memory. Outside m are block s's input and
what is kept for others; inside are the gradients that enter at t, from the start. Either s runs forward once, with an option
(C1), or s..r-1 run forward keeping only r's input, which is kept while r..t are solved, and then s..r-1 are solved (C2).

Sizes round up to slots, so a plan never needs more than its slots. A table is computed for all m at once, as a numpy row.
Sub-chains of equal families have equal tables, so a chain of repeated blocks costs about L rows instead of L^2 / 2. A row
costs L + K vector operations. Ties: the earlier choice, options before checkpoints. Oracle: brute force in `tests/graphs.py`.

Sub-chains that reach the last block run for the first time (all their forward nodes); all others run again, where what nobody
needs is left out. A `sealed` block holds nodes that must not run again: it is never passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remat_codegen.planners.base.deadline import check
from remat_codegen.planners.chain.options import Family

NEVER = np.inf


@dataclass(frozen=True, slots=True)
class Link:
    """A block of the chain."""

    family: Family
    sealed: bool = False


@dataclass(frozen=True, slots=True)
class Forward:
    """Run a block forward; what is kept follows from what is read later."""

    block: int


@dataclass(frozen=True, slots=True)
class Backward:
    """Run a block backward as option number `option` of its family says."""

    block: int
    option: int


Operation = Forward | Backward


@dataclass(frozen=True, slots=True)
class _Row:
    """C(s, t, .): the time for each number of slots, and the choice (an option's number, or -(r - s) for a checkpoint at r)."""

    time: np.ndarray
    choice: np.ndarray


class Table:
    """The solved dynamic program of a chain, for every number of slots of `unit_bytes` from 0 to `slots`."""

    def __init__(self, links: Sequence[Link], unit_bytes: int, slots: int) -> None:
        self.links, self.unit, self.slots = tuple(links), unit_bytes, slots
        self.last = len(self.links) - 1
        numbers: dict[int, int] = {}
        self.classes = [(numbers.setdefault(id(k.family), len(numbers)), k.sealed) for k in self.links]
        self.names: dict[tuple[int, int], int] = {}
        self.rows: list[_Row] = []
        self._solve()

    @property
    def time_ns(self) -> np.ndarray:
        """For each number of slots, the least time of the whole chain; infinite where nothing fits."""
        return self._row(0, self.last).time

    def distinct(self) -> list[int]:
        """The numbers of slots at which the chain gets faster, ascending: the only ones worth looking at."""
        time = self.time_ns
        finite = np.flatnonzero(np.isfinite(time))
        before = np.concatenate(([NEVER], time[finite][:-1]))
        return [int(m) for m in finite[time[finite] < before]] if len(finite) else []

    def operations(self, slots: int) -> list[Operation]:
        """What to run within a number of slots, in order. It must be one at which `time_ns` is finite."""
        found: list[Operation] = []
        pending: list[tuple[int, int, int] | Operation] = [(0, self.last, slots)]
        while pending:
            task = pending.pop()
            if isinstance(task, Forward | Backward):
                found.append(task)
                continue
            s, t, m = task
            choice = int(self._row(s, t).choice[m])
            if choice >= 0:
                inside = [(s + 1, t, m - self._kept(s, choice))] if s < t else []
                pending.extend([Backward(s, choice), *inside, Forward(s)])
            else:
                r = s - choice
                forward = [Forward(k) for k in reversed(range(s, r))]
                pending.extend([(s, r - 1, m), (r, t, m - self._slots(self._output(r - 1))), *forward])
        return found

    def _row(self, s: int, t: int) -> _Row:
        return self.rows[self.names[s, t]]

    def _slots(self, nbytes: int) -> int:
        return -(-nbytes // self.unit)

    def _output(self, block: int) -> int:
        return self.links[block].family.piece.output_bytes

    def _kept(self, block: int, option: int) -> int:
        return self._slots(self.links[block].family.options[option].saved_bytes + self._output(block))

    def _solve(self) -> None:
        """All sub-chains, short ones first; equal ones share a row."""
        known: dict[object, int] = {}
        for length in range(1, len(self.links) + 1):
            check()
            for s in range(len(self.links) - length + 1):
                t = s + length - 1
                key: object = (self.classes[s], t == self.last) if s == t else (self.classes[s], self.names[s + 1, t], None)
                if key not in known:
                    known[key] = len(self.rows)
                    self.rows.append(self._compute(s, t))
                self.names[s, t] = known[key]

    def _compute(self, s: int, t: int) -> _Row:
        row = _Row(np.full(self.slots + 1, NEVER), np.zeros(self.slots + 1, dtype=np.int32))
        if t == self.last or not any(k.sealed for k in self.links[s : t + 1]):
            entering = self.links[t].family.piece.entering_bytes
            self._run_once(row, s, t, entering)
            self._checkpoint(row, s, t, entering)
        return row

    def _run_once(self, row: _Row, s: int, t: int, entering: int) -> None:
        """C1: block s with each of its options."""
        first = t == self.last
        for number, option in enumerate(self.links[s].family.options):
            forward_ns = option.forward_ns if first else option.alone_ns if s == t else option.again_ns
            least = self._slots(max(option.forward_peak_bytes + entering, option.backward_peak_bytes))
            kept = self._kept(s, number) if s < t else 0
            inside = self._row(s + 1, t).time if s < t else np.zeros(self.slots + 1)
            _improve(row, number, max(least, kept), kept, inside, forward_ns + option.backward_ns)

    def _checkpoint(self, row: _Row, s: int, t: int, entering: int) -> None:
        """C2: keep only the input of block r, for each r."""
        least = passed_ns = 0
        for r in range(s + 1, t + 1):
            family = self.links[r - 1].family
            if self.links[r - 1].sealed:
                return
            held = self._output(r - 2) if r - 1 > s else 0
            least = max(least, self._slots(held + family.pass_peak_bytes + entering))
            passed_ns += family.pass_ns if t == self.last else family.pass_again_ns
            kept = self._slots(self._output(r - 1))
            _improve(row, s - r, max(least, kept), kept, self._row(r, t).time, passed_ns, self._row(s, r - 1).time)


def _improve(
    row: _Row, choice: int, least: int, kept: int, inside: np.ndarray, ns: int, then: np.ndarray | None = None
) -> None:
    """Takes a choice wherever it is faster: from `least` slots on, it costs ns + inside[m - kept] + then[m]."""
    size = len(row.time)
    if least >= size:
        return
    time = inside[least - kept : size - kept] + float(ns)
    if then is not None:
        time = time + then[least:]
    better = time < row.time[least:]
    row.time[least:][better] = time[better]
    row.choice[least:][better] = choice
