"""Segments that differ in little share a function.

First forwards: a mark that nobody asks for does nothing, such as a slot whose value is not forgotten, or a place where nobody
waits. Blocks that do the same but for such marks get the marks of each other.

Ways back: where all that happens is that the block runs again first, this may be the rebuild of its own that other blocks of
the kind have for those after them, with a result that nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from remat_codegen.emit.functions import Function, write_function
from remat_codegen.emit.plumbing import Plumbing
from remat_codegen.emit.segments import Role, Segment

MOST_TEXTS = 12  # different functions of one kind of block, up to which pairs are tried
Written = tuple[Segment, Function]
Mark = tuple[str, int, int]  # what is marked, the node's place in its block, and which one of that node's it is


def unite(plumbing: Plumbing, forwards: Sequence[Written]) -> list[Written]:
    """First forward passes, in the same order, as fewer functions: marks that nobody asks for are added to `plumbing`."""
    marked = _Marks(plumbing)
    united = {id(s): f for s, f in forwards}
    for alike in _alike(plumbing, forwards):
        done: list[list[Segment]] = []
        for segments in alike:
            for others in done:
                both = marked.together([*others, *segments])
                if both is not None:
                    others += segments
                    united |= both
                    break
            else:
                done.append(segments)
    return [(s, united[id(s)]) for s, _ in forwards]


def _alike(plumbing: Plumbing, forwards: Sequence[Written]) -> Iterator[list[list[Segment]]]:
    """For each kind of block that runs in a few ways, the segments of each way."""
    kinds: dict[object, dict[object, list[Segment]]] = {}
    for segment, function in forwards:
        ways = kinds.setdefault(_kind(plumbing, segment), {})
        ways.setdefault(function.text, []).append(segment)
    yield from ([*ways.values()] for ways in kinds.values() if 1 < len(ways) <= MOST_TEXTS)


def _kind(plumbing: Plumbing, segment: Segment) -> tuple[str, int]:
    """What segments have in common whose functions may be equal."""
    block = plumbing.program.graph.blocks[segment.block]
    return plumbing.scopes[segment.block].title(), block.last - block.first


def share_rebuilds(plumbing: Plumbing, backwards: Sequence[Written]) -> list[Written]:
    """Ways back, in the same order, in which a block that just runs again first does so by the function that others have."""
    known: dict[tuple[str, int], dict[object, Written]] = {}
    for segment, function in backwards:
        if segment.role is Role.REBUILD:
            known.setdefault(_kind(plumbing, segment), {})[function.text] = segment, function
    found: list[Written] = []
    for segment, function in backwards:
        shared = None
        if segment.role is Role.BACKWARD and function.lines:
            others = known.get(_kind(plumbing, segment), {}).values()
            shared = next((s for other in others if (s := _as_rebuild(plumbing, segment, *other)) is not None), None)
        found += shared or [(segment, function)]
    return found


def _as_rebuild(plumbing: Plumbing, segment: Segment, other: Segment, wanted: Function) -> list[Written] | None:
    """A way back in two segments, of which the first is a rebuild with a function that is known; None where it is not."""
    program = plumbing.program
    parts = program.divided(segment)
    if parts is None:
        return None
    rebuild, rest = parts
    if _computed(plumbing, rebuild) != _computed(plumbing, other) or write_function(plumbing, rest).lines:
        return None
    unread = _unread(plumbing, rebuild, other, wanted)
    if unread is None:
        return None
    before = set(program.unread), set(program.slots)
    program.exchange([segment], parts)
    program.unread |= unread
    program.slots |= {data for data, _ in unread}
    function = write_function(plumbing, rebuild)
    if function.text != wanted.text:
        program.exchange(parts, [segment])
        program.unread, program.slots = before
        return None
    return [(rebuild, function), (rest, replace(function, lines=()))]


def _computed(plumbing: Plumbing, segment: Segment) -> list[int]:
    """The nodes that a segment computes, by their places in the block."""
    first = plumbing.program.graph.blocks[segment.block].first
    return [n.id - first for p in segment.positions if (n := plumbing.program.node_at(p)) is not None]


def _unread(plumbing: Plumbing, rebuild: Segment, other: Segment, wanted: Function) -> set[tuple[int, int]] | None:
    """What a rebuild makes that another one returns, and where; None where autograd may not be done with it."""
    program, bodies = plumbing.program, plumbing.model.bodies
    first, there = (program.graph.blocks[s.block].first for s in (rebuild, other))
    computed = [p for p in rebuild.positions if program.node_at(p) is not None]
    found = set()
    for variable in wanted.returns:
        returned = plumbing.model.data_of[variable]
        if returned is None or plumbing.owner_of[returned] != variable:
            return None
        producer = program.producer[returned]
        values, others = bodies[producer - there + first].values, bodies[producer].values
        if len(values) != len(others) or not _may_be_slot(plumbing, data := values[others.index(returned)]):
            return None
        copies = program.copies[data]
        copy = next((c for c in copies if c.created in rebuild.positions), None)
        if copy is None or copy.forgotten < computed[-1] or any(r > copy.created for c in copies for r in c.readers):
            return None
        found.add((data, copy.created))
    return found


def _may_be_slot(plumbing: Plumbing, data: int) -> bool:
    """Whether a value has a slot, or one would change nothing: it would hold the value until the forward pass ends. Of outputs,
    PyTorch shall go on to notice changes."""
    program = plumbing.program
    alive = program.copies[data][0].forgotten > program.loss_at
    return data in program.slots or (alive and data not in program.graph.outputs)


class _Marks:
    """What is marked in the blocks of a program, by places in the block, so that it can be marked in others."""

    def __init__(self, plumbing: Plumbing) -> None:
        self.plumbing, self.program = plumbing, plumbing.program
        self.sets = {"slot": self.program.slots, "group": self.program.groups, "stop": plumbing.stops}
        back: dict[int, list[int]] = {}
        for node in self.program.graph.backward_nodes:
            if node.forward is not None:
                back.setdefault(node.forward, []).append(node.id)
        self.back = back

    def together(self, segments: Sequence[Segment]) -> dict[int, Function] | None:
        """The functions of segments, all with the marks of all of them; None, and nothing is marked, if they still differ."""
        wanted = set[Mark]().union(*(self._marks(s) for s in segments))
        missing = [self._missing(s, wanted) for s in segments]
        added = {m for some in missing for m in some or ()}
        if None in missing:
            return None
        for kind, which in added:
            self.sets[kind].add(which)
        functions = {id(s): write_function(self.plumbing, s) for s in segments}
        if len({f.text for f in functions.values()}) == 1:
            return functions
        for kind, which in added:
            self.sets[kind].remove(which)
        return None

    def _markable(self, segment: Segment) -> dict[Mark, int]:
        """All that may be marked in a segment's block."""
        block, found = self.program.graph.blocks[segment.block], dict[Mark, int]()
        for node in range(block.first, block.last + 1):
            choices = {"slot": self.plumbing.model.bodies[node].values, "group": (node,), "stop": self.back.get(node, ())}
            found |= {(kind, node - block.first, i): n for kind, some in choices.items() for i, n in enumerate(some)}
        return found

    def _marks(self, segment: Segment) -> set[Mark]:
        return {mark for mark, which in self._markable(segment).items() if which in self.sets[mark[0]]}

    def _missing(self, segment: Segment, wanted: set[Mark]) -> list[tuple[str, int]] | None:
        """The marks that a segment lacks; None where it cannot have one. Of outputs, PyTorch shall go on to notice changes."""
        graph, markable = self.program.graph, self._markable(segment)
        first = graph.blocks[segment.block].first
        missing = []
        for mark in wanted - self._marks(segment):
            which = markable.get(mark)
            node = graph.nodes[min(first + mark[1], graph.loss)]
            if which is None or {*graph.outputs} & {*node.reads, *node.writes}:
                return None
            if mark[0] == "slot" and not _may_be_slot(self.plumbing, which):
                return None
            missing.append((mark[0], which))
        return missing
