"""An update leaves a text and its table as they were, as far as that costs next to nothing: a file that is made again because
of another budget, other costs or one changed module should differ in few rows, and in no mark.

A table is looked for among those that need no other marks than the text has. If that takes no more than `STEADY` longer than
the plan, or than the best table with whatever marks, it is taken.

Where a new table and the one before differ, the nodes that their rows are within fall into stretches. What was said before is
put back everywhere, else in all stretches that differ in the same way (those of equal layers), else in single ones: wherever
the limit still holds, and the step takes no more than `STEADY` longer than by the new table.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from remat_codegen.marked.candidates import Candidate, Candidates, Mark, Row, Rows, V, go_together
from remat_codegen.marked.choose import Priced
from remat_codegen.marked.layers import said_of

STEADY = 0.003  # of the step's time: what it may take that a table stays as it was


@dataclass(frozen=True, slots=True)
class Before(Generic[V]):
    """What a file said that is made again, as far as the model still has it: the rows of its tables, and the marks in its
    text. `beside` are marks that other tables of the new text need: no expression can be marked in two ways. `never` are the
    keys of candidates that turned out to be no parts."""

    tables: tuple[Rows[V], ...] = ()
    marks: frozenset[Mark] = frozenset()
    beside: frozenset[Mark] = frozenset()
    never: frozenset[Hashable] = frozenset()

    def rows(self, number: int) -> Rows[V]:
        """Those of one table; none where it had fewer."""
        rows = self.tables[number] if number < len(self.tables) else ()
        return tuple(row for row in rows if self.agrees(row.candidate))

    def agrees(self, candidate: Candidate[V]) -> bool:
        """Whether a candidate may be a part, and goes with the marks of other tables."""
        return candidate.key not in self.never and go_together(self.beside.union(candidate.marks))

    def possible(self, candidates: Iterable[Candidate[V]]) -> Candidates[V]:
        """What can be a part with the marks that there are."""
        own = (row.candidate for rows in self.tables for row in rows)
        return Candidates(c for c in (*own, *candidates) if self.marks.issuperset(c.marks) and self.agrees(c))


ANEW: Before[Any] = Before()  # for a file that is not there yet


@dataclass(frozen=True, slots=True)
class Stretch(Generic[V]):
    """Rows of two tables whose nodes overlap with no others'."""

    now: Rows[V]
    before: Rows[V]

    @property
    def kind(self) -> Hashable:
        """Equal where two tables differ in the same way."""
        return frozenset(map(said_of, self.now)), frozenset(map(said_of, self.before))


def steadied(best: Priced[V], before: Rows[V], price: Callable[[Rows[V]], Priced[V] | None]) -> Priced[V]:
    """Rows that differ less from those before than the best do, and are as good but for `STEADY`. `price` gives None where
    rows do not go together."""
    steady, slowest_ns = best, (1 + STEADY) * best.time_ns
    for grouped in (_all, _by_kind, _singly):
        for group in grouped(stretches(steady.rows, before)):
            found = price(_put_back(steady.rows, group))
            if found is not None and found.over_bytes <= best.over_bytes and found.time_ns <= slowest_ns:
                steady = found
    return steady


def stretches(now: Rows[V], before: Rows[V]) -> list[Stretch[V]]:
    """Where two tables differ, in the order of nodes."""
    ordered = sorted({*now, *before}, key=lambda row: (row.candidate.first, -row.candidate.last))
    groups, last = list[list[Row[V]]](), -1
    for row in ordered:
        if row.candidate.first > last:
            groups.append([])
        groups[-1].append(row)
        last = max(last, row.candidate.last)
    ours, theirs = set(now), set(before)
    found = [Stretch(tuple(r for r in g if r in ours), tuple(r for r in g if r in theirs)) for g in groups]
    return [stretch for stretch in found if stretch.now != stretch.before]


def _put_back(rows: Rows[V], group: Iterable[Stretch[V]]) -> Rows[V]:
    stretches_ = [*group]
    gone = {row for stretch in stretches_ for row in stretch.now}
    return (*(row for row in rows if row not in gone), *(row for stretch in stretches_ for row in stretch.before))


def _all(found: Sequence[Stretch[V]]) -> Iterator[Sequence[Stretch[V]]]:
    if found:
        yield found


def _by_kind(found: Sequence[Stretch[V]]) -> Iterator[Sequence[Stretch[V]]]:
    """Those that are the most first."""
    kinds: dict[Hashable, list[Stretch[V]]] = {}
    for stretch in found:
        kinds.setdefault(stretch.kind, []).append(stretch)
    yield from sorted(kinds.values(), key=lambda group: -len(group))


def _singly(found: Sequence[Stretch[V]]) -> Iterator[Sequence[Stretch[V]]]:
    yield from ([stretch] for stretch in found)
