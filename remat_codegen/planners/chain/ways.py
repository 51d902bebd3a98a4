"""Combinations of one option for each family of equal blocks: what they take, and how long their functions are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np

from remat_codegen.planners.chain.chain import Chain
from remat_codegen.planners.chain.options import Family
from remat_codegen.planners.chain.rk_rotor import Backward, Forward, Operation

PRICE = 0.0005  # the share of a step's time that is given for one node less in the functions, which is two or three lines
FUNCTION = 6  # how many nodes a function counts for beside its own: its first and last lines, and what it takes in the schedule
MOST_WAYS = 2_000  # combinations of one option for each family that are looked at
ONCE, TWICE = frozenset({False}), frozenset({True})  # whether blocks run forward once more before their way back
Bounds = tuple[int, ...]  # where segments begin, and the number of blocks


def price(chain: Chain, operations: Sequence[Operation], time_ns: float, step_ns: float) -> float:
    """What a plan takes, and what a reviewer has to read for it, in nanoseconds."""
    forward = Counter(o.block for o in operations if isinstance(o, Forward))
    used: dict[int, set[tuple[int, bool]]] = {}
    for o in operations:
        if isinstance(o, Backward):
            used.setdefault(id(chain.families[o.block]), set()).add((o.option, forward[o.block] > 1))
    return time_ns + PRICE * step_ns * sum(length(f, used[id(f)]) for f in chain.distinct)


def length(family: Family, used: Collection[tuple[int, bool]]) -> int:
    """Of a family's functions, in nodes: `used` are its options in use, and whether blocks run forward once more before.

    First functions say what is forgotten, and so differ by that. What runs again has a function of its own, but for whole
    blocks: they run their first one again (emit/reruns.py).
    """
    loss = family.piece.graph.loss
    functions: dict[object, int] = {}  # how many nodes each has
    for option, passed_over in used:
        again = sum(n < loss for n in family.options[option].backward)
        whole = _is_whole(family, option)
        if passed_over or whole:
            functions["all is forgotten"] = loss
        else:
            functions[option if again else "all is kept"] = loss if again else 0
        if passed_over and (again or not _runs_twice(family)):
            functions["again", option if again else None] = loss
        if again and not whole:
            functions["back", option] = again
    return sum(FUNCTION + nodes for nodes in functions.values())


def _is_whole(family: Family, option: int) -> bool:
    """Whether an option runs the whole block again before its way back, as the first time."""
    loss = family.piece.graph.loss
    order = [n for n in family.options[option].backward if n != loss]
    return [n for n in order if n < loss] == order[:loss] == [*range(loss)] and _runs_twice(family)


def _runs_twice(family: Family) -> bool:
    """Whether a block's first function may run again: it changes nothing that stays."""
    return all(n.recomputable for n in family.piece.graph.forward_nodes)


class Ways:
    """All combinations of one option for each family; what they take, as arrays over the combinations."""

    def __init__(self, chain: Chain) -> None:
        places = {id(f): place for place, f in enumerate(chain.distinct)}
        self.place = [places[id(f)] for f in chain.families]  # by block
        self.chosen = np.indices([len(f.options) for f in chain.distinct]).reshape(len(chain.distinct), -1)
        self.output_bytes = [f.piece.output_bytes for f in chain.distinct]
        options = [f.options for f in chain.distinct]
        self.forward_ns = self._each([[o.forward_ns for o in many] for many in options])
        self.backward_ns = self._each([[o.backward_ns for o in many] for many in options])
        self.saved_bytes = self._each([[o.saved_bytes for o in many] for many in options])
        self.lengths = {
            again: [[length(f, {(o, a) for a in again}) for o in range(len(f.options))] for f in chain.distinct]
            for again in (ONCE, TWICE, ONCE | TWICE)
        }
        self.peak_bytes = self._each([[max(o.forward_peak_bytes, o.backward_peak_bytes) for o in many] for many in options])

    def _each(self, of_options: list[list[int]]) -> list[np.ndarray]:
        return [np.array(values)[chosen] for values, chosen in zip(of_options, self.chosen, strict=True)]

    def estimates(self, bounds: Bounds) -> tuple[np.ndarray, np.ndarray]:
        """Time (ns) and peak (bytes), but for what surrounds the chain."""
        time_ns = sum(self.forward_ns[p] + self.backward_ns[p] for p in self.place)
        peak, before = np.zeros_like(self.peak_bytes[0]), np.zeros_like(self.peak_bytes[0])
        for begin, end in pairwise(bounds):
            kept = before.copy()
            for place in self.place[begin:end]:
                peak = np.maximum(peak, kept + self.peak_bytes[place])
                kept += self.saved_bytes[place] + self.output_bytes[place]
            if runs_again(begin, end, bounds):
                time_ns = time_ns + sum(self.forward_ns[p] for p in self.place[begin:end])
                before += self.output_bytes[self.place[end - 1]]
            else:
                before = kept
        return time_ns, peak

    def length(self, bounds: Bounds) -> np.ndarray:
        """Of all functions, in nodes."""
        again = {p: set[bool]() for p in range(len(self.chosen))}  # whether blocks of a family do, or do not, or both
        for begin, end in pairwise(bounds):
            for place in self.place[begin:end]:
                again[place].add(runs_again(begin, end, bounds))
        lengths = [self.lengths[frozenset(again[p])][p] for p in range(len(self.chosen))]
        return sum(self._each(lengths), np.zeros_like(self.chosen[0]))

    def operations(self, way: int, bounds: Bounds) -> list[Operation]:
        """Everything forward; then each segment backward, from the last on, after it ran forward again where it does."""
        found: list[Operation] = [*map(Forward, range(bounds[-1]))]
        for begin, end in reversed([*pairwise(bounds)]):
            found += map(Forward, range(begin, end)) if runs_again(begin, end, bounds) else ()
            found += [Backward(b, int(self.chosen[self.place[b], way])) for b in reversed(range(begin, end))]
        return found


def runs_again(begin: int, end: int, bounds: Bounds) -> bool:
    """Whether a segment runs forward once more. The last does not; of a block alone, the option says what is kept."""
    return end - begin > 1 and end < bounds[-1]
