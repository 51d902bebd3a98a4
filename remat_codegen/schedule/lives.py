"""Orders of node ids, and what they hold when: the representation that searches work on; and the copies that a schedule makes.

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

from remat_codegen.graph.ir import Graph, Kind
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule.order import fixed, settled_lives
from remat_codegen.schedule.steps import Forget, Schedule

Order = tuple[int, ...]


class Problem:
    """What a plan is searched for: a graph and its costs as plain lists, made once for many orders.

    What the loss and the backward nodes write lives as long in every order, so that it is counted once, here:
    `backward_during` has its bytes while a node runs, `backward_before` just before that. `from_forward` says which data are
    not of these; `reads` and `writes` name only such.
    """

    def __init__(self, graph: Graph, profile: Profile) -> None:
        self.graph, self.profile = graph, profile
        self.producer = [p[0] for p in graph.producers]
        self.from_forward = [p < graph.loss for p in self.producer]
        self.reads = [tuple(sorted({d for d in n.reads if self.from_forward[d]})) for n in graph.nodes]
        self.writes = [tuple(sorted({d for d in n.writes if self.from_forward[d]})) for n in graph.nodes]
        self.size = [d.nbytes for d in graph.data]
        self.time, self.workspace = profile.time_ns, profile.workspace_bytes
        self.loss, self.outputs = graph.loss, frozenset(d for d in graph.outputs if self.from_forward[d])
        self.backward_during, self.backward_before = self._backward_bytes()
        self.once = fixed(graph)
        self.visited = 0  # steps of orders that were split, and data that were looked up to rebuild others, since the beginning
        self.plain: Order = tuple(range(len(graph.nodes)))
        self.plain_ns = sum(profile.time_ns)

    def _backward_bytes(self) -> tuple[list[int], list[int]]:
        during, before = [0] * len(self.graph.nodes), [0] * len(self.graph.nodes)
        for data, (first, last) in settled_lives(self.graph).items():
            for node in range(first, last + 1):
                during[node] += self.size[data]
                before[node] += self.size[data] if node > first else 0
        return during, before

    def beside_copies(self, order: Sequence[int]) -> np.ndarray:
        """For each node of an order, the bytes that it needs beside the copies of the forward's data: what the loss and the
        backward nodes wrote and is alive while it runs, and its workspace."""
        found = [self.workspace[node] + self.backward_during[node] for node in order]
        following = 0
        for position in range(len(order) - 1, self.loss, -1):
            node = order[position]
            if node < self.loss:
                found[position] += following
            else:
                following = self.backward_before[node]
        return np.array(found, dtype=np.int64)

    def movable(self, data: int) -> bool:
        """Whether it can be dropped and rebuilt."""
        return self.producer[data] not in self.once

    def time_of(self, order: Sequence[int]) -> int:
        """The time that an order takes."""
        return sum(map(self.time.__getitem__, order))


@dataclass(slots=True)
class Copy:
    """A data node from a run that writes it to the last step that holds that result; both are positions."""

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


def copies_of(graph: Graph, schedule: Schedule) -> dict[int, list[Copy]]:
    """The copies of each data node in a valid schedule, by positions of steps; each ends where it is forgotten, or at the end.

    An output has one, to the end: what another run makes of it is dropped at once. All contributions to a gradient are one.
    """
    copies: dict[int, list[Copy]] = {}
    outputs, end = set(graph.outputs), len(schedule.steps)
    for position, step in enumerate(schedule.steps):
        if isinstance(step, Forget):
            copies[step.data][-1].end = position
            continue
        node = graph.nodes[step.node]
        for data in node.reads:
            copies[data][0 if data in outputs else -1].readers.append(position)
        for data in node.writes:
            if graph.data[data].kind is not Kind.GRADIENT or data not in copies:
                mine = copies.setdefault(data, [])
                dropped = data in outputs and bool(mine)
                mine.append(Copy(data, position, [], position if dropped else end, mine[-1] if mine else None))
    return copies


class Lives:
    """What an order holds when, as the simulator counts it."""

    def __init__(self, problem: Problem, order: Sequence[int]) -> None:
        self.problem, self.order = problem, order
        self.copies: list[list[Copy]] = [[] for _ in problem.size]
        self.at: list[list[Copy]] = []
        for position, node in enumerate(order):
            for data in problem.reads[node]:
                copy = self.copies[data][-1]
                copy.readers.append(position)
                copy.end = position
            made: list[Copy] = []
            for data in problem.writes[node]:
                mine = self.copies[data]
                copy = Copy(data, position, [], position, mine[-1] if mine else None)
                mine.append(copy)
                made.append(copy)
            self.at.append(made)
        for data in problem.outputs:
            self.copies[data][-1].end = len(order) - 1

    @cached_property
    def during(self) -> np.ndarray:
        """The bytes alive while each node runs."""
        problem, change = self.problem, [0] * (len(self.order) + 2)
        for made in self.at:
            for copy in made:
                change[copy.start] += problem.size[copy.data]
                change[copy.end + 1] -= problem.size[copy.data]
        return np.cumsum(np.array(change[:-2], dtype=np.int64)) + problem.beside_copies(self.order)

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
        for position in range(self.problem.loss, len(self.order)):
            if self.order[position] < self.problem.loss:
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
            row[lives.problem.loss] = min(self.peak, self.at_loss)
        return row

    def hold(self, lives: Lives) -> bool:
        """Whether an order keeps to them."""
        if lives.peak > self.peak:
            return False
        return self.at_loss is None or int(lives.during[lives.problem.loss]) <= self.at_loss
