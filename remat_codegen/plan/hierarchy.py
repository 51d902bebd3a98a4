"""Plans for large graphs without separators, by segments, by giving up and by spending.

All of it works on one representation: the order of node ids, forward nodes once and in order up to the loss (what the emitter
can write), and after it every backward node with the runs that rebuild what it reads. What an order holds follows from it
(`with_forgets`), so two moves reach every such plan:

    split   a data node is dropped over a gap in which nothing reads it, and rebuilt just before its next reader
    merge   a run is taken out, and the copy of before is held instead

Starting orders keep what crosses between segments of the forward pass (Chen et al. 2016, for any graph and any number of
segments; Chen's own sqrt(n) equal ones are among them, so a plan is never slower than theirs where theirs fits).
`squeeze` splits at the peak until an order fits a budget, the most bytes for the time first; `spend` merges while there
is room, the most time for the bytes first. `improve` repeats both around random choices and takes what is faster (large
neighbourhood search). HiRemate, which partitions a graph recursively and solves an integer program per level, is
the published alternative.

Deterministic: the random choices are seeded, and the work is counted in steps of the search, not in seconds.
"""

from __future__ import annotations

import heapq
import random
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from remat_codegen.graph.ir import Graph
from remat_codegen.plan import checkmate
from remat_codegen.profile.costs import Profile

Order = tuple[int, ...]
Splits = dict[int, list[int]]  # position -> data that are rebuilt there

PATIENCE = 12  # how many rounds of splitting may pass without a gain
PEAKS_AT_ONCE = 12  # positions above the limit that are treated in one round
SPLIT_WORK = 50_000  # the most rounds of splitting that a starting order gets, times nodes
DESCENT_WORK = 200_000  # steps of orders that are looked at to bring one to its least peak, where the graph is large
LARGE = 1500  # nodes; beyond it the least peak is only looked for where nothing else fits
FIT_WORK = 1_000_000  # the most that is visited to fit all starting orders within limits
SEARCH_WORK = 1_000_000  # the most that is visited to improve orders, however large the graph
SLOWEST = 6  # an order that takes this many times as long as the plain step is given up
SEGMENT_GROWTH = 1.6  # from one number of segments to the next
LEAST_STARTS = 2  # how many of the starting orders are brought to their least peak
TRIAL_ROUNDS = 8  # of splitting, in a step of the search
IMPROVED_STARTS = 3  # how many of the fitting orders are improved
STEPS_PER_NODE = 6  # the most steps of the search that a graph gets
WARMTH = 1.0  # how much slower an order may become for a while: in parts of its overhead for each node of the graph
PEAK_LEVELS = 3  # of a family
SAVED_LEVELS = 6


class Board:
    """A graph and its costs as plain lists, made once for many orders.

    What the loss and the backward nodes write lives as long in every order, because they run once and in order: it is counted
    here, `late` while a node runs and `between` before it does. `reads` and `writes` are of the rest.
    """

    def __init__(self, graph: Graph, profile: Profile) -> None:
        self.graph, self.profile = graph, profile
        producers = graph.producers()
        self.producer = [p[0] for p in producers]
        self.early = [p < graph.loss for p in self.producer]
        self.reads = [tuple(sorted({d for d in n.reads if self.early[d]})) for n in graph.nodes]
        self.writes = [tuple(sorted({d for d in n.writes if self.early[d]})) for n in graph.nodes]
        self.size = [d.nbytes for d in graph.data]
        self.time, self.workspace = profile.time_ns, profile.workspace_bytes
        self.loss, self.outputs = graph.loss, frozenset(d for d in graph.outputs if self.early[d])
        self.late, self.between = self._late(producers)
        shared = {p for w in producers if len(w) > 1 for p in w}
        self.once = checkmate.runs_once(graph) | shared
        self.visited = 0  # steps of orders that were split, and data that were looked up to rebuild others, since the beginning
        self.plain: Order = tuple(range(len(graph.nodes)))
        self.plain_ns = sum(profile.time_ns)

    def _late(self, producers: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
        late, between = [0] * len(self.graph.nodes), [0] * len(self.graph.nodes)
        outputs = set(self.graph.outputs)
        for data, (writes, reads) in enumerate(zip(producers, self.graph.readers(), strict=True)):
            if self.early[data]:
                continue
            end = len(late) - 1 if data in outputs else max((*reads, *writes))
            for node in range(writes[0], end + 1):
                late[node] += self.size[data]
                between[node] += self.size[data] if node > writes[0] else 0
        return late, between

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

    def held_from(self) -> int:
        """The last step that needs an earlier copy. Copies that nobody reads do not count: their runs may go as well."""
        copy = self.before
        while copy is not None and copy.before is not None and not copy.readers:
            copy = copy.before
        return self.start if copy is None else copy.end

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
                copy = Copy(data, position, [], position, mine[-1] if mine else None)
                mine.append(copy)
                made.append(copy)
            self.at.append(made)
        for data in board.outputs:
            self.copies[data][-1].end = len(order) - 1

    @cached_property
    def during(self) -> np.ndarray:
        """The bytes alive while each node runs."""
        board, change = self.board, [0] * (len(self.order) + 2)
        for made in self.at:
            for copy in made:
                change[copy.start] += board.size[copy.data]
                change[copy.end + 1] -= board.size[copy.data]
        beside = [board.workspace[node] + board.late[node] for node in self.order]
        following = 0
        for position in range(len(self.order) - 1, board.loss, -1):
            node = self.order[position]
            if node < board.loss:
                beside[position] += following
            else:
                following = board.between[node]
        return np.cumsum(np.array(change[:-2], dtype=np.int64)) + np.array(beside, dtype=np.int64)

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
        again = _closure(board, board.reads[node], have)
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
    """Splits chosen on one order, to be made at once. None are looked for once `last` data were visited."""

    def __init__(self, lives: Lives, last: int = sys.maxsize) -> None:
        self.lives, self.board, self.last = lives, lives.board, last
        self.splits: Splits = {}
        self.dropped: dict[int, list[tuple[int, int]]] = {}  # data -> gaps in which it is no longer there

    def closure(self, data: int, position: int) -> list[int] | None:
        """What must run to rebuild it there; None if something of it cannot run again."""
        board, again, pending = self.board, {self.board.producer[data]}, list(self.board.reads[self.board.producer[data]])
        while pending:
            read = pending.pop()
            board.visited += 1
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


def squeeze(
    board: Board,
    order: Order,
    limits: Limits,
    jitter: random.Random | None = None,
    rounds: int | None = None,
    work: int = FIT_WORK,
) -> Order | None:
    """Splits until an order keeps to the limits; None where that does not work out, or not with so much `work`."""
    least, stuck, last = None, 0, board.visited + work
    for _ in range(4 * len(board.plain) if rounds is None else rounds):
        if board.visited > last:
            return None
        board.visited += len(order)
        lives = Lives(board, order)
        over = np.maximum(lives.during - limits.along(lives), 0)
        excess = int(over.sum())
        if not excess:
            return order
        stuck = 0 if least is None or excess < least else stuck + 1
        least = excess if least is None else min(excess, least)
        if stuck > PATIENCE or board.time_of(order) > SLOWEST * board.plain_ns:
            return None
        splitter = _Splitter(lives, last)
        for _ in range(PEAKS_AT_ONCE if jitter is None else 2):
            if not over.any() or not _split_at(splitter, over, int(over.argmax()), limits, jitter):
                break
        if not splitter.splits:
            return None
        order = splitter.order()
    return None


@dataclass(frozen=True, slots=True)
class _Gap:
    """A stretch over which nothing touches a copy. `weight`: the bytes that it would free, once for each place too full."""

    weight: float
    copy: Copy
    start: int
    end: int


def _split_at(splitter: _Splitter, over: np.ndarray, peak: int, limits: Limits, jitter: random.Random | None) -> bool:
    """Chooses splits that bring one position below its limit, and takes them off `over`; whether there were any."""
    board, found = splitter.board, False
    for gap in _best_first(splitter, _gaps_over(splitter, over, peak, jitter), limits):
        data = gap.copy.data
        splitter.drop(gap.copy, gap.start, gap.end)
        found = True
        part = over[gap.start + 1 : gap.end]
        np.maximum(part - board.size[data], 0, out=part)
        if not over[peak]:
            break
    return found


def _gaps_over(splitter: _Splitter, over: np.ndarray, peak: int, jitter: random.Random | None) -> Iterator[_Gap]:
    """What is held idle at a position and may be rebuilt later."""
    lives, board = splitter.lives, splitter.board
    counts = np.concatenate(([0], np.cumsum(over > 0))).tolist()
    for copies in lives.copies:
        copy = next((c for c in reversed(copies) if c.start < peak), None)
        if copy is None or copy.end <= peak or not board.movable(copy.data) or not board.size[copy.data]:
            continue
        end, start = copy.next_touch(peak), copy.last_touch(peak)
        if end is None or end <= max(peak, board.loss) or not splitter.there(copy.data, peak):
            continue
        weight = board.size[copy.data] * (counts[end] - counts[start + 1])
        yield _Gap(weight if jitter is None else weight * jitter.uniform(0.6, 1.6), copy, start, end)


def _best_first(splitter: _Splitter, gaps: Iterable[_Gap], limits: Limits) -> Iterator[_Gap]:
    """The gaps by what they free for the time of rebuilding, those left out that cannot be rebuilt.

    Rebuilding takes at least the producer's own time. What else has to run is looked up only for the gaps that are best by
    that measure, because on large graphs there are thousands of others.
    """
    board = splitter.board
    heap = [(-g.weight / (board.time[board.producer[g.copy.data]] + 1), g.copy.data, False, g) for g in gaps]
    heapq.heapify(heap)
    while heap and board.visited <= splitter.last:
        _, data, priced, gap = heapq.heappop(heap)
        if priced:
            yield gap
        elif (cost := _cost(splitter, gap, limits)) is not None:
            heapq.heappush(heap, (-gap.weight / cost, data, True, gap))


def _cost(splitter: _Splitter, gap: _Gap, limits: Limits) -> int | None:
    """The time that rebuilding at the end of a gap takes; None where it cannot be done."""
    board, again = splitter.board, splitter.closure(gap.copy.data, gap.end)
    if again is None:
        return None
    cost = sum(board.time[i] for i in again) + 1
    widest = max(sum(board.size[d] for d in board.writes[i]) for i in again)
    if len(again) > 1 and int(splitter.lives.during[gap.end]) + widest > limits.peak:
        cost *= 4  # there is no room to rebuild it: more will have to be given up
    return cost


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
        longer = [(c.data, c.held_from()) for c in lives.at[position] if c.readers]
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
    """Chen's plan for any graph, with sqrt(n) nodes a segment, and with other numbers of segments cut where little crosses."""
    last = _last_forward_reads(board)
    crossing = np.zeros(board.loss + 1, dtype=np.int64)
    weight = np.zeros(board.loss, dtype=np.float64)
    for data, producer in enumerate(board.producer):
        if producer < board.loss:
            weight[producer] += board.size[data]
            crossing[producer : max(last[data], producer)] += board.size[data]
    total = np.cumsum(weight)
    size = max(1, round(board.loss**0.5))
    cuts = [list(range(size - 1, board.loss - 1, size)), *(_cuts(total, crossing, count) for count in counts)]
    return list(dict.fromkeys(rebuilding(board, _crossing(board, last, c)) for c in cuts))


def _crossing(board: Board, last: Sequence[int], cuts: Sequence[int]) -> set[int]:
    """What a forward node, or the loss, reads after one of the cuts, and was made before it."""
    return {d for d, p in enumerate(board.producer) if p < board.loss and any(p <= c < last[d] for c in cuts)}


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


def starting_orders(board: Board) -> list[Order]:
    """The plain order, and segments in growing numbers."""
    counts = sorted({round(2 * SEGMENT_GROWTH**k) for k in range(16)})
    return list(dict.fromkeys([board.plain, *segment_orders(board, [c for c in counts if c <= max(2, board.loss // 3)])]))


# The search


def improve(board: Board, order: Order, limits: Limits, steps: int, seed: int = 1, work: int = SEARCH_WORK) -> Order:
    """Large neighbourhood search: drop some of what is held in one region, fit, spend; take what is not slower."""
    rng, last = random.Random(seed), board.visited + work
    best = current = order
    best_ns = current_ns = board.time_of(order)
    lives = Lives(board, current)
    for step in range(steps if best_ns > board.plain_ns else 0):
        if board.visited > last:
            break
        board.visited += len(current)
        trial = _shake(lives, rng)
        fitting = squeeze(board, trial, limits, rng, TRIAL_ROUNDS) if trial is not None else None
        if fitting is None:
            continue
        found = spend(board, fitting, limits, rng)
        found_ns = board.time_of(found)
        warmth = WARMTH / board.loss * (1 - step / steps) * (best_ns - board.plain_ns)
        if found != current and found_ns <= current_ns + warmth * rng.random():
            current, current_ns, lives = found, found_ns, Lives(board, found)
        if found_ns < best_ns:
            best, best_ns = found, found_ns
    return best


def _shake(lives: Lives, rng: random.Random) -> Order | None:
    """An order that drops a few of the data nodes that are held over a long gap, near each other."""
    board = lives.board
    gaps: list[tuple[int, int, Copy]] = []
    for copies in lives.copies:
        for copy in copies:
            if board.movable(copy.data) and board.size[copy.data]:
                touches = [copy.start, *copy.readers]
                gaps.extend((b, a, copy) for a, b in pairwise(touches) if b > board.loss and b - a > 2)
    if not gaps:
        return None
    gaps.sort(key=lambda g: g[:2])
    centre, width = rng.randrange(len(gaps)), rng.choice((2, 6, 16, 40))
    near = gaps[max(0, centre - width) : centre + width]
    splitter = _Splitter(lives)
    for end, start, copy in rng.sample(near, min(len(near), rng.choice((1, 2, 3, 5, 8)))):
        if splitter.closure(copy.data, end) is not None:
            splitter.drop(copy, start, end)
    return splitter.order()


class Search:
    """Plans of one graph for any budget."""

    def __init__(self, graph: Graph, profile: Profile) -> None:
        self.board = Board(graph, profile)
        self.starts = starting_orders(self.board)
        self.large = len(graph.nodes) > LARGE
        self.rounds = SPLIT_WORK // (len(graph.nodes) + 100) + 1
        self.peaks = {order: Lives(self.board, order).peak for order in self.starts}

    @cached_property
    def least(self) -> tuple[Order, int]:
        """The order of the least peak that the search finds, whatever the budget, and its peak."""
        ranked = sorted(self.starts, key=lambda o: self.peaks[o])[:LEAST_STARTS]
        found = [self._descend(order) for order in dict.fromkeys([*ranked, self.board.plain])]
        return min(found, key=lambda f: (f[1], self.board.time_of(f[0])))

    def _descend(self, order: Order) -> tuple[Order, int]:
        peak, board = self.peaks[order], self.board
        last = board.visited + (DESCENT_WORK if self.large else sys.maxsize)
        for part in (0.85, 0.95, 0.99):
            while board.visited < last:
                rounds = min(self.rounds, (last - board.visited) // len(order) + 1)
                lower = squeeze(board, order, Limits(int(peak * part)), None, rounds)
                if lower is None:
                    break
                order, peak = lower, Lives(board, lower).peak
                if not peak:
                    break
        return order, peak

    def fitted(self, limits: Limits, extra: Sequence[Order] = ()) -> list[Order]:
        """The starts and what else is known, brought within the limits and spent, fastest first."""
        work = FIT_WORK // (len(extra) + len(self.starts))
        squeezed = (squeeze(self.board, o, limits, None, self.rounds, work) for o in (*extra, *self.starts))
        found = [order for order in squeezed if order is not None]
        if (not self.large or not found) and limits.hold(Lives(self.board, self.least[0])):
            found.append(self.least[0])
        spent = dict.fromkeys(spend(self.board, o, limits) for o in dict.fromkeys(found))
        return sorted(spent, key=self.board.time_of)

    def best(self, limits: Limits, steps: int, extra: Sequence[Order] = ()) -> Order | None:
        """The fastest order found within the limits."""
        found = self.fitted(limits, extra)[:IMPROVED_STARTS]
        part = 3 * IMPROVED_STARTS  # a third of the work says where the rest is best spent
        trial, work = steps // part, SEARCH_WORK // part
        found = [improve(self.board, order, limits, trial, seed, work) for seed, order in enumerate(found)]
        if not found:
            return None
        rest = steps - trial * len(found)
        return improve(self.board, min(found, key=self.board.time_of), limits, rest, len(found), SEARCH_WORK - work * len(found))


def steps_for(graph: Graph, work: int) -> int:
    """How many steps of the search a graph gets. A step visits all its nodes a few times."""
    return min(work // (len(graph.nodes) + 100), STEPS_PER_NODE * len(graph.nodes))


def family_orders(graph: Graph, profile: Profile) -> list[Order]:
    """Orders of a piece for a few peaks and a few budgets of what is kept over its loss."""
    search = Search(graph, profile)
    board, plain = search.board, Lives(search.board, search.board.plain)
    saved = checkmate.saved_bytes(graph, board.plain)
    beside = int(plain.during[graph.loss]) - saved
    highest, lowest = plain.peak, search.least[1]
    orders = [*search.starts, search.least[0]]
    for level in range(PEAK_LEVELS):
        peak = highest - (highest - lowest) * level // (PEAK_LEVELS - 1)
        for part in range(SAVED_LEVELS):
            limits = Limits(peak, beside + saved * part // (SAVED_LEVELS - 1))
            orders.extend(search.fitted(limits)[:1])
    return list(dict.fromkeys(orders))
