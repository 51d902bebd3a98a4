"""What a table of parts makes of a training step: which nodes run when, if each part runs again when autograd first misses
something of it.

A *part* is a stretch of the forward pass: a module's call, or an expression. What it does not keep is gone after the forward
pass; when a backward node reads such a value, its part runs again, after the parts whose results it is given. That is the rule
that the helpers of generated files follow (parts.py), and `order_of` says what it leads to, as an order of nodes that the one
simulator judges like any planner's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from remat_codegen.graph.ir import Graph, Kind, Node, total_bytes
from remat_codegen.schedule import Schedule, with_forgets

Held = Mapping[int, Collection[int]]


class Keeps(StrEnum):
    """What a part of the table leaves as it is. The words are those that the table has after a slash."""

    NOTHING = ""  # it is rebuilt: neither what autograd saved in it nor its result is kept
    RESULT = "inside"
    SAVED = "result"  # only its result is rebuilt


class Again(StrEnum):
    """How often a part runs again. The words are those that the table has after a slash."""

    ONCE = ""
    TWICE = "twice"  # first for one reader of its result alone
    THRICE = "thrice"  # first for two of them, each alone
    SHARED = "shared"  # first for all parts that are given its result

    @property
    def spares(self) -> int:
        """The times that it runs again and leaves nothing behind in the end."""
        return {Again.TWICE: 1, Again.THRICE: 2, Again.SHARED: 1}.get(self, 0)


@dataclass(frozen=True, slots=True)
class Part:
    """The forward nodes `first..last` as one part. `outer` is the index of the part that it stands in, which comes before it.

    A part that runs again TWICE leaves nothing behind when it first does so for its result, which another part is given or a
    node outside of it has saved; it runs once more for whoever needs something of it next. One that is SHARED does so for parts
    alone, and what it gives is there until all of them have run again. A part within a part runs twice in any case: the outer
    one's run is the first.

    What a part that is `late` makes is kept at first: each value until a backward node has read it.
    """

    first: int
    last: int
    keeps: Keeps = Keeps.NOTHING
    again: Again = Again.ONCE
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
    ran = run_of(graph, parts, held)
    return replace(with_forgets(graph, ran.order, ran.held_at), beside_bytes=ran.beside_bytes)


@dataclass(frozen=True, slots=True)
class Ran:
    """An order of nodes; by position in it, data that somebody holds while that node runs, and the bytes beside these."""

    order: tuple[int, ...]
    held_at: Mapping[int, Collection[int]]
    beside_bytes: Mapping[int, int]


def run_of(graph: Graph, parts: Sequence[Part], held: Held | None = None) -> Ran:
    """What runs in a training step with these parts, as `schedule_of` schedules it."""
    step = _Step(graph, parts, held or {})
    return Ran(step.run(), step.held_at, step.beside)


def order_of(graph: Graph, parts: Sequence[Part]) -> tuple[int, ...]:
    """The nodes of a training step with these parts, in the order in which they run."""
    return _Step(graph, parts, {}).run()


def ready_to_run(parts: Iterable[Part]) -> list[int]:
    """The nodes that may have to run again, whether or not they do: those of parts that are late, which wait for that."""
    return [node for part in parts if part.late for node in range(part.first, part.last + 1)]


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
        self.spares = [p.again.spares if p.outer is None else 0 for p in parts]  # within another, it runs twice anyway
        self.shared: set[int] = set()  # what is there for the parts that are given it, and goes after the last of them
        self.kept = {d for d, part in self.owner.items() if parts[part].late}  # until it is read
        self.made: set[int] = set(self.kept)
        self.order: list[int] = []
        self.held_at: dict[int, Collection[int]] = {}  # by position in the order
        self.beside: dict[int, int] = {}  # by position in the order: bytes of what a run finds beside the data that are alive
        self.now = 0
        self.taken: list[int] = []  # what parts were given that ran again for others' sake, until the next node runs
        self.begun = 0  # bytes of what the backward node that runs now has made before it asks for anything

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
            self.now, self.begun = node.id, self._begun(node)
            for data in node.reads:
                self._demand(data, alone=node.forward not in self._part_of(data), for_a_part=False)
            self.held_at[len(self.order)] = self._ready_to_run(self.kept.intersection(node.reads))
            self.order.append(node.id)
            self.made.difference_update(self.kept.intersection(node.reads))
            self.kept.difference_update(node.reads)
        return tuple(self.order)

    def _begun(self, node: Node) -> int:
        """Bytes of the gradient of a whole value, which comes first where only that of a slice of it comes back."""
        made = self.graph.nodes[node.forward].writes if node.forward is not None else ()
        whole = total_bytes(self.graph, (d for d in made if self.graph.data[d].kind is Kind.VALUE))
        came = total_bytes(self.graph, (d for d in node.reads if self.graph.data[d].kind is Kind.GRADIENT))
        return max(0, whole - came) if came else 0

    def _ready_to_run(self, data: Iterable[int]) -> list[int]:
        """What parts are given that have made these values and may have to run again yet: as long as a place waits for them."""
        parts = {self.owner[d] for d in data}
        given = (d for part in parts if not self.done[part] for d in self.inputs[part])
        return [d for d in given if d not in self.owner or d in self.kept]

    def _part_of(self, data: int) -> Part | range:
        """The part that brings a value back; nothing where it is kept."""
        return self.parts[self.owner[data]] if data in self.owner else range(0)

    def _is_spared(self, data: int) -> bool:
        """Whether the part that brings a value back would do so for one reader, or for parts, alone."""
        return data in self.owner and self.spares[self.owner[data]] > 0

    def _demand(self, data: int, alone: bool, for_a_part: bool) -> None:
        """Has the part run again that makes a value, if that is missing. It may do so for that value alone where that is lent:
        to another part, or to what saved it outside."""
        if data in self.owner and data not in self.made:
            index = self.owner[data]
            shared = self.parts[index].again is Again.SHARED
            self._again(index, data if alone and (for_a_part or not shared) else None)

    def _again(self, index: int, wanted: int | None) -> None:
        """Runs a part again: for what autograd saved in it, or for `wanted`."""
        part = self.parts[index]
        if part.outer is not None and not self.done[part.outer]:
            self._again(part.outer, None)
        passing = wanted is not None and self.spares[index] > 0
        self.spares[index] -= passing
        for data in sorted(self.inputs[index], key=self._is_spared):  # those last, which could go again meanwhile
            self._demand(data, alone=True, for_a_part=True)
        self._run(index, range(part.first, self._end(index, wanted if passing else None)))
        if not passing:
            self.made.update(self.own[index])
            self.kept.difference_update(self.own[index])  # from now on they are like any other part's
            self.shared.difference_update(self.own[index])
            self.done[index] = True
            self._pass_on(index)
        elif wanted is not None and part.again is Again.SHARED:
            self.made.add(wanted)
            self.shared.add(wanted)

    def _pass_on(self, index: int) -> None:
        """Lets go of what was there for this part, the last of those that are given it."""
        for data in self.shared.intersection(self.inputs[index]):
            if all(self.done[p] or not self.own[p] for p in self.given_to[data]):
                self.shared.discard(data)
                self.made.discard(data)

    def _run(self, index: int, nodes: Iterable[int]) -> None:
        """Runs nodes of a part, less those that run once; what it is given and what it makes for variables is held."""
        running = [n for n in nodes if self.graph.nodes[n].recomputable]
        last_use = {d: n for n in running for d in self.graph.nodes[n].reads}
        here, twins = set(self.inputs[index]), set[int]()
        if not running:  # it only hands something on to a part within it
            self.taken += self.inputs[index]
        for node in running:
            variables = [d for d in self.held.get(node, ()) if d in here]
            there = self._still_there(index, node)
            twins = {d for d in twins if last_use.get(d, -1) >= node or d in variables}
            if twins or self.begun:
                self.beside[len(self.order)] = self.begun + total_bytes(self.graph, twins)
            self.held_at[len(self.order)] = [*self.inputs[index], *variables, *there, *self.taken]
            self.taken = []
            self.order.append(node)
            here.update(self.graph.nodes[node].writes)
            twins.update(there)

    def _still_there(self, index: int, node: int) -> list[int]:
        """What a node makes once more though it was kept, or is another part's to bring back: its readers have that copy."""
        written = (d for d in self.graph.nodes[node].writes if self._is_needed(d))
        return [d for d in written if d not in self.owner or d in self.made]

    def _end(self, index: int, wanted: int | None) -> int:
        """Where a part stops, as soon as all is there that is still needed of it."""
        part = self.parts[index]
        needed = {wanted} if wanted is not None else {d for d in self.own[index] if self._is_needed(d) and d not in self.shared}
        nodes = (n for n in self.graph.nodes[part.first : part.last + 1] if not needed.isdisjoint(n.writes))
        return max((n.id + 1 for n in nodes), default=part.first)

    def _is_needed(self, data: int) -> bool:
        """Whether a backward node, or a part that has not run again yet, is still to read a value."""
        waiting = (p for p in self.given_to.get(data, ()) if not self.done[p])
        return self.last_read[data] >= self.now or any(self.until[p] >= self.now for p in waiting)
