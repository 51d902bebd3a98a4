"""What could be a part, as data: a candidate is a call or an expression of the forward pass that holds whole nodes of the
graph, a row is a candidate with its options."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

from remat_codegen.marked.demand import Again, Keeps
from remat_codegen.trace.places import Span, is_around

V = TypeVar("V")
Place = tuple[Hashable, Span]  # a text, and where in it
Mark = tuple[Place, tuple[Span, ...]]  # where it stands, and what of that is handed in


@dataclass(frozen=True, slots=True)
class Candidate(Generic[V]):
    """The nodes `first..last`, as one part. `vertices` are the calls and expressions that have to run again for that: several
    where one node comes from several statements, each of which is then given what the one before it made.

    Candidates of equal `key` are the same code: another layer's, or another call's. `marks` are those that the text needs:
    where each stands, and what is handed in there; none for the call of a module. `given` are data that they are given in lists
    and objects, whether they are read or not. `copies` are calls of functions that stay where they are: the text has to have
    copies of these. Of several vertices, the first reads `begin`, and `handed_bytes` are those of what the ones before the last
    give to others, and is no data node; what several of them read is `often`, once for each but the first. What is
    `unkept` gives more than others read, or one of its vertices changes in place what the model has made. `unread` are
    storages that are given and that no node reads, each with its bytes. Where it `forks`, one of the vertices gives something
    to several others.
    """

    first: int
    last: int
    vertices: tuple[V, ...]
    key: Hashable
    marks: tuple[Mark, ...] = ()
    given: tuple[int, ...] = ()
    copies: frozenset[Hashable] = frozenset()
    handed_bytes: int = 0
    begin: frozenset[int] = frozenset()
    often: tuple[int, ...] = ()
    unkept: bool = False
    unread: tuple[tuple[int, int], ...] = ()
    forks: bool = False

    def __hash__(self) -> int:
        return hash((self.first, self.last))  # of one search, no others are equal there

    def holds(self, other: Candidate[V]) -> bool:
        """Whether another candidate lies within this one."""
        return self.first <= other.first and other.last <= self.last and self != other

    def nests_with(self, other: Candidate[V]) -> bool:
        """Whether both can be parts by their nodes: beside or within each other."""
        apart = self.last < other.first or other.last < self.first
        return apart or self == other or self.holds(other) or other.holds(self)

    def __len__(self) -> int:
        return self.last + 1 - self.first


@lru_cache(maxsize=1 << 12)
def go_together(marks: frozenset[Mark]) -> bool:
    """Whether one text can have some marks, of which each holds what it would hold alone: no expression is marked in two ways,
    and none hands in what another one within it is to hold."""
    if len({place for place, _ in marks}) < len(marks):
        return False
    handing = [mark for mark in marks if mark[1]]
    return not any(_takes_from(outer, inner) for outer in handing for inner in marks)


def _takes_from(outer: Mark, inner: Mark) -> bool:
    """Whether a mark hands in something that another one within it would hold."""
    (text, around), handed = outer
    (other, within), own = inner
    if text != other or around == within or not is_around(around, within):
        return False
    held = (span for span in handed if span != within and is_around(within, span))
    return any(not any(is_around(one, span) for one in own) for span in held)


@dataclass(frozen=True, slots=True)
class Row(Generic[V]):
    """A candidate that is a part."""

    candidate: Candidate[V]
    keeps: Keeps = Keeps.NOTHING
    again: Again = Again.ONCE
    late: bool = False


Rows = tuple[Row[V], ...]


class Candidates(Generic[V]):
    """All candidates of a graph. Of those with the same nodes, the one that needs the fewest copies; of these, one that has its
    expressions marked as most others can have them, too, since one text has one mark for each; then the fewest marks."""

    def __init__(self, found: Iterable[Candidate[V]]) -> None:
        ways: dict[tuple[int, int], list[Candidate[V]]] = {}
        for candidate in found:
            ways.setdefault((candidate.first, candidate.last), []).append(candidate)
        fewest = [[c for c in same if _needs(c) == min(map(_needs, same))] for same in ways.values()]
        several = _several(fewest)
        best = (min(same, key=lambda c: (len(c.copies), *_alone(c, several), len(c.marks))) for same in ways.values())
        self.all = sorted(best, key=lambda c: (c.first, -c.last))
        self.by_key: dict[Hashable, list[Candidate[V]]] = {}
        for candidate in self.all:
            self.by_key.setdefault(candidate.key, []).append(candidate)

    def around(self, node: int, vertices: float = math.inf) -> list[Candidate[V]]:
        """The candidates that hold a node and have so many vertices at most, the smallest first."""
        return sorted((c for c in self.all if c.first <= node <= c.last and len(c.vertices) <= vertices), key=len)

    def largest_within(self, outer: Candidate[V]) -> list[Candidate[V]]:
        """The candidates within one that no other one within it holds, apart from each other."""
        found: list[Candidate[V]] = []
        for candidate in self.all:  # those that begin first, the longest first
            if outer.holds(candidate) and (not found or candidate.first > found[-1].last):
                found.append(candidate)
        return found

    def groups(self, least: int = 1) -> list[list[Candidate[V]]]:
        """Candidates of the same code, those with the most nodes first; of at least so many nodes each."""
        found = [g for g in self.by_key.values() if max(map(len, g)) >= least]
        return sorted(found, key=lambda g: (-max(map(len, g)), g[0].first))


def _needs(candidate: Candidate[V]) -> tuple[int, int]:
    """How much of the text a candidate changes."""
    return len(candidate.copies), len(candidate.marks)


def _several(ways: Sequence[Sequence[Candidate[V]]]) -> dict[Place, Counter[tuple[Span, ...]]]:
    """The expressions that the first of some ways would mark in several, with how many nodes could be parts by each."""
    first: dict[Place, set[tuple[Span, ...]]] = {}
    for place, how in (mark for same in ways for mark in same[0].marks):
        first.setdefault(place, set()).add(how)
    counted = {place: Counter[tuple[Span, ...]]() for place, found in first.items() if len(found) > 1}
    for place, how in (mark for same in ways for mark in {m: None for c in same for m in c.marks}):
        if place in counted:
            counted[place][how] += 1
    return counted


def _alone(candidate: Candidate[V], several: Mapping[Place, Counter[tuple[Span, ...]]]) -> tuple[int, int]:
    """How many fewer others have such expressions marked as it needs them than in the usual way; and, so that less comes first
    where that is the same, how much it does not hand in there: others can have it who take less into it."""
    marks = [(several[place], how) for place, how in candidate.marks if place in several]
    return sum(max(counted.values()) - counted[how] for counted, how in marks), -sum(len(how) for _, how in marks)


def nested(candidates: Sequence[Candidate[V]]) -> list[tuple[Candidate[V], int | None]]:
    """Candidates in the order of parts, each with the index of the one that it stands in. Raises ValueError where
    two overlap."""
    ordered = sorted(candidates, key=lambda c: (c.first, -c.last))
    found: list[tuple[Candidate[V], int | None]] = []
    open_: list[int] = []
    for index, candidate in enumerate(ordered):
        while open_ and ordered[open_[-1]].last < candidate.first:
            open_.pop()
        if open_ and ordered[open_[-1]].last < candidate.last:
            raise ValueError("two parts overlap")
        found.append((candidate, open_[-1] if open_ else None))
        open_.append(index)
    return found
