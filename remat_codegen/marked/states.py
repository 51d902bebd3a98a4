"""The generator states that parts hold: each takes the present one when it first runs, to know whether it draws random numbers.
If it does, it has that until it need not run again; while it does, the present one is held, too, to be put back."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Protocol

OUTER, GONE = -1, sys.maxsize  # it waits for the part around it; it has let go


class Stretch(Protocol):
    """What has to be known of a part: its first and last node, the index of the part that it stands in, and whether it is
    several, of which the first is given `begin`."""

    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def outer(self) -> int | None: ...
    @property
    def begin(self) -> frozenset[int]: ...


class States:
    """Who holds states of `nbytes` bytes while the positions of one order pass, the first of which are the forward nodes.
    `within` are, by part, those that stand in it."""

    def __init__(
        self, parts: Sequence[Stretch], within: Mapping[int, Sequence[int]], drawing: frozenset[int], nbytes: int
    ) -> None:
        self.parts, self.within, self.nbytes = parts, within, nbytes
        self.draws = [any(node in drawing for node in range(p.first, p.last + 1)) for p in parts] if nbytes else []
        self.since = [p.last + 1 if p.outer is None else OUTER for p in parts]  # the position from which on it has one
        self.during = [r for p in parts for r in ((p.first, p.last + 1), (p.last, p.last + 1))] if nbytes else []
        several = (p for p, draws in zip(parts, self.draws, strict=False) if draws and p.begin)
        self.during += [(p.last, p.last + 1) for p in several]  # where one has drawn, another looks whether it does

    def run(self, index: int, position: int, nodes: Sequence[int], passing: bool) -> None:
        """A part has run these nodes again from a position on. Those within it took their states when it came to them, if only
        where it ended, unless it ran in passing, for one value."""
        if not self.draws:
            return
        if self.draws[index]:
            self.during.append((position, position + len(nodes)))
        reached = nodes[-1] + 1 if nodes else self.parts[index].first
        for inner in self.within.get(index, ()) if not passing else ():
            first = self.parts[inner].first
            if self.since[inner] == OUTER and reached >= first:
                self.since[inner] = position + sum(node < first for node in nodes)

    def let_go(self, index: int, position: int) -> None:
        """A part does not run again from here on."""
        if self.draws and self.draws[index] and OUTER < self.since[index] < position:
            self.during.append((self.since[index], position))
            self.since[index] = GONE

    def held(self, length: int) -> dict[int, int]:
        """Bytes by position, of so many."""
        more = [0] * (length + 1)
        for start, stop in self.during:
            more[start] += 1
            more[stop] -= 1
        return {position: count * self.nbytes for position, count in enumerate(accumulate(more[:-1])) if count}
