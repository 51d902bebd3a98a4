"""What a table of parts makes of a training step: which nodes run when, if each part runs again when autograd first misses
something of it.

A *part* is a stretch of the forward pass: a module's call, or an expression. What it does not keep is gone after the forward
pass; when a backward node reads such a value, its part runs again, after the parts whose results it is given. That is the rule
that the helpers of generated files follow (parts.py), and `order_of` says what it leads to, as an order of nodes that the one
simulator judges like any planner's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from remat_codegen.graph.ir import Graph
from remat_codegen.schedule import Schedule, with_forgets

Held = Mapping[int, Collection[int]]


class Keeps(StrEnum):
    """What a part of the table leaves as it is. The words are those that the table has after a slash."""

    NOTHING = ""  # it is rebuilt: neither what autograd saved in it nor its result is kept
    RESULT = "inside"
    SAVED = "result"  # only its result is rebuilt


@dataclass(frozen=True, slots=True)
class Part:
    """The forward nodes `first..last` as one part. `outer` is the index of the part that it stands in, which comes before it.

    A part that is `twice` leaves nothing behind when another part first has it run again for its result; it runs once more for
    whoever needs something of it next. So does a part within a part, for which the outer one's run is the first.

    What a part that is `late` makes is kept at first: each value until a backward node has read it.
    """

    first: int
    last: int
    keeps: Keeps = Keeps.NOTHING
    twice: bool = False
    outer: int | None = None
    late: bool = False

    def __contains__(self, node: int | None) -> bool:
        return node is not None and self.first <= node <= self.last


def check(graph: Graph, parts: Sequence[Part]) -> None:
    """Raises ValueError where parts do not nest, or one of them could not run again."""
    for index, part in enumerate(parts):
        if not 0 <= part.first <= part.last < graph.loss:
            raise ValueError(f"part {index} has no nodes")
        if part.outer is not None and not (part.outer < index and _within(part, parts[part.outer])):
            raise ValueError(f"part {index} does not stand in part {part.outer}")
        fixed = [n.name for n in graph.nodes[part.first : part.last + 1] if not n.recomputable]
        if fixed:
            raise ValueError(f"part {index} holds {fixed[0]}, which runs once")
    for index, part in enumerate(parts):
        for other in parts[:index]:
            apart = part.first > other.last or part.last < other.first
            if not apart and not (_within(part, other) and part.outer is not None):
                raise ValueError(f"part {index} overlaps another one")


def _within(inner: Part, outer: Part) -> bool:
    return outer.first <= inner.first and inner.last <= outer.last


def schedule_of(graph: Graph, parts: Sequence[Part], held: Held | None = None) -> Schedule:
    """The training step with these parts, every value freed as early as it can be.

    `held` are, by forward node, data that variables of the model's own code hold while it runs. So they do when it runs again,
    as far as they were made in the same run; a part's inputs are held until it ends.
    """
    step = _Step(graph, parts, held or {})
    order = step.run()
    return with_forgets(graph, order, step.held_at)


def order_of(graph: Graph, parts: Sequence[Part]) -> tuple[int, ...]:
    """The nodes of a training step with these parts, in the order in which they run."""
    return _Step(graph, parts, {}).run()


def forgotten(graph: Graph, parts: Sequence[Part]) -> frozenset[int]:
    """The data that are not kept between the forward and the backward pass."""
    step = _Step(graph, parts, {})
    return frozenset(step.owner) - step.kept


class _Step:
    """One training step, as parts make it."""

    def __init__(self, graph: Graph, parts: Sequence[Part], held: Held) -> None:
        self.graph, self.parts, self.held = graph, parts, held
        self.last_read = [max((r for r in readers if r > graph.loss), default=-1) for readers in graph.readers]
        self.owner = self._owners()  # by data that is not kept: the part whose run brings it back
        self.own: list[list[int]] = [[] for _ in parts]
        for data, part in self.owner.items():
            self.own[part].append(data)
        self.inputs = [self._inputs(p) for p in parts]
        self.given_to: dict[int, list[int]] = {}  # by data: the parts that are given it
        for index, given in enumerate(self.inputs):
            for data in given:
                self.given_to.setdefault(data, []).append(index)
        self.until = [max((self.last_read[d] for d in own), default=-1) for own in self.own]
        self.done = [False] * len(parts)
        self.passed = [False] * len(parts)
        self.kept = {d for d, part in self.owner.items() if parts[part].late}  # until it is read
        self.made: set[int] = set(self.kept)
        self.order: list[int] = []
        self.held_at: dict[int, Collection[int]] = {}  # by position in the order
        self.now = 0

    # ------------------------------------------------------------------ what is kept

    def _owners(self) -> dict[int, int]:
        """The innermost part that does not keep a value, for all that are not kept."""
        found: dict[int, int] = {}
        for index, part in enumerate(self.parts):  # outer ones come first
            for node in self.graph.nodes[part.first : part.last + 1]:
                found |= {d: index for d in node.writes if self._forgets(part, d)}
                for data in node.writes if part.keeps is Keeps.SAVED else ():
                    if self._saves(part, data):  # whatever a part around it says: who saves it holds it
                        found.pop(data, None)
        return found

    def _saves(self, part: Part, data: int) -> bool:
        """Whether autograd saves a value within a part."""
        return any(self.graph.nodes[r].forward in part for r in self.graph.readers[data] if r > self.graph.loss)

    def _forgets(self, part: Part, data: int) -> bool:
        if data in self.graph.outputs:  # whoever called has it
            return False
        readers = self.graph.readers[data]
        leaves = any(r not in part for r in readers if r <= self.graph.loss)
        leaves = leaves or any(self.graph.nodes[r].forward not in part for r in readers if r > self.graph.loss)
        if part.keeps is Keeps.SAVED:
            return leaves and not self._saves(part, data)
        return part.keeps is Keeps.NOTHING or not leaves

    def _inputs(self, part: Part) -> list[int]:
        """The data that a part reads and does not make."""
        nodes = self.graph.nodes[part.first : part.last + 1]
        made = {d for n in nodes for d in n.writes}
        return sorted({d for n in nodes for d in n.reads} - made)

    # ------------------------------------------------------------------ running

    def run(self) -> tuple[int, ...]:
        """The order of nodes."""
        self.order = list(range(self.graph.loss + 1))
        self.held_at.update(self.held)
        for node in self.graph.backward_nodes:
            self.now = node.id
            for data in node.reads:
                self._demand(data)
            self.order.append(node.id)
            self.made.difference_update(self.kept.intersection(node.reads))
            self.kept.difference_update(node.reads)
        return tuple(self.order)

    def _demand(self, data: int, for_a_part: bool = False) -> None:
        """Has the part run again that makes a value, if that is missing."""
        if data in self.owner and data not in self.made:
            self._again(self.owner[data], data if for_a_part else None)

    def _again(self, index: int, wanted: int | None) -> None:
        """Runs a part again: for autograd, or for another part that is given `wanted`."""
        part = self.parts[index]
        if part.outer is not None and not self.done[part.outer]:
            self._again(part.outer, None)
        passing = wanted is not None and part.twice and not self.passed[index]
        self.passed[index] = True
        for data in self.inputs[index]:
            self._demand(data, for_a_part=True)
        self._run(index, range(part.first, self._end(index, wanted if passing else None)))
        if not passing:
            self.made.update(self.own[index])
            self.kept.difference_update(self.own[index])  # from now on they are like any other part's
            self.done[index] = True

    def _run(self, index: int, nodes: Iterable[int]) -> None:
        """Runs nodes of a part, less those that run once; what it is given and what it makes for variables is held."""
        here = set(self.inputs[index])
        for node in nodes:
            if self.graph.nodes[node].recomputable:
                variables = [d for d in self.held.get(node, ()) if d in here]
                self.held_at[len(self.order)] = [*self.inputs[index], *variables, *self._still_there(index, node)]
                self.order.append(node)
                here.update(self.graph.nodes[node].writes)

    def _still_there(self, index: int, node: int) -> list[int]:
        """What a node makes once more though it was kept, or is another part's to bring back: its readers have that copy."""
        written = (d for d in self.graph.nodes[node].writes if self._is_needed(d))
        return [d for d in written if d not in self.owner or d in self.made]

    def _end(self, index: int, wanted: int | None) -> int:
        """Where a part stops, as soon as all is there that is still needed of it."""
        part = self.parts[index]
        needed = {wanted} if wanted is not None else {d for d in self.own[index] if self._is_needed(d)}
        nodes = (n for n in self.graph.nodes[part.first : part.last + 1] if not needed.isdisjoint(n.writes))
        return max((n.id + 1 for n in nodes), default=part.first)

    def _is_needed(self, data: int) -> bool:
        """Whether a backward node, or a part that has not run again yet, is still to read a value."""
        waiting = (p for p in self.given_to.get(data, ()) if not self.done[p])
        return self.last_read[data] >= self.now or any(self.until[p] >= self.now for p in waiting)
