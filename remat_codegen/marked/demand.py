"""What a table of parts makes of a training step: which nodes run when, if each part runs again when autograd first misses
something of it.

A *part* is a stretch of the forward pass: a module's call, or an expression. What it does not keep is gone after the forward
pass; when a backward node reads such a value, its part runs again, after the parts whose results it is given. That is the rule
that the helpers of generated files follow (parts.py), and `order_of` says what it leads to, as an order of nodes that the one
simulator judges like any planner's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate

from remat_codegen.graph.ir import Graph, Node, total_bytes
from remat_codegen.marked.states import States
from remat_codegen.schedule import Schedule, with_forgets


@dataclass(frozen=True, slots=True)
class Unread:
    """What autograd has saved in a forward node for a gradient that nobody asks for, while the nodes `during` run: data, and
    bytes beside them. A part that the node is in forgets that at once, unless it is late or keeps anything. Where a node has
    `left` it in an attribute, it is there until that node runs in the next step."""

    node: int
    during: range
    data: tuple[int, ...]
    nbytes: int
    left: int | None = None


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy that autocast makes of a parameter, and keeps while the nodes `during` run. It is there anyway where `data` is,
    which autograd has saved, if it has."""

    during: range
    data: int | None
    nbytes: int


@dataclass(frozen=True, slots=True)
class Held:
    """What is held while a model's own code runs: by forward node, what its variables hold; what is saved for nobody; and what
    attributes of modules hold until the next step, data and, by the node that makes them, bytes beside those. Where parts take
    states of a generator, each of `state_bytes`, `drawing` are the forward nodes that draw from it. `around` are, by forward
    node, what variables hold beside data all the while that it runs: who made it, and bytes, which its workspace has.

    `asked`, by forward node, is what its backward node asks for of what was saved, in this order, and the bytes of gradients
    that it has made by then. `samples` are, by data, the bytes that each place for it has to compare what comes back with.
    `unread_until` are, by forward node, up to which one variables hold what it made and nobody reads. `copied` are autocast's
    copies of parameters."""

    by_variables: Mapping[int, Collection[int]] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()
    left: frozenset[int] = frozenset()
    left_bytes: tuple[tuple[int, int], ...] = ()
    drawing: frozenset[int] = frozenset()
    state_bytes: int = 0
    asked: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    around: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    samples: Mapping[int, int] = field(default_factory=dict)
    unread_until: Mapping[int, int] = field(default_factory=dict)
    copied: tuple[Copied, ...] = ()


class Keeps(StrEnum):
    """What a part of the table leaves as it is. The words are those that the table has after a slash."""

    NOTHING = ""  # it is rebuilt: neither what autograd saved in it nor its result is kept
    RESULT = "inside"
    SAVED = "result"  # only its result is rebuilt

    __hash__ = str.__hash__  # an enumeration's own takes long, and tables are looked up by the thousand


class Again(StrEnum):
    """How often a part runs again. The words are those that the table has after a slash."""

    ONCE = ""
    TWICE = "twice"  # first for one reader of its result alone
    THRICE = "thrice"  # first for two of them, each alone
    FOURFOLD = "fourfold"  # first for three
    SHARED = "shared"  # first for all parts that are given its result

    __hash__ = str.__hash__

    @property
    def spares(self) -> int:
        """The times that it runs again and leaves nothing behind in the end."""
        return {Again.TWICE: 1, Again.THRICE: 2, Again.FOURFOLD: 3, Again.SHARED: 1}.get(self, 0)


@dataclass(frozen=True, slots=True)
class Part:
    """The forward nodes `first..last` as one part. `outer` is the index of the part that it stands in, which comes before it.

    A part that runs again TWICE leaves nothing behind when it first does so for its result, which another part is given or a
    node outside of it has saved; it runs once more for whoever needs something of it next. One that is SHARED does so for parts
    alone, and what it gives is there until all of them have run again. A part within a part runs twice in any case: the outer
    one's run is the first.

    What a part that is `late` makes is kept at first: each value until a backward node has read it. `given` are data that it is
    given, and holds, beside those that its nodes read. Where it is several parts that make one value, the first is given
    `begin`, and `handed_bytes` are there between them, while others run again for the last; what several of them are given is
    `often`, once for each but the first. `unread` are storages that it is given beside that, and holds, each with its bytes.
    """

    first: int
    last: int
    keeps: Keeps = Keeps.NOTHING
    again: Again = Again.ONCE
    outer: int | None = None
    late: bool = False
    given: tuple[int, ...] = ()
    handed_bytes: int = 0
    begin: frozenset[int] = frozenset()
    often: tuple[int, ...] = ()
    unread: tuple[tuple[int, int], ...] = ()

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

    What variables hold in the forward pass they hold when a node runs again, too, as far as it was made in the same run;
    a part's inputs are held until it ends.
    """
    ran = run_of(graph, parts, held)
    return replace(with_forgets(graph, ran.order, ran.held_at), beside_bytes=ran.beside_bytes)


@dataclass(slots=True)
class _Waiting:
    """What a part was given that has not run yet: bytes that are held beside data, where those are made once more meanwhile."""

    data: int | None
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Ran:
    """An order of nodes; by position in it, data that somebody holds while that node runs, and the bytes beside these."""

    order: Sequence[int]
    held_at: Mapping[int, Collection[int]]
    beside_bytes: Mapping[int, int]


def run_of(graph: Graph, parts: Sequence[Part], held: Held | None = None) -> Ran:
    """What runs in a training step with these parts, as `schedule_of` schedules it."""
    return Rule(graph, held).run_of(parts)


def order_of(graph: Graph, parts: Sequence[Part]) -> tuple[int, ...]:
    """The nodes of a training step with these parts, in the order in which they run."""
    return tuple(run_of(graph, parts).order)


def ready_to_run(parts: Iterable[Part]) -> list[int]:
    """The nodes that may have to run again, whether or not they do: those of parts that are late, which wait for that."""
    return [node for part in parts if part.late for node in range(part.first, part.last + 1)]


def forgotten(graph: Graph, parts: Sequence[Part], held: Held | None = None) -> frozenset[int]:
    """The data that are not kept between the forward and the backward pass."""
    rule = Rule(graph, held)
    step = _Step(rule, parts)
    return frozenset(step.owner) - step.kept - rule.theirs


Stretch = tuple[int, int, tuple[int, ...]]  # the first and the last node of a part, and what else it is given
Running = tuple[int, tuple[int, ...], list[int], int]


class Rule:
    """The rule for one graph: what it has to know of nodes and of stretches of them, found once for many tables."""

    def __init__(self, graph: Graph, held: Held | None = None) -> None:
        self.graph, self.held = graph, held or Held()
        self.last_read = [max((r for r in readers if r > graph.loss), default=-1) for readers in graph.readers]
        self.forward_end = [max((r for r in readers if r < graph.loss), default=-1) for readers in graph.readers]
        for node, data in self.held.by_variables.items():
            for d in data:
                self.forward_end[d] = max(self.forward_end[d], node)
        self.backward = [(node, self._asked(node)) for node in graph.backward_nodes]
        self.theirs = {*graph.outputs, *self.held.left}  # whoever called has them, or attributes
        self._inputs: dict[Stretch, list[int]] = {}
        self._nodes: dict[tuple[Stretch, int], list[Running]] = {}
        self._forgotten: dict[tuple[int, int, Keeps], list[int]] = {}

    def run_of(self, parts: Sequence[Part]) -> Ran:
        """What runs in a training step with these parts."""
        step = _Step(self, parts)
        return Ran(step.run(), step.held_at, step.beside)

    def _asked(self, node: Node) -> list[tuple[int, int]]:
        """What a backward node reads, as it asks for it, and the bytes of what it has made by then."""
        known = dict(self.held.asked.get(-1 if node.forward is None else node.forward, ()))
        asked = {**known, **{data: 0 for data in node.reads if data not in known}}
        return [(data, begun) for data, begun in asked.items() if data in node.reads]

    def inputs(self, part: Part) -> list[int]:
        """The data that a part is given: what it reads and does not make, and what else is handed in with that."""
        stretch = part.first, part.last, part.given
        if stretch not in self._inputs:
            nodes = self.graph.nodes[part.first : part.last + 1]
            made = {d for n in nodes for d in n.writes}
            self._inputs[stretch] = sorted({d for n in nodes for d in n.reads}.union(part.given) - made)
        return self._inputs[stretch]

    def nodes(self, part: Part, end: int) -> list[Running]:
        """The nodes of a part before `end` that can run again, each with what it writes, and with what is held while it runs:
        what the part is given, what it made before for variables, what of that it will give, and what would be read from `end`
        on, had it not stopped there; and the bytes that variables around the part held when it first ran."""
        key = (part.first, part.last, part.given), end
        if key not in self._nodes:
            inputs, found = self.inputs(part), list[Running]()
            here = set(inputs)
            given = list[int]()
            for node in self.graph.nodes[part.first : end]:
                if node.recomputable:
                    held = self.held.by_variables.get(node.id, ())
                    gone = sum(nbytes for maker, nbytes in self.held.around.get(node.id, ()) if maker < part.first)
                    found.append((node.id, node.writes, [*inputs, *(d for d in held if d in here), *given], gone))
                    here.update(node.writes)
                    given += [d for d in node.writes if self.forward_end[d] >= end or d in self.graph.outputs]
            self._nodes[key] = found
        return self._nodes[key]

    def forgets(self, part: Part) -> list[int]:
        """What a part does not keep of what it makes."""
        key = part.first, part.last, part.keeps
        if key not in self._forgotten:
            nodes = self.graph.nodes[part.first : part.last + 1]
            self._forgotten[key] = [d for n in nodes for d in n.writes if self._forgets(part, d)]
        return self._forgotten[key]

    def saves(self, part: Part, data: int) -> bool:
        """Whether autograd saves a value within a part."""
        return any(self.graph.nodes[r].forward in part for r in self.graph.readers[data] if r > self.graph.loss)

    def leaves(self, part: Part, data: int) -> bool:
        """Whether anyone outside of a part reads a value, or has it saved."""
        nodes, loss = self.graph.nodes, self.graph.loss
        return any((r if r <= loss else nodes[r].forward) not in part for r in self.graph.readers[data])

    def _forgets(self, part: Part, data: int) -> bool:
        leaves = self.leaves(part, data)
        if part.keeps is Keeps.SAVED:
            return leaves and not self.saves(part, data)
        return part.keeps is Keeps.NOTHING or not leaves


class _Step:
    """One training step, as parts make it."""

    def __init__(self, rule: Rule, parts: Sequence[Part]) -> None:
        self.rule, self.graph, self.parts, self.last_read = rule, rule.graph, parts, rule.last_read
        self.owner = self._owners()  # by data that is not kept: the part whose run brings it back
        self.own: list[list[int]] = [[] for _ in parts]
        for data, part in self.owner.items():
            self.own[part].append(data)
        self.inputs = list(map(rule.inputs, parts))
        self.given_to: dict[int, list[int]] = {}  # by data: the parts that are given it
        for index, given in enumerate(self.inputs):
            for data in given:
                self.given_to.setdefault(data, []).append(index)
        self.lender = self._lenders()  # by data: who gives it to those outside of which part
        self.lends: list[list[int]] = [[] for _ in parts]
        for data, (_, part) in self.lender.items():
            self.lends[part].append(data)
        self.lent: set[int] = set()  # what is there for those outside of a lender alone
        self.apart: set[int] = set()  # of that: what parts hold as it was, when it has been made once more
        self.within: dict[int, list[int]] = {}  # by part: those that stand in it
        for index, outer in enumerate(p.outer for p in parts):
            if outer is not None:
                self.within.setdefault(outer, []).append(index)
        self.kept_in = self._kept_within()
        self.plain = self._given_plainly()
        self.until = [-1] * len(parts)  # by part: the last backward node that something of it is read for
        for node, _ in rule.backward if self.kept_in else ():
            if node.forward in self.kept_in:
                self.until[self.kept_in[node.forward]] = node.id
        self.shown = self.owner.keys() & self.graph.outputs  # of what parts make once more: what others than the step hold, too
        self.copied: set[int] = set()  # of that, what has been made once more
        for index in range(len(parts) - 1, -1, -1):
            readers = [self.until[p] for d in self.own[index] for p in self.given_to.get(d, ())]
            readers += [self.until[p] for p in self.within.get(index, ())]  # which run again after it
            own = (*self.own[index], *self.lends[index])
            self.until[index] = max([self.until[index], *readers, *(self.last_read[d] for d in own)])
        self.done = [False] * len(parts)
        self.spares = [p.again.spares if p.outer is None else 0 for p in parts]  # within another, it runs twice anyway
        self.shared: set[int] = set()  # what is there for the parts that are given it, and goes after the last of them
        self.kept = {d for index, part in enumerate(parts) if part.late for d in self.own[index]}  # until it is read
        self.made: set[int] = set(self.kept)
        self.order: list[int] = []
        self.held_at: dict[int, Collection[int]] = {}  # by position in the order
        self.beside: dict[int, int] = {}  # by position in the order: bytes of what a run finds beside the data that are alive
        self.now = 0
        self.taken: list[int] = []  # what parts were given that ran again for others' sake, until the next node runs
        self.begun = 0  # bytes of what the backward node that runs now has made before it asks for anything
        self.reading: set[int] = set()  # the first values that it reads
        self.passed: set[int] = set()  # what it has got of parts that ran again for that alone
        self.passing: list[int] = []  # these parts, and those that ran for them
        self.ends: list[int] = []  # by part: what `_there` says, once it was asked
        self.left: set[int] = set()  # what is there until the next step has something else in its place; bytes beside that
        self.left_bytes = 0
        self.steps = [0] * (self.graph.loss + 2)  # by forward node: by how much bytes grow that are held beside data
        self.second = 0  # bytes of those that were made once more since it may have read them: it has both
        self.waiting: list[_Waiting] = []
        self.states = States(parts, self.within, rule.held.drawing, rule.held.state_bytes)

    def _owners(self) -> dict[int, int]:
        """The innermost part that does not keep a value, for all that are not kept."""
        found: dict[int, int] = {}
        for index, part in enumerate(self.parts):  # outer ones come first
            found.update(dict.fromkeys(self.rule.forgets(part), index))
            for node in self.graph.nodes[part.first : part.last + 1] if part.keeps is Keeps.SAVED else ():
                for data in node.writes:
                    if self.rule.saves(part, data):  # whatever a part around it says: who saves it holds it
                        found.pop(data, None)
        return found

    def _lenders(self) -> dict[int, tuple[int, int]]:
        """By data of a part within another one: a part around it, and the one that gives the value to all outside of that.

        That is the outermost one that the value leaves, if it does not keep its result. Where a part between two others keeps
        it, the inner one's values are like any other tensors when the outer one runs again: parts in there hold them.
        """
        found: dict[int, tuple[int, int]] = {}
        for data, owner in self.owner.items():
            index = self.parts[owner].outer
            while index is not None and not (part := self.parts[index]).late and self.rule.leaves(part, data):
                if part.keeps is not Keeps.RESULT:
                    found[data] = index, index
                elif part.outer is not None:
                    found[data] = index, part.outer
                index = part.outer
        return found

    def _given_plainly(self) -> dict[int, list[tuple[int, int]]]:
        """By data that parts are given which stand in one that keeps its result, within another: those parts, each with that
        other one. When that runs again, they hold the value itself until they do, too."""
        found: dict[int, list[tuple[int, int]]] = {}
        for index, part in enumerate(self.parts):
            middle = self.parts[part.outer] if part.outer is not None else None
            if middle is not None and middle.outer is not None and middle.keeps is Keeps.RESULT:
                for data in (d for d in self.inputs[index] if self.owner.get(d) == part.outer):
                    found.setdefault(data, []).append((index, middle.outer))
        return found

    def _kept_within(self) -> dict[int, int]:
        """By forward node: the part within another one that keeps what the node gives, and in which autograd has saved that.
        Who else reads it has it from the run of the part around; what was saved here is missed all the same."""
        inner = [(i, p) for i, p in enumerate(self.parts) if p.outer is not None and p.keeps is Keeps.RESULT]
        nodes = ((i, p, node) for i, p in inner for node in self.graph.nodes[p.first : p.last + 1])
        return {n.id: i for i, p, n in nodes if any(self.owner.get(d) != i and self.rule.saves(p, d) for d in n.writes)}

    # ------------------------------------------------------------------ running

    def run(self) -> list[int]:
        """The order of nodes."""
        self.order = list(range(self.graph.loss + 1))
        self.held_at.update(self.rule.held.by_variables)
        self._hold_for_nobody()
        owner, made, order = self.owner, self.made, self.order
        for node, asked in self.rule.backward:
            self.now, self.second, self.passed, self.passing = node.id, 0, set(), []
            if self.shared:
                self._pass_on([*self.shared])
            self.reading = self.kept.intersection(node.reads) if self.kept else set()
            for data, self.begun in asked:
                if data in owner and (data not in made or data in self.lent):
                    self._demand(data, node.forward, for_a_part=False)
            if self.kept_in and node.forward in self.kept_in:
                self._again_within(self.kept_in[node.forward], node, dict(asked))
            if self.second or self.apart or self.copied:
                self.beside[len(order)] = self.second + total_bytes(self.graph, self.apart | self.copied)
                self.copied = {d for d in self.copied if d in made and self._is_needed(d, node.id + 1)}
            if self.kept and (read := self.kept.intersection(node.reads)):
                self.held_at[len(order)] = self._ready_to_run(read)
                made -= read
                self.kept -= read
            passing = [part for part in self.passing if not self.done[part]] if self.passing else ()
            given = [d for part in passing for d in self.inputs[part] if d not in owner or d in made] if passing else ()
            if self.shared or given:  # a part that ran for this node alone does not know yet that it was the last
                self.held_at[len(order)] = [*self.held_at.get(len(order), ()), *self.shared, *given]
            order.append(node.id)
        where = {node: position for position, node in enumerate(order) if node > self.graph.loss}
        self._hold_states(where)
        self._hold_samples(where)
        self._hold_given()
        self._hold_beside()
        return order

    def _hold_for_nobody(self) -> None:
        """Holds what attributes have, what is saved for nobody, where no part forgets it, and what parts are given of which
        nothing will be missed: as long as what they give is there. What late parts give to others is there all the while."""
        for data in self.rule.held.left:
            node, nbytes = self.graph.producers[data][0], self.graph.data[data].nbytes
            if data in self.owner:  # what is made again is another one
                self._hold(range(self.rule.forward_end[data] + 1, self.graph.loss + 1), (), nbytes)
                self._leave(node, (), nbytes)
            else:
                self._leave(node, [data], 0)
        for node, nbytes in self.rule.held.left_bytes:
            self._hold(range(node + 1, self.graph.loss + 1), (), nbytes)
            self._leave(node, (), nbytes)
        for unread in self.rule.held.unread:
            if not self._forgets(unread.node):
                self._hold(unread.during, unread.data, unread.nbytes)
                if unread.left is not None:
                    self._leave(unread.left, unread.data, unread.nbytes)
        for copy in self.rule.held.copied:
            if copy.data is None or (copy.data in self.owner and copy.data not in self.kept):
                self._hold(copy.during, (), copy.nbytes)
        for index, part in enumerate(self.parts):
            if part.late:
                self._hold(range(part.last + 1, self.graph.loss), [d for d in self.own[index] if d in self.given_to])
            if self.until[index] < 0 and part.late:  # its values are kept for whoever may save them
                self._hold(range(part.last + 1, self.graph.loss + 1), [*self.inputs[index], *self.own[index]])
            elif self.until[index] < 0:
                lefts = (u.left for u in self.rule.held.unread if u.node in part)
                self.left.update(self.inputs[index] if any(left is not None for left in lefts) else ())
                self._hold(range(part.last + 1, self._there(index)), self.inputs[index])

    def _there(self, index: int) -> int:
        """By which forward node there is nothing of a part that nothing is missed of: neither a value nor what autograd has,
        nor a part that is given a value of it, and would have it run again."""
        if not self.ends:
            self.ends = [0] * len(self.parts)
            for number in range(len(self.parts) - 1, -1, -1):  # who is given something comes after who makes it
                self.ends[number] = self._end_there(number)
        return self.ends[index]

    def _end_there(self, index: int) -> int:
        held, part = self.rule.held, self.parts[index]
        if part.late:
            return self.graph.loss + 1
        ends = [self.rule.forward_end[d] + 1 for d in self.own[index]]
        ends += [self.ends[p] for d in self.own[index] for p in self.given_to.get(d, ())]
        if part.keeps is not Keeps.RESULT:  # else it has let go of what it needs
            ends += [held.unread_until.get(node, -1) + 1 for node in range(part.first, part.last + 1)]
        return max([0, *ends, *(u.during.stop for u in held.unread if u.node in part)])

    def _leave(self, node: int, data: Collection[int], nbytes: int) -> None:
        """Holds what a node leaves until it runs in the next step."""
        self.left.update(data)
        self.left_bytes += nbytes
        self.steps[0] += nbytes + total_bytes(self.graph, data)
        self.steps[node + 1] -= nbytes + total_bytes(self.graph, data)

    def _hold(self, during: range, data: Collection[int], nbytes: int = 0) -> None:
        """Holds data while forward nodes run, the last of which is enough to say, and bytes beside them."""
        if during:
            self.held_at[during[-1]] = [*self.held_at.get(during[-1], ()), *data]
            self.steps[during.start] += nbytes
            self.steps[during.stop] -= nbytes

    def _hold_beside(self) -> None:
        """Counts the bytes beside data that nodes of the forward pass hold, and those that are there to the end."""
        for position, nbytes in enumerate(accumulate(self.steps[: self.graph.loss + 1])):
            if nbytes:
                self.beside[position] = self.beside.get(position, 0) + nbytes
        for position in range(self.graph.loss + 1, len(self.order)) if self.left_bytes else ():
            self.beside[position] = self.beside.get(position, 0) + self.left_bytes
        self.held_at[len(self.order) - 1] = [*self.held_at.get(len(self.order) - 1, ()), *self.left]

    def _hold_samples(self, where: Mapping[int, int]) -> None:
        """Holds what the places of values have to compare with, kept or not, from the first run on until the last of them is
        read: one place for each that saves it in the part, and one for the part's result where that is not kept."""
        more, nodes, leaves = [0] * (len(self.order) + 1), self.graph.nodes, self.rule.leaves
        innermost = {n: part for part in self.parts for n in range(part.first, part.last + 1)} if self.rule.held.samples else {}
        for node, part in innermost.items():
            for data in nodes[node].writes:
                saved = sum(nodes[r].forward in part for r in self.graph.readers[data] if r > self.graph.loss)
                places = saved + (part.keeps is not Keeps.RESULT and leaves(part, data))
                more[node] += places * self.rule.held.samples.get(data, 0)
                more[where.get(self.last_read[data], self.graph.loss) + 1] -= places * self.rule.held.samples.get(data, 0)
        for position, nbytes in enumerate(accumulate(more[:-1])):
            if nbytes:
                self.beside[position] = self.beside.get(position, 0) + nbytes

    def _hold_given(self) -> None:
        """Holds what parts are given that nobody reads, until the last of them has run again. One in another part holds
        nothing."""
        giving = [part for part in self.parts if part.unread and part.outer is None]
        last_run = {node: position for position, node in enumerate(self.order)} if giving else {}
        held: dict[tuple[int, int], set[int]] = {}
        for part in giving:
            end = max(last_run[node] for node in range(part.first, part.last + 1))
            for unread in part.unread:
                held.setdefault(unread, set()).update(range(part.last + 1, max(end, self.graph.loss) + 1))
        for (_, nbytes), positions in held.items():
            for position in positions:
                self.beside[position] = self.beside.get(position, 0) + nbytes

    def _hold_states(self, where: Mapping[int, int]) -> None:
        """Holds generator states, those of parts that did not run again until nothing of theirs is read any more."""
        if not self.states.draws:
            return
        loss = self.graph.loss
        for index in range(len(self.parts)):
            if self.until[index] > loss:
                self.states.let_go(index, where[self.until[index]] + 1)
            else:
                self.states.let_go(index, self._there(index))
        for position, nbytes in self.states.held(len(self.order)).items():
            self.beside[position] = self.beside.get(position, 0) + nbytes

    def _forgets(self, node: int) -> bool:
        """Whether a part forgets what autograd saves in a node: one that keeps its result keeps that there, too."""
        part = next((part for part in reversed(self.parts) if node in part), None)
        return part is not None and part.keeps is Keeps.NOTHING and not part.late

    def _ready_to_run(self, data: Iterable[int]) -> list[int]:
        """What parts are given that have made these values and may have to run again yet, and those that would have to run
        before them: as long as a place waits for them."""
        found: dict[int, None] = {}
        parts = {self.owner[d] for d in data}
        pending = [*parts]
        while pending:
            part = pending.pop()
            for d in self.inputs[part] if not self.done[part] else ():
                if d not in self.owner or d in self.made:
                    found[d] = None
                if (owner := self.owner.get(d, part)) not in parts:
                    parts.add(owner)
                    pending.append(owner)
        return [*found]

    def _is_spared(self, data: int) -> bool:
        """Whether the part that brings a value back would do so for one reader, or for parts, alone."""
        return self.spares[self.owner[data]] > 0

    def _demand(self, data: int, reader: int | None, for_a_part: bool) -> None:
        """Has the part run again that makes a value for a forward node, if that is missing. It may do so for that value alone
        where that is lent: to another part, or to what saved it outside."""
        if data not in self.owner:
            return
        index = self._who_gives(data, reader, for_a_part) if data in self.lender else self.owner[data]
        if data not in self.made or (data in self.lent and index == self.owner[data]):
            shared = self.parts[index].again is Again.SHARED
            around, lender = self.lender.get(data, (index, index))
            alone = (for_a_part or reader not in self.parts[index]) and (around == lender or index != lender)
            self._again(index, data if alone and (for_a_part or not shared) else None)
            if not for_a_part and data not in self.made:
                self.passed.add(data)

    def _who_gives(self, data: int, reader: int | None, for_a_part: bool) -> int:
        """The part that a forward node has a value from which is not kept, and which is lent."""
        around, lender = self.lender[data]
        has_it = reader not in self.parts[around] and (for_a_part or around == lender)
        return lender if has_it else self.owner[data]

    def _again(self, index: int, wanted: int | None) -> None:
        """Runs a part again: for what autograd saved in it, or for `wanted`."""
        part = self.parts[index]
        if part.outer is not None and not self.done[part.outer]:
            self._again(part.outer, None)
        passing = wanted is not None and self.spares[index] > 0
        self.spares[index] -= passing
        self.passing += [index] if passing else []
        forgotten = [d for d in self.inputs[index] if d in self.owner]
        before = len(self.waiting)
        if len(forgotten) > 1:
            forgotten.sort(key=self._is_spared)  # those last, which could go again meanwhile
        for data in forgotten:
            handed = part.handed_bytes if data not in part.begin else 0
            self.waiting.append(_Waiting(None, handed))
            for _ in range(1 + part.often.count(data)):
                self._demand(data, part.first, for_a_part=True)
            self.waiting.pop()
            self.waiting += [_Waiting(data)] if data not in self.made or data in self.shared else []
        position = len(self.order)
        self._run(index, self._end(index, wanted if passing else None))
        del self.waiting[before:]
        self.states.run(index, position, self.order[position:], passing)
        if not passing:
            own = self.own[index]
            self.made.update(own)
            self.lent.difference_update(own)
            lent = [d for d in self.lends[index] if d not in self.made or d in self.shared]
            self.made.update(lent)
            self.lent.update(lent)
            if self.reading:
                again = self.reading.intersection(own)
                self.reading -= again
                self.second += total_bytes(self.graph, again)
            self.kept.difference_update(own)  # from now on they are like any other part's
            self.shared.difference_update(own, lent)
            self.done[index] = True
            if self.apart:
                self.apart = {d for d in self.apart if self._is_held_apart(d)}
            self.states.let_go(index, len(self.order))
            if self.shared:
                self._pass_on(self.shared.intersection(self.inputs[index]))
        elif wanted is not None and part.again is Again.SHARED:
            self.made.add(wanted)
            self.shared.add(wanted)

    def _is_held_apart(self, data: int) -> bool:
        """Whether a part that did not run again yet holds a value itself that is another part's to bring back for others."""
        if data in self.plain:
            return any(not self.done[p] and self.until[p] >= self.now for p, _ in self.plain[data])
        around, lender = self.lender[data]
        given = (p for p in self.given_to.get(data, ()) if self.parts[p].first not in self.parts[around])
        return around != lender and any(not self.done[p] and self.until[p] >= self.now for p in given)

    def _again_within(self, index: int, reader: Node, asked: Mapping[int, int]) -> None:
        """Runs a part within another one again, for what it gives: that is there, but not where autograd has saved it here."""
        forward = reader.forward
        assert forward is not None
        made = set(self.graph.nodes[forward].writes).intersection(reader.reads)
        theirs = (d for d in made if d in self.rule.theirs or self.last_read[d] > reader.id)
        self.second += total_bytes(self.graph, theirs)
        self.begun = max((asked[d] for d in made), default=0)
        if self.done[index]:
            return
        if self.own[index]:
            return self._again(index, None)
        for data in self.inputs[index]:
            self._demand(data, forward, for_a_part=True)
        self._run(index, forward + 1)
        self.done[index] = True

    def _pass_on(self, shared: Collection[int]) -> None:
        """Lets go of what was there for parts alone, where all that are given it ran again, or nothing of theirs is missed."""
        for data in shared:
            if all(self.done[p] or self.until[p] < self.now for p in self.given_to[data]):
                self.shared.discard(data)
                self.made.discard(data)

    def _run(self, index: int, end: int) -> None:
        """Runs the nodes of a part before `end`, less those that run once; what it is given and what it makes for variables is
        held."""
        running = self.rule.nodes(self.parts[index], end)
        if not running:  # it only hands something on to a part within it
            self.taken += self.inputs[index]
        if self.kept:
            self.taken += self._ready_to_run(self.kept.intersection(self.inputs[index]))
        owner, made, order, twins = self.owner, self.made, self.order, set[int]()
        waiting = {given.data for given in self.waiting}
        for node, writes, held, gone in running:
            # what it makes once more though it was kept, or is another part's to bring back: its readers have that copy
            there = [d for d in writes if (d not in owner or d in made) and self._is_there(d) and d not in waiting]
            if twins:
                needed = {d for n, *_ in running if n >= node for d in self.graph.nodes[n].reads}
                twins &= needed.union(held)
            for given in self.waiting:  # for another part, beside what is made here
                given.nbytes = self.graph.data[given.data].nbytes if given.data in writes else given.nbytes
            if self.lent:
                self.apart.update(d for d in self.lent.intersection(writes) if self._is_held_apart(d))
            if self.passed:  # the reader has what it got, and others have another one
                self.second += total_bytes(self.graph, self.passed.intersection(writes))
                self.passed.difference_update(writes)
            if gone or twins or self.begun or self.second or self.waiting or self.apart or self.copied:
                more = total_bytes(self.graph, twins | self.apart | self.copied) - gone
                self.beside[len(order)] = self.begun + self.second + sum(w.nbytes for w in self.waiting) + more
            self.held_at[len(order)] = [*held, *there, *self.taken] if there or self.taken else held
            self.taken = []
            order.append(node)
            if self.plain:
                plainly = (d for d in writes if any(outer == index for _, outer in self.plain.get(d, ())))
                self.apart.update(filter(self._is_held_apart, plainly))
            if there:
                twins.update(there)
            if self.shown:
                self.copied.update(self.shown.intersection(writes))

    def _is_there(self, data: int) -> bool:
        return data in self.rule.theirs or self._is_needed(data)

    def _end(self, index: int, wanted: int | None) -> int:
        """Where a part stops: as soon as all is there that is still needed of it, and it came to each part in it that waits.
        For `wanted` alone, it runs to its end."""
        part, nodes = self.parts[index], self.graph.nodes
        if wanted is not None:
            return part.last + 1
        inner = [p for p in self.within.get(index, ()) if not self.done[p] and self.until[p] >= self.now]
        least = max([part.first, *(self.parts[p].first for p in inner)])
        for node in range(part.last, least - 1, -1):
            for data in nodes[node].writes:
                if self._waited_for(data, index):
                    return node + 1
        return least

    def _waited_for(self, data: int, index: int) -> bool:
        gives = self.owner.get(data) == index or data in self.lends[index]
        return gives and data not in self.shared and self._is_needed(data)

    def _is_needed(self, data: int, now: int | None = None) -> bool:
        """Whether a backward node, or a part that has not run again yet, is still to read a value."""
        now = self.now if now is None else now
        if self.last_read[data] >= now:
            return True
        return any(self.until[p] >= now and not self.done[p] for p in self.given_to.get(data, ()))
