"""The order in which nodes run, as a short text: what runs again.

337|175:173;177:168-169;...     the last node's number, then `a:b,c-d` for "once node a has run for the first time, b runs
                                again, then c to d"
9*(...)+13-14                   nine copies of what every layer repeats, in each of which the numbers before a colon are
                                13 higher, those after it 14 lower, than in the one before
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from remat_codegen.errors import PlanFileError

LONGEST_ORDER = 1_000_000  # nodes; a damaged line must not fill the memory
LONGEST_PERIOD = 256  # items of a layer's pattern


@dataclass(frozen=True, slots=True)
class _Item:
    """Nodes that run again after node `after` has run for the first time."""

    after: int
    nodes: tuple[int, ...]

    def moved(self, after: int, nodes: int) -> _Item:
        return _Item(self.after + after, tuple(n + nodes for n in self.nodes))

    def __str__(self) -> str:
        return f"{self.after}:{_ranges(self.nodes)}"


def encode_order(order: Sequence[int]) -> str:
    """An order of nodes, whose first runs are in order, by what runs again. Raises PlanFileError for other orders."""
    reached, again = -1, dict[int, list[int]]()
    for node in order:
        if node == reached + 1:
            reached = node
        elif 0 <= node <= reached:
            again.setdefault(reached, []).append(node)
        else:
            raise PlanFileError(f"the plan's order cannot be run: node {node} comes before node {reached + 1}")
    items = [_Item(after, tuple(nodes)) for after, nodes in again.items()]
    return f"{reached}|{';'.join(_folded(items))}"


def decode_order(text: str) -> tuple[int, ...]:
    """The order that `encode_order` wrote. Raises PlanFileError for anything else."""
    found = re.fullmatch(r"(-1|\d{1,9})\|(.*)", text, re.ASCII)
    if found is None:
        raise PlanFileError("no readable order")
    last = int(found[1])
    again: dict[int, tuple[int, ...]] = {}
    room = LONGEST_ORDER - last
    for item in _unfolded(found[2]):
        room -= len(item.nodes)
        fits = 0 <= item.after <= last and all(0 <= n <= item.after for n in item.nodes)
        if room < 0 or not fits or item.after in again:
            raise PlanFileError("no readable order")
        again[item.after] = item.nodes
    if room < 0:
        raise PlanFileError("no readable order")
    return tuple(n for first in range(last + 1) for n in (first, *again.get(first, ())))


def _folded(items: Sequence[_Item]) -> list[str]:
    """Items as text, with patterns that repeat written once."""
    found, i = [], 0
    while i < len(items):
        period, times = _best_repeat(items, i)
        if times == 1:
            found.append(str(items[i]))
        else:
            first, second = items[i], items[i + period]
            body = ";".join(map(str, items[i : i + period]))
            step = second.after - first.after, second.nodes[0] - first.nodes[0]
            found.append(f"{times}*({body}){step[0]:+d}{step[1]:+d}")
        i += period * times
    return found


def _best_repeat(items: Sequence[_Item], start: int) -> tuple[int, int]:
    """The period and the number of repeats that say most of what follows `start`."""
    best, saved = (1, 1), 0
    for period in range(1, min(LONGEST_PERIOD, (len(items) - start) // 2) + 1):
        times = _repeats(items, start, period)
        if (times - 1) * period > saved:
            best, saved = (period, times), (times - 1) * period
    return best


def _repeats(items: Sequence[_Item], start: int, period: int) -> int:
    one, two = items[start], items[start + period]
    after, nodes = two.after - one.after, two.nodes[0] - one.nodes[0]
    end = start + period
    while end < len(items) and items[end] == items[end - period].moved(after, nodes):
        end += 1
    return max(1, (end - start) // period)


_PIECE = re.compile(r"(?:(\d{1,6})\*\(([\d:;,-]*)\)([+-]\d{1,9})([+-]\d{1,9})|(\d{1,9}:[\d,-]+))(?:;|$)", re.ASCII)


def _unfolded(text: str) -> list[_Item]:
    found: list[_Item] = []
    position = 0
    while position < len(text):
        piece = _PIECE.match(text, position)
        if piece is None:
            raise PlanFileError("no readable order")
        position = piece.end()
        if piece[5] is not None:
            found.append(_item(piece[5]))
            continue
        times, items = int(piece[1]), [_item(t) for t in piece[2].split(";")]
        if times * sum(len(i.nodes) for i in items) > LONGEST_ORDER:
            raise PlanFileError("no readable order")
        found += [i.moved(k * int(piece[3]), k * int(piece[4])) for k in range(times) for i in items]
    return found


def _item(text: str) -> _Item:
    after, colon, rest = text.partition(":")
    nodes: list[int] = []
    for part in rest.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part, re.ASCII)
        if found is None or not colon or not after.isdigit():
            raise PlanFileError("no readable order")
        first, last = int(found[1]), int(found[2] or found[1])
        if last - first > LONGEST_ORDER:
            raise PlanFileError("no readable order")
        nodes.extend(range(first, last + 1))
    return _Item(int(after), tuple(nodes))


def _ranges(nodes: Sequence[int]) -> str:
    """168,169,171 as 168-169,171."""
    starts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(nodes)) if b != a + 1), len(nodes)]
    spans = [(nodes[a], nodes[b - 1]) for a, b in pairwise(starts)]
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)
