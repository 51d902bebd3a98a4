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
from remat_codegen.emit.linkage import Linkage
from remat_codegen.emit.segments import Role, Segment

MOST_TEXTS = 12  # different functions of one kind of block, up to which pairs are tried
Written = tuple[Segment, Function]
Mark = tuple[str, int, int]  # what is marked, the node's place in its block, and which one of that node's it is


def unite(linkage: Linkage, forwards: Sequence[Written]) -> list[Written]:
    """First forward passes, in the same order, as fewer functions: marks that nobody asks for are added to `linkage`."""
    marked = _Marks(linkage)
    united = {id(s): f for s, f in forwards}
    for alike in _alike(linkage, forwards):
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


def _alike(linkage: Linkage, forwards: Sequence[Written]) -> Iterator[list[list[Segment]]]:
    """For each kind of block that runs in a few ways, the segments of each way."""
    kinds: dict[object, dict[object, list[Segment]]] = {}
    for segment, function in forwards:
        ways = kinds.setdefault(_kind(linkage, segment), {})
        ways.setdefault(function.text, []).append(segment)
    yield from ([*ways.values()] for ways in kinds.values() if 1 < len(ways) <= MOST_TEXTS)


def _kind(linkage: Linkage, segment: Segment) -> tuple[str, int]:
    """What segments have in common whose functions may be equal."""
    block = linkage.program.graph.blocks[segment.block]
    return linkage.scopes[segment.block].title(), block.last - block.first


def share_rebuilds(linkage: Linkage, backwards: Sequence[Written]) -> list[Written]:
    """Ways back, in the same order, in which a block that just runs again first does so by the function that others have."""
    known: dict[tuple[str, int], dict[object, Written]] = {}
    for segment, function in backwards:
        if segment.role is Role.REBUILD:
            known.setdefault(_kind(linkage, segment), {})[function.text] = segment, function
    found: list[Written] = []
    for segment, function in backwards:
        shared = None
        if segment.role is Role.BACKWARD and function.lines:
            others = known.get(_kind(linkage, segment), {}).values()
            shared = next((s for other in others if (s := _as_rebuild(linkage, segment, *other)) is not None), None)
        found += shared or [(segment, function)]
    return found


def _as_rebuild(linkage: Linkage, segment: Segment, other: Segment, wanted: Function) -> list[Written] | None:
    """A way back in two segments, of which the first is a rebuild with a function that is known; None where it is not."""
    program = linkage.program
    parts = program.divided(segment)
    if parts is None:
        return None
    rebuild, rest = parts
    if _computed(linkage, rebuild) != _computed(linkage, other) or write_function(linkage, rest).lines:
        return None
    unread = _unread(linkage, rebuild, other, wanted)
    if unread is None:
        return None
    before = set(program.unread), set(program.slots)
    program.exchange([segment], parts)
    program.unread |= unread
    program.slots |= {data for data, _ in unread}
    function = write_function(linkage, rebuild)
    if function.text != wanted.text:
        program.exchange(parts, [segment])
        program.unread, program.slots = before
        return None
    return [(rebuild, function), (rest, replace(function, lines=()))]


def _computed(linkage: Linkage, segment: Segment) -> list[int]:
    """The nodes that a segment computes, by their places in the block."""
    first = linkage.program.graph.blocks[segment.block].first
    return [n.id - first for p in segment.positions if (n := linkage.program.node_at(p)) is not None]


def _unread(linkage: Linkage, rebuild: Segment, other: Segment, wanted: Function) -> set[tuple[int, int]] | None:
    """What a rebuild makes that another one returns, and where; None where autograd may not be done with it."""
    program, bodies = linkage.program, linkage.model.bodies
    first, there = (program.graph.blocks[s.block].first for s in (rebuild, other))
    computed = [p for p in rebuild.positions if program.node_at(p) is not None]
    found = set()
    for variable in wanted.returns:
        returned = linkage.model.data_of[variable]
        if returned is None or linkage.owner_of[returned] != variable:
            return None
        producer = program.producer[returned]
        values, others = bodies[producer - there + first].values, bodies[producer].values
        if len(values) != len(others) or not _may_be_slot(linkage, data := values[others.index(returned)]):
            return None
        copies = program.copies[data]
        copy = next((c for c in copies if c.start in rebuild.positions), None)
        if copy is None or copy.end < computed[-1] or any(r > copy.start for c in copies for r in c.readers):
            return None
        found.add((data, copy.start))
    return found


def _may_be_slot(linkage: Linkage, data: int) -> bool:
    """Whether a value has a slot, or one would change nothing: it would hold the value until the forward pass ends. Of outputs,
    PyTorch shall go on to notice changes."""
    program = linkage.program
    alive = program.copies[data][0].end > program.loss_at
    return data in program.slots or (alive and data not in program.graph.outputs)


class _Marks:
    """What is marked in the blocks of a program, by places in the block, so that it can be marked in others."""

    def __init__(self, linkage: Linkage) -> None:
        self.linkage, self.program = linkage, linkage.program
        self.sets = {"slot": self.program.slots, "group": self.program.groups, "stop": linkage.stops}
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
        functions = {id(s): write_function(self.linkage, s) for s in segments}
        if len({f.text for f in functions.values()}) == 1:
            return functions
        for kind, which in added:
            self.sets[kind].remove(which)
        return None

    def _markable(self, segment: Segment) -> dict[Mark, int]:
        """All that may be marked in a segment's block."""
        block, found = self.program.graph.blocks[segment.block], dict[Mark, int]()
        for node in range(block.first, block.last + 1):
            choices = {"slot": self.linkage.model.bodies[node].values, "group": (node,), "stop": self.back.get(node, ())}
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
            if mark[0] == "slot" and not _may_be_slot(self.linkage, which):
                return None
            missing.append((mark[0], which))
        return missing
