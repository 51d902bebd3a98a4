"""What can be done to the rows of a table: parts made of several, several of one, other options, none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from remat_codegen.marked.candidates import Candidate, Row, Rows, V, go_together
from remat_codegen.marked.demand import Again, Keeps

OFFERED = (Keeps.RESULT, Keeps.NOTHING)  # not SAVED: nested, such parts were measured up to 4 % above the simulation
OPTIONS = [  # of a row: what it keeps, how often it is rebuilt, whether it is kept until it is read
    *((Keeps.RESULT, again, False) for again in (Again.ONCE, Again.TWICE)),
    *((Keeps.NOTHING, again, False) for again in Again),
    *((Keeps.NOTHING, again, True) for again in (Again.ONCE, Again.TWICE, Again.THRICE)),
]

Move = Callable[[Rows[V]], Rows[V]]


def merging(group: Sequence[Candidate[V]], keeps: Keeps, inner: bool) -> Move[V]:
    """Parts of these candidates for those within them; `inner` leaves the ones there that are rebuilt more than once."""

    def change(rows: Rows[V]) -> Rows[V]:
        stay = tuple(
            r
            for r in rows
            if r.candidate not in group
            and (not any(c.holds(r.candidate) for c in group) or (inner and r.again is not Again.ONCE))
        )
        left = tuple(replace(r, again=Again.ONCE) if any(c.holds(r.candidate) for c in group) else r for r in stay)
        return (*left, *(Row(c, keeps) for c in group))

    return change


def held(group: Iterable[Candidate[V]], rows: Rows[V]) -> list[tuple[Candidate[V], Rows[V]]]:
    """The rows within each of these candidates, itself among them."""
    spans = [(row.candidate.first, row.candidate.last, row) for row in rows]
    return [(c, tuple(row for first, last, row in spans if c.first <= first and last <= c.last)) for c in group]


def joining(group: Sequence[Candidate[V]]) -> Move[V]:
    """One part for those within each of these candidates that have the same options, where these are several; or where one is
    marked otherwise, as one text has one mark for each expression."""

    def change(rows: Rows[V]) -> Rows[V]:
        for candidate, within in held(group, rows):
            options = {(r.keeps, r.again, r.late) for r in within}
            marks = frozenset(mark for r in within for mark in r.candidate.marks)
            several = len(within) > 1 or not go_together(marks.union(candidate.marks))
            if several and len(options) == 1:
                rows = (*(r for r in rows if r not in within), Row(candidate, *options.pop()))
        return rows

    return change


def splitting(candidates: Sequence[Candidate[V]], within: Sequence[Candidate[V]], keeps: Keeps, nested: bool) -> Move[V]:
    """Parts within those of some candidates: instead of them, or beside them."""

    def change(rows: Rows[V]) -> Rows[V]:
        if not {r.candidate for r in rows}.issuperset(candidates):  # another move took them
            return rows
        stay = tuple(r for r in rows if r.candidate not in within and (nested or r.candidate not in candidates))
        return (*stay, *(Row(c, keeps) for c in within))

    return change


def setting(candidates: set[Candidate[V]], keeps: Keeps, again: Again, late: bool) -> Move[V]:
    def change(rows: Rows[V]) -> Rows[V]:
        return tuple(replace(r, keeps=keeps, again=again, late=late) if r.candidate in candidates else r for r in rows)

    return change


def dropping(candidates: set[Candidate[V]]) -> Move[V]:
    return lambda rows: tuple(r for r in rows if r.candidate not in candidates)
