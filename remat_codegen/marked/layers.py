"""Layers of equal code, and what a table says of each: the fewer different things, the sooner it is read.

The third of twelve `ln_1` belongs to the third of twelve `attn`: candidates of the same code that are there equally often are
columns of one list of layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise, permutations
from typing import Generic

from remat_codegen.marked.candidates import Candidate, Candidates, Row, Rows, V
from remat_codegen.marked.demand import Again, Keeps

Layer = tuple[int, int]  # how many there are, and which of them
Said = tuple[Hashable, Keeps, Again, bool]  # the code of a row, with its options
Pattern = frozenset[Said]  # of a layer


class Layers(Generic[V]):
    """The layers that some candidates are in."""

    def __init__(self, candidates: Candidates[V]) -> None:
        self.by_key = candidates.by_key
        several = (group for group in self.by_key.values() if len(group) > 1)
        self.of: dict[Candidate[V], Layer] = {c: (len(group), place) for group in several for place, c in enumerate(group)}

    def patterns(self, rows: Rows[V]) -> dict[Layer, Pattern]:
        """What a table says of each layer that it has rows for."""
        found: dict[Layer, set[Said]] = {}
        for row in rows:
            if row.candidate in self.of:
                found.setdefault(self.of[row.candidate], set()).add(said_of(row))
        return {layer: frozenset(said) for layer, said in found.items()}

    def different(self, rows: Rows[V]) -> int:
        """How many different things a table says of layers."""
        return len({(count, pattern) for (count, _), pattern in self.patterns(rows).items()})

    def united(self, rows: Rows[V]) -> Iterator[Rows[V]]:
        """Tables that say one thing less: of all layers with one pattern what they say of others."""
        patterns = self.patterns(rows)
        often = Counter((count, pattern) for (count, _), pattern in patterns.items())
        for one, other in permutations(often, 2):
            if one[0] == other[0]:
                yield self._saying(rows, {layer: other[1] for layer in patterns if (layer[0], patterns[layer]) == one})

    def divided(self, rows: Rows[V]) -> Iterator[Rows[V]]:
        """Tables that say one thing less: the layers of three patterns have two of them, the first so many layers the one that
        came first, the others the other one. So a budget is kept that would not be by either of them for all the third has."""
        patterns, placed = self.patterns(rows), dict[tuple[int, Pattern], list[Layer]]()
        for layer in sorted(patterns):
            placed.setdefault((layer[0], patterns[layer]), []).append(layer)
        for gone, one, other in ((g, *pair) for pair in combinations(placed, 2) for g in placed if g not in pair):
            if gone[0] == one[0] == other[0]:
                layers = sorted(placed[gone] + placed[one] + placed[other])
                for first in range(1, len(layers)):
                    said = {layer: one[1] if i < first else other[1] for i, layer in enumerate(layers)}
                    yield self._saying(rows, said)

    def in_two(self, rows: Rows[V], most: int) -> Iterator[tuple[int, Callable[[int], Rows[V]]]]:
        """For any two of the patterns that the most layers have, `most` of these: how many layers there are, and the table by
        which so many of them, the first ones, have the one, and all others the other."""
        patterns = self.patterns(rows)
        often = Counter((count, pattern) for (count, _), pattern in patterns.items())

        def divided(count: int, one: Pattern, other: Pattern, first: int) -> Rows[V]:
            layers = sorted(layer for layer in patterns if layer[0] == count)
            return self._saying(rows, {layer: one if i < first else other for i, layer in enumerate(layers)})

        for (count, one), (same, other) in permutations(sorted(often, key=lambda sort: -often[sort])[:most], 2):
            if count == same:
                yield sum(layer[0] == count for layer in patterns), partial(divided, count, one, other)

    def stairs(self, rows: Rows[V], last: bool) -> Rows[V]:
        """The table that says everything as often as this one, but of the first layers, or of the last ones: then layers are of
        few sorts, and which are of which is not left to chance."""
        return self._stairs(rows, self._counts(rows), last)

    def lower_stairs(self, rows: Rows[V], last: bool) -> Iterator[Rows[V]]:
        """Stairs with a step less: one thing is said of as many layers as another one, or of all, or of none."""
        counts = self._counts(rows)
        for (count, said), often in counts.items():
            others = sum(n for (_, (code, *_)), n in counts.items() if code == said[0]) - often  # of which it cannot be said
            for more in sorted({0, count - others, *(n for (c, _), n in counts.items() if c == count)} - {often}):
                lower = counts | {(count, said): more}
                if more + others <= count and _steps(lower) < _steps(counts):
                    yield self._stairs(rows, lower, last)

    def _counts(self, rows: Rows[V]) -> dict[tuple[int, Said], int]:
        """Of how many layers a table says something, by how many there are."""
        of_layers = {r.candidate: r for r in rows if r.candidate in self.of}
        return dict(Counter((self.of[r.candidate][0], said_of(r)) for r in of_layers.values()))

    def _stairs(self, rows: Rows[V], counts: Mapping[tuple[int, Said], int], last: bool) -> Rows[V]:
        like = {said_of(row): row for row in rows}
        taken = Counter[Hashable]()  # by code: the layers of which something is said of it already
        theirs: list[Row[V]] = []
        for (count, said), often in counts.items():
            places = range(taken[said[0]], taken[said[0]] + often)
            theirs += (self._moved(like[said], count - 1 - place if last else place) for place in places)
            taken[said[0]] += often
        return (*(r for r in rows if r.candidate not in self.of), *theirs)

    def sorted(self, rows: Rows[V]) -> Iterator[Rows[V]]:
        """Tables that say the same of other layers, so that more of those with one pattern stand side by side: two layers
        exchange what is said of them. Those first by which that is so for the most."""
        patterns, found = self.patterns(rows), list[tuple[int, dict[Layer, Pattern]]]()
        for one, other in combinations(sorted(patterns), 2):
            if one[0] == other[0] and patterns[one] != patterns[other]:
                exchanged = {one: patterns[other], other: patterns[one]}
                gained = self._breaks(patterns, one[0]) - self._breaks(patterns | exchanged, one[0])
                found += [(gained, exchanged)] if gained > 0 else []
        yield from (self._saying(rows, exchanged) for _, exchanged in sorted(found, key=lambda pair: -pair[0]))

    @staticmethod
    def _breaks(patterns: Mapping[Layer, Pattern], count: int) -> int:
        """How often a layer is another than the one before it."""
        said = [patterns.get((count, place)) for place in range(count)]
        return sum(one != other for one, other in pairwise(said))

    def _saying(self, rows: Rows[V], patterns: Mapping[Layer, Pattern]) -> Rows[V]:
        """The rows, with these patterns for some layers."""
        like = {said_of(row): row for row in rows}
        said = ((place, row) for (_, place), pattern in patterns.items() for said, row in like.items() if said in pattern)
        theirs = (self._moved(row, place) for place, row in said)
        return (*(r for r in rows if self.of.get(r.candidate) not in patterns), *theirs)

    def _moved(self, row: Row[V], place: int) -> Row[V]:
        return replace(row, candidate=self.by_key[row.candidate.key][place])


def said_of(row: Row[V]) -> Said:
    """What a table says of a layer by a row."""
    return row.candidate.key, row.keeps, row.again, row.late


def _steps(counts: Mapping[tuple[int, Said], int]) -> int:
    return len({(count, often) for (count, _), often in counts.items() if 0 < often < count})
