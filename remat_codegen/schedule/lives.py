"""An order of node ids, and what it holds when: the representation that the search works on.

An order has the forward nodes once and in order up to the loss (what the emitter can write), and after it every backward node
with the runs that rebuild what it reads. A *copy* of a data node lives from a run that writes it to the last step that reads
that result. Memory is counted as the simulator counts it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from remat_codegen.graph.ir import Graph
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule.order import fixed

Order = tuple[int, ...]


class Board:
    """A graph and its costs as plain lists, made once for many orders.

    What the loss and the backward nodes write lives as long in every order, because they run once and in order: it is counted
    here, `late` while a node runs and `between` before it does. `reads` and `writes` are of the rest.
    """

    def __init__(self, graph: Graph, profile: Profile) -> None:
        self.graph, self.profile = graph, profile
        producers = graph.producers
        self.producer = [p[0] for p in producers]
        self.early = [p < graph.loss for p in self.producer]
        self.reads = [tuple(sorted({d for d in n.reads if self.early[d]})) for n in graph.nodes]
        self.writes = [tuple(sorted({d for d in n.writes if self.early[d]})) for n in graph.nodes]
        self.size = [d.nbytes for d in graph.data]
        self.time, self.workspace = profile.time_ns, profile.workspace_bytes
        self.loss, self.outputs = graph.loss, frozenset(d for d in graph.outputs if self.early[d])
        self.late, self.between = self._late(producers)
        self.once = fixed(graph)
        self.visited = 0  # steps of orders that were split, and data that were looked up to rebuild others, since the beginning
        self.plain: Order = tuple(range(len(graph.nodes)))
        self.plain_ns = sum(profile.time_ns)

    def _late(self, producers: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
        late, between = [0] * len(self.graph.nodes), [0] * len(self.graph.nodes)
        outputs = set(self.graph.outputs)
        for data, (writes, reads) in enumerate(zip(producers, self.graph.readers, strict=True)):
            if self.early[data]:
                continue
            end = len(late) - 1 if data in outputs else max((*reads, *writes))
            for node in range(writes[0], end + 1):
                late[node] += self.size[data]
                between[node] += self.size[data] if node > writes[0] else 0
        return late, between

    def beside(self, order: Sequence[int]) -> np.ndarray:
        """What is alive while each node of an order runs beside what its earlier nodes write, and its workspace."""
        found = [self.workspace[node] + self.late[node] for node in order]
        following = 0
        for position in range(len(order) - 1, self.loss, -1):
            node = order[position]
            if node < self.loss:
                found[position] += following
            else:
                following = self.between[node]
        return np.array(found, dtype=np.int64)

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
        return np.cumsum(np.array(change[:-2], dtype=np.int64)) + board.beside(self.order)

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
