"""Blocks that are rebuilt as a whole run their first function once more, with `Again(kept)`: that puts back what autograd
needs, and forgets nothing. A reviewer reads what the block computes once.

That is so where a second run does nothing that the rebuild would not do, and holds nothing for longer than it would.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from remat_codegen.emit.functions import Function, write_function
from remat_codegen.emit.linkage import Linkage
from remat_codegen.emit.segment_needs import Needs
from remat_codegen.emit.segments import Role, Segment
from remat_codegen.emit.spell import spellings
from remat_codegen.graph.ir import Kind, Node
from remat_codegen.schedule import Copy
from remat_codegen.trace import Origin

ONCE = ("kept.keep(", "kept.read(", "kept.take(", "kept.receive(", "kept.before(")  # what a second run must not do
LOST = ("kept.keep(", "kept.forget(", "kept.forget_saved(", "kept.before(", "forget=True")  # what one would not do
Written = tuple[Segment, Function]


def run_again(linkage: Linkage, forwards: Sequence[Written], backwards: Sequence[Written]) -> list[Written]:
    """The ways back, in the same order: rebuilds of whole blocks have the first functions of those."""
    first = {segment.block: (segment, function) for segment, function in forwards}
    found: list[Written] = []
    for segment, function in backwards:
        rerun = None
        if function.lines and segment.block in first:
            rerun = _rerun(linkage, *first[segment.block], segment, function)
        found += rerun or [(segment, function)]
    return found


def _rerun(linkage: Linkage, first: Segment, forward: Function, segment: Segment, function: Function) -> list[Written] | None:
    """A way back as a second run of a first function, and nothing more; None where that will not do."""
    if not forward.uses_kept or _mentions(forward, ONCE):
        return None
    if segment.role is Role.REBUILD:
        may = _Rerun(linkage, first, segment).does(forward, function)
        return [(segment, replace(forward, takes=function.takes))] if may else None
    program = linkage.program
    parts = program.divided(segment)
    if parts is None:
        return None
    rebuild, rest = parts
    if not _Rerun(linkage, first, rebuild).computes_the_same() or write_function(linkage, rest).lines:
        return None
    program.exchange([segment], parts)
    part = write_function(linkage, rebuild)
    if not _Rerun(linkage, first, rebuild).does(forward, part):
        program.exchange(parts, [segment])
        return None
    return [(rebuild, replace(forward, takes=part.takes)), (rest, replace(function, lines=()))]


def _mentions(function: Function, what: Sequence[str]) -> bool:
    return any(text in line for line in function.lines for text in what)


class _Rerun:
    """A rebuild of a block beside the block's first run."""

    def __init__(self, linkage: Linkage, first: Segment, rebuild: Segment) -> None:
        self.linkage, self.program = linkage, linkage.program
        self.first, self.rebuild = first, rebuild
        self.needs = Needs(linkage, rebuild)
        self.at = self._computed(rebuild)

    def does(self, forward: Function, function: Function) -> bool:
        """Whether the first function may stand for the rebuild's own one."""
        results = {v for v in forward.arguments if self.linkage.model.trace.variables[v].origin is Origin.RESULT}
        return (
            self.computes_the_same()
            and not _mentions(function, LOST)
            and results == {v for v, _ in function.takes}
            and {*function.returns} <= {*forward.returns}
            and not self._frees_what_it_takes()
            and all(self._lives_as_long(d) for n in self.at for d in self.program.graph.nodes[n].writes)
            and all(self._puts_back(position, self.program.graph.nodes[n]) for n, position in self.at.items())
        )

    def computes_the_same(self) -> bool:
        """Whether both runs compute the same nodes in the same order, and as they are spelled the first time."""
        nodes = [*self._computed(self.first)]
        return nodes == [*self.at] and all(self._spelled_alike(op) for n in nodes for op in self._operations(n))

    def _operations(self, node: int) -> tuple[int, ...]:
        return self.linkage.model.bodies[node].operations

    def _computed(self, segment: Segment) -> Mapping[int, int]:
        """The nodes that a segment computes, but for those that only look at memory, each with its position."""
        nodes = ((self.program.node_at(p), p) for p in segment.positions)
        return {n.id: p for n, p in nodes if n is not None and not all(map(self.needs.only_looks, self._operations(n.id)))}

    def _spelled_alike(self, op: int) -> bool:
        """Whether an operation leaves alone what it may change only once."""
        operation = self.linkage.model.trace.operations[op]
        return spellings(operation, str, again=True) == spellings(operation, str)

    def _frees_what_it_takes(self) -> bool:
        """Whether the schedule frees, before the rebuild ends, what it takes from outside: whoever called holds that."""
        end = self.needs.last_compute
        read = {(d, p) for n, p in self.at.items() for d in self.program.graph.nodes[n].reads}
        copies = [c for d, p in read if (c := self.program.copy_at(d, p)).start not in self.rebuild.positions]
        return any(c.end < end for c in copies)

    def _lives_as_long(self, data: int) -> bool:
        """Whether the rebuild holds what it makes at least for as long as the first function does."""
        first, again = self.program.copies[data][0], self._copy(data)
        return self._end(first, self.first) <= self._end(again, self.rebuild)

    def _copy(self, data: int) -> Copy:
        return next(c for c in self.program.copies[data] if c.start in self.rebuild.positions)

    def _end(self, copy: Copy, segment: Segment) -> float:
        """After how many of a segment's nodes a copy goes; infinite if the function does not see that."""
        places = [*self._computed(segment).values()]
        return math.inf if copy.end > places[-1] else sum(p < copy.end for p in places)

    def _puts_back(self, position: int, node: Node) -> bool:
        """Whether the rebuild puts back all that its marks would."""
        data = [d for d in node.writes if self.program.graph.data[d].kind is Kind.VALUE]
        phantoms = [d for d in node.writes if self.program.graph.data[d].kind is Kind.PHANTOM]
        grouped = bool(phantoms) and self.needs.is_grouped(node)
        slots = [d for d in data if d in self.program.slots]
        return not (grouped and not self.needs.refills(position, node)) and all(
            self.needs.puts_back(d, position) or self._is_still_there(d) for d in slots
        )

    def _is_still_there(self, data: int) -> bool:
        """Whether a value was never forgotten, so that its slot may as well hold the new one, which nobody reads."""
        copies, again = self.program.copies[data], self._copy(data)
        alive = copies[0].end > again.start and data not in self.program.graph.outputs
        return alive and again.end > self.needs.last_compute and not any(r > again.start for r in again.readers)
