"""Plans for large graphs without separators, by segments, by giving up and by spending.

All of it works on one representation: the order of node ids, forward nodes once and in order up to the loss (what the emitter
can write), and after it every backward node with the runs that rebuild what it reads. What an order holds follows from it
(`with_forgets`), so two moves reach every such plan:

    split   a data node is dropped over a gap in which nothing reads it, and rebuilt just before its next reader
    merge   a run is taken out, and the copy of before is held instead

Starting orders keep what crosses between segments of the forward pass (Chen et al. 2016, for any graph and any number of
segments), or the cheapest set by a minimum cut, bytes against time (the partitioner of torch.compile, with a price of memory).
`squeeze` splits at the peak until an order fits a budget, the most bytes for the time first; `spend` merges while there
is room, the most time for the bytes first. `improve` repeats both around random choices and takes what is faster (large
neighbourhood search). HiRemate, which partitions a graph recursively and solves an integer program per level, is
the published alternative.

Deterministic: the random choices are seeded, and the work is counted in steps of the search, not in seconds.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from remat_codegen.graph.ir import Graph, Kind
from remat_codegen.plan import checkmate
from remat_codegen.profile.costs import Profile

Order = tuple[int, ...]
Splits = dict[int, list[int]]  # position -> data that are rebuilt there

SLOWEST = 6  # an order that takes this many times as long as the plain step is given up


class Board:
    """A graph and its costs as plain lists, made once for many orders."""

    def __init__(self, graph: Graph, profile: Profile) -> None:
        self.graph, self.profile = graph, profile
        self.reads = [tuple(set(n.reads)) for n in graph.nodes]
        self.writes = [tuple(set(n.writes)) for n in graph.nodes]
        self.size = [d.nbytes for d in graph.data]
        self.time, self.workspace = profile.time_ns, profile.workspace_bytes
        self.loss, self.outputs = graph.loss, frozenset(graph.outputs)
        self.gradient = [d.kind is Kind.GRADIENT for d in graph.data]
        producers = graph.producers()
        self.producer = [p[0] for p in producers]
        shared = {p for w in producers if len(w) > 1 for p in w}
        self.once = checkmate.runs_once(graph) | shared
        self.plain: Order = tuple(range(len(graph.nodes)))
        self.plain_ns = sum(profile.time_ns)

    def movable(self, data: int) -> bool:
        """Whether it can be dropped and rebuilt."""
        return self.producer[data] not in self.once

    def time_of(self, order: Sequence[int]) -> int:
        """The time that an order takes."""
        return sum(map(self.time.__getitem__, order))


@dataclass(slots=True)
class Copy:
    """A data node from a run that writes it to the last step that reads that result."""

    data: int
    start: int
    readers: list[int] = field(default_factory=list)
    end: int = 0
    before: Copy | None = None

    def next_touch(self, position: int) -> int | None:
        """The first reader at or after a position."""
        index = bisect_left(self.readers, position)
        return self.readers[index] if index < len(self.readers) else None

    def last_touch(self, position: int) -> int:
        """The last step before a position that writes or reads it."""
        index = bisect_left(self.readers, position)
        return self.readers[index - 1] if index else self.start


class Lives:
    """What an order holds when, as the simulator counts it."""

    def __init__(self, board: Board, order: Sequence[int]) -> None:
        self.board, self.order = board, order
        self.copies: list[list[Copy]] = [[] for _ in board.size]
        self.at: list[list[Copy]] = []
        for position, node in enumerate(order):
            for data in board.reads[node]:
                copy = self.copies[data][-1]
                copy.readers.append(position)
                copy.end = position
            made: list[Copy] = []
            for data in board.writes[node]:
                mine = self.copies[data]
                if mine and board.gradient[data]:
                    mine[-1].end = position
                    continue
                copy = Copy(data, position, [], position, mine[-1] if mine else None)
                mine.append(copy)
                made.append(copy)
            self.at.append(made)
        for data in board.outputs:
            self.copies[data][-1].end = len(order)

    @cached_property
    def during(self) -> np.ndarray:
        """The bytes alive while each node runs."""
        change = np.zeros(len(self.order) + 2, dtype=np.int64)
        size = self.board.size
        for copies in self.copies:
            for copy in copies:
                change[copy.start] += size[copy.data]
                change[copy.end + 1] -= size[copy.data]
        work = self.board.workspace
        return np.cumsum(change)[: len(self.order)] + np.array([work[i] for i in self.order], dtype=np.int64)

    @property
    def peak(self) -> int:
        """The most that is alive at once."""
        return int(self.during.max(initial=0))

    def alive(self, data: int, position: int) -> Copy | None:
        """The copy that is held when the step at a position begins."""
        for copy in reversed(self.copies[data]):
            if copy.start < position:
                return copy if copy.end >= position else None
        return None

    def reruns(self) -> Iterator[int]:
        """The positions of runs that are not the first of their node."""
        for position in range(self.board.loss, len(self.order)):
            if self.order[position] < self.board.loss:
                yield position


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes that may be alive at any time, and while the loss runs (None: no further limit)."""

    peak: int
    at_loss: int | None = None

    def along(self, lives: Lives) -> np.ndarray:
        """The limit for each position."""
        row = np.full(len(lives.order), self.peak, dtype=np.int64)
        if self.at_loss is not None:
            row[lives.board.loss] = min(self.peak, self.at_loss)
        return row

    def hold(self, lives: Lives) -> bool:
        """Whether an order keeps to them."""
        if lives.peak > self.peak:
            return False
        return self.at_loss is None or int(lives.during[lives.board.loss]) <= self.at_loss


def rebuilding(board: Board, kept: Set[int]) -> Order:
    """The order that holds `kept` over the loss and rebuilds the rest when it is first read, then holds it as well."""
    order = list(range(board.loss + 1))
    have = set(kept)
    have.update(d for i in range(board.loss) if i in board.once for d in board.writes[i])
    for node in range(board.loss + 1, len(board.plain)):
        again = _closure(board, [d for d in board.reads[node] if board.producer[d] < board.loss], have)
        order.extend([*again, node])
        have.update(d for i in again for d in board.writes[i])
    return checkmate.without_dead_runs(board.graph, order)


def _closure(board: Board, wanted: Sequence[int], have: Set[int]) -> list[int]:
    """The nodes to run so that `wanted` exists, in order."""
    again: set[int] = set()
    pending = [d for d in wanted if d not in have]
    while pending:
        node = board.producer[pending.pop()]
        if node not in again:
            again.add(node)
            pending.extend(d for d in board.reads[node] if d not in have)
    return sorted(again)


# Giving up


class _Splitter:
    """Splits chosen on one order, to be made at once."""

    def __init__(self, lives: Lives) -> None:
        self.lives, self.board = lives, lives.board
        self.splits: Splits = {}
        self.dropped: dict[int, list[tuple[int, int]]] = {}  # data -> gaps in which it is no longer there

    def closure(self, data: int, position: int) -> list[int] | None:
        """What must run to rebuild it there; None if something of it cannot run again."""
        board, again, pending = self.board, {self.board.producer[data]}, list(self.board.reads[self.board.producer[data]])
        while pending:
            read = pending.pop()
            if self.there(read, position):
                continue
            node = board.producer[read]
            if node in again:
                continue
            if node in board.once:
                return None
            again.add(node)
            pending.extend(board.reads[node])
        return sorted(again)

    def there(self, data: int, position: int) -> bool:
        """Whether a data node is held when the step at a position begins."""
        if self.lives.alive(data, position) is None:
            return False
        return not any(start < position <= end for start, end in self.dropped.get(data, ()))

    def drop(self, copy: Copy, start: int, end: int) -> None:
        """Lets a copy go between two of its touches."""
        self.dropped.setdefault(copy.data, []).append((start, end))
        self.splits.setdefault(end, []).append(copy.data)

    def order(self) -> Order:
        """The order with all of them made."""
        board, order = self.board, list(self.lives.order)
        result: list[int] = []
        for position, node in enumerate(order):
            if position in self.splits:
                again: set[int] = set()
                for data in self.splits[position]:
                    again.update(self.closure(data, position) or ())
                result.extend(sorted(again))
            result.append(node)
        return checkmate.without_dead_runs(board.graph, result)


def squeeze(board: Board, order: Order, limits: Limits, jitter: random.Random | None = None) -> Order | None:
    """Splits until an order keeps to the limits; None where that does not work out."""
    best_excess, patience = None, 0
    for _ in range(4 * len(board.plain)):
        lives = Lives(board, order)
        over = np.maximum(lives.during - limits.along(lives), 0)
        excess = int(over.sum())
        if not excess:
            return order
        patience = 0 if best_excess is None or excess < best_excess else patience + 1
        best_excess = excess if best_excess is None else min(excess, best_excess)
        if patience > 12 or board.time_of(order) > SLOWEST * board.plain_ns:
            return None
        splitter = _split_at(lives, over, int(over.argmax()), limits, jitter)
        if not splitter.splits:
            return None
        order = splitter.order()
    return None


def _split_at(lives: Lives, over: np.ndarray, peak: int, limits: Limits, jitter: random.Random | None) -> _Splitter:
    """The splits that bring one position below its limit, the most bytes for the time first."""
    board, splitter = lives.board, _Splitter(lives)
    counts = np.concatenate(([0], np.cumsum(over > 0)))
    ranked: list[tuple[float, int, Copy, int, int]] = []
    for copies in lives.copies:
        for copy in copies:
            if not (copy.start < peak <= copy.end) or not board.movable(copy.data) or not board.size[copy.data]:
                continue
            end = copy.next_touch(peak)
            if end is None or end <= max(peak, board.loss):
                continue
            start = copy.last_touch(peak)
            again = splitter.closure(copy.data, end)
            if again is None:
                continue
            cost = sum(board.time[i] for i in again) + 1
            widest = max(sum(board.size[d] for d in board.writes[i]) for i in again)
            if len(again) > 1 and int(lives.during[end]) + widest > limits.peak:
                cost *= 4
            covered = int(counts[end] - counts[start + 1])
            rate = board.size[copy.data] * covered / cost
            if jitter is not None:
                rate *= jitter.uniform(0.6, 1.6)
            ranked.append((-rate, copy.data, copy, start, end))
    need = int(over[peak])
    ranked.sort(key=lambda r: r[:2])
    for _, data, copy, start, end in ranked:
        if splitter.closure(data, end) is None:
            continue
        splitter.drop(copy, start, end)
        need -= board.size[data]
        if need <= 0:
            break
    return splitter


# Spending


def spend(board: Board, order: Order, limits: Limits, jitter: random.Random | None = None) -> Order:
    """Merges while there is room under the limits, the most time for the bytes first."""
    while True:
        lives = Lives(board, order)
        room = limits.along(lives) - lives.during
        removed: set[int] = set()
        for position, longer in _merges(lives, jitter):
            if _take(room, position, longer, board.size):
                removed.add(position)
        if not removed:
            return order
        order = checkmate.without_dead_runs(board.graph, [i for p, i in enumerate(order) if p not in removed])


def _merges(lives: Lives, jitter: random.Random | None) -> list[tuple[int, list[tuple[int, int]]]]:
    """The runs that could be taken out, best first, each with the copies (data, end) that would be held longer."""
    board = lives.board
    saves: dict[int, int] = {}
    found: list[tuple[float, int, list[tuple[int, int]]]] = []
    for position in lives.reruns():
        node = lives.order[position]
        gain = board.time[node]
        for data in board.reads[node]:
            source = lives.alive(data, position)
            if source is not None and source.readers == [position] and source.start in saves and source.before is not None:
                gain += saves[source.start]
        saves[position] = gain
        longer = [(c.data, c.before.end) for c in lives.at[position] if c.readers and c.before is not None]
        price = sum(board.size[d] * (position - end) for d, end in longer)
        rate = gain / (price + 1)
        if jitter is not None:
            rate *= jitter.uniform(0.5, 2.0)
        found.append((-rate, position, longer))
    found.sort(key=lambda f: f[:2])
    return [(position, longer) for _, position, longer in found]


def _take(room: np.ndarray, position: int, longer: Sequence[tuple[int, int]], size: Sequence[int]) -> bool:
    """Holds copies longer if there is room for them all."""
    done: list[tuple[int, int]] = []
    for data, end in longer:
        part = room[end + 1 : position]
        if len(part) and int(part.min()) < size[data]:
            for other, start in done:
                room[start + 1 : position] += size[other]
            return False
        part -= size[data]
        done.append((data, end))
    return True


# Starting orders


def segment_orders(board: Board, counts: Sequence[int]) -> list[Order]:
    """Chen's plan for any graph: for each number of segments, keep what crosses from one to the next."""
    last = _last_forward_reads(board)
    crossing = np.zeros(board.loss + 1, dtype=np.int64)
    weight = np.zeros(board.loss, dtype=np.float64)
    for data, producer in enumerate(board.producer):
        if producer < board.loss:
            weight[producer] += board.size[data]
            crossing[producer : max(last[data], producer)] += board.size[data]
    total = np.cumsum(weight)
    orders = []
    for count in counts:
        cuts = _cuts(total, crossing, count)
        kept = {d for d, p in enumerate(board.producer) if p < board.loss and any(p <= c < last[d] for c in cuts)}
        orders.append(rebuilding(board, kept))
    return list(dict.fromkeys(orders))


def _last_forward_reads(board: Board) -> list[int]:
    """For each data node the last node up to the loss that reads it."""
    last = [-1] * len(board.size)
    for node in range(board.loss + 1):
        for data in board.reads[node]:
            last[data] = node
    return last


def _cuts(total: np.ndarray, crossing: np.ndarray, count: int) -> list[int]:
    """Positions that part the bytes evenly, each moved to where the least crosses nearby."""
    cuts: list[int] = []
    reach = total[-1] / count / 3
    for k in range(1, count):
        aim = total[-1] * k / count
        low, high = np.searchsorted(total, [aim - reach, aim + reach])
        near = range(int(low), min(int(high) + 1, len(total)))
        if near:
            cuts.append(min(near, key=lambda p: (int(crossing[p]), abs(total[p] - aim))))
    return sorted(set(cuts))
