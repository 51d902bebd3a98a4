"""Reads a schedule as a program: which function each step belongs to, and what has to be named so that it can be forgotten.

    Program = forward segments, backward segments
    Segment = a block's steps in one stretch: its first forward, its way back with what is rebuilt in between, or a
    rebuild of its own
    Copy    = of a data node: where it is made, where forgotten, who reads it

Only what the schedule forgets and rebuilds gets a name at run time. Everything else is plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from remat_codegen.graph.ir import Graph, Kind, Node, Phase
from remat_codegen.schedule import Compute, Copy, Forget, Schedule, copies_of


class Role(StrEnum):
    """What a segment does."""

    FORWARD = "forward"
    BACKWARD = "backward"
    REBUILD = "again"


@dataclass(slots=True)
class Segment:
    """Steps of one block, by their positions in the schedule."""

    role: Role
    block: int
    positions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Program:
    """A schedule, divided into segments, with what must be named.

    `slots` are values that autograd must find again after they were rebuilt, `groups` the forward nodes whose saved
    tensors are. Of `unread`, copies by their data and where they are created, rebuilds give back what nobody reads.
    `again` are the positions at which a forward node runs once more, `next_back` gives the backward node that
    follows a position, `producer` the node that writes a data node first, `loss_at` the position of the loss.
    """

    graph: Graph
    schedule: Schedule
    block_of: tuple[int, ...]
    segments: list[Segment]
    copies: dict[int, list[Copy]]
    again: set[int]
    next_back: list[int | None]
    producer: list[int]
    loss_at: int
    slots: set[int] = field(default_factory=set)
    groups: set[int] = field(default_factory=set)
    unread: set[tuple[int, int]] = field(default_factory=set)
    segment_of: dict[int, Segment] = field(default_factory=dict)

    def node_at(self, position: int) -> Node | None:
        """The node that a step runs; None for a Forget."""
        step = self.schedule.steps[position]
        return self.graph.nodes[step.node] if isinstance(step, Compute) else None

    def copy_at(self, data: int, position: int) -> Copy:
        """The copy of a data node that a step at `position` reads or forgets."""
        if data in self.graph.outputs:
            return self.copies[data][0]
        return next(c for c in reversed(self.copies[data]) if c.start < position)

    def copy_made(self, data: int, position: int) -> Copy:
        """The copy of a data node that the step at `position` creates."""
        return next(c for c in self.copies[data] if c.start == position)

    def divided(self, segment: Segment) -> list[Segment] | None:
        """A way back as a rebuild of its own and the rest; None where it does not begin with one."""
        phases = [None if (n := self.node_at(p)) is None else n.phase for p in segment.positions]
        end = phases.index(Phase.BACKWARD) if Phase.BACKWARD in phases else 0
        if segment.role is not Role.BACKWARD or Phase.FORWARD not in phases[:end]:
            return None
        rebuild = Segment(Role.REBUILD, segment.block, segment.positions[:end])
        return [rebuild, Segment(Role.BACKWARD, segment.block, segment.positions[end:])]

    def exchange(self, present: Sequence[Segment], others: Sequence[Segment]) -> None:
        """Takes neighbouring segments out, and puts others with the same positions in."""
        place = next(i for i, s in enumerate(self.segments) if s is present[0])
        self.segments[place : place + len(present)] = others
        self.segment_of |= {p: s for s in others for p in s.positions}

    def block_at(self, position: int) -> int:
        """The block of the node that a step runs."""
        return self.segment_of[position].block

    def alive_at_loss(self) -> int:
        """Bytes of values, and of what autograd saves beside them, at the loss."""
        return sum(
            self.graph.data[d].nbytes
            for d, lives in self.copies.items()
            if self.graph.data[d].kind is not Kind.GRADIENT and any(c.start < self.loss_at < c.end for c in lives)
        )

    def kept_bytes(self, segment: Segment) -> tuple[int, int]:
        """Of what a first forward makes: bytes alive at the loss, and bytes that are forgotten and made once more."""
        kept = forgotten = 0
        for data, copy in self._made_in(segment):
            if copy.end > self.loss_at:
                kept += self.graph.data[data].nbytes
            elif len(self.copies[data]) > 1:
                forgotten += self.graph.data[data].nbytes
        return kept, forgotten

    def rebuilt_bytes(self, segment: Segment) -> int:
        """Bytes that a segment makes once more for others than its own rebuilds."""
        made = [(d, c) for d, c in self._made_in(segment) if c is not self.copies[d][0]]
        return sum(self.graph.data[d].nbytes for d, c in made if self.wanted_by_autograd(c) or segment.role is Role.REBUILD)

    def _made_in(self, segment: Segment) -> list[tuple[int, Copy]]:
        places = [p for p in segment.positions if (n := self.node_at(p)) is not None and n.phase is Phase.FORWARD]
        return [(d, self.copy_made(d, p)) for p in places for d in self.graph.nodes[self._node_id(p)].writes]

    def _node_id(self, position: int) -> int:
        node = self.node_at(position)
        assert node is not None
        return node.id

    def wanted_by_autograd(self, copy: Copy) -> bool:
        """Whether a backward node reads this copy."""
        return any((node := self.node_at(r)) is not None and node.phase is Phase.BACKWARD for r in copy.readers)

    def comes_back(self, data: int, copy: Copy) -> bool:
        """Whether autograd will read a later copy of a data node, so that this one has to be emptied when it is forgotten."""
        return any(c.start > copy.start and self.wanted_by_autograd(c) for c in self.copies[data])

    def keepers(self, data: int, copy: Copy, block: int) -> list[int]:
        """The steps of other segments, all of `block`, that run again and read this copy."""
        home = self.segment_of[copy.start]
        own = [r for r in copy.readers if r in self.again and self.block_at(r) == block]
        return [r for r in own if self.segment_of[r] is not home]


def divide(graph: Graph, schedule: Schedule) -> Program:
    """The program of a valid schedule."""
    block_of = tuple(b.id for b in graph.blocks for _ in range(b.first, b.last + 1))
    again = _again(schedule)
    next_back = _next_back(graph, schedule)
    segments = _segments(graph, schedule, block_of, again, next_back)
    producer = [writers[0] for writers in graph.producers]
    loss_at = schedule.steps.index(Compute(graph.loss))
    program = Program(graph, schedule, block_of, segments, copies_of(graph, schedule), again, next_back, producer, loss_at)
    program.segment_of = {p: s for s in segments for p in s.positions}
    for data, lives in program.copies.items():
        if any(program.wanted_by_autograd(c) for c in lives[1:]):
            if graph.data[data].kind is Kind.VALUE:
                program.slots.add(data)
            if graph.data[data].kind is Kind.PHANTOM:
                program.groups.add(producer[data])
    return program


def _again(schedule: Schedule) -> set[int]:
    seen: set[int] = set()
    found = set()
    for position, step in enumerate(schedule.steps):
        if isinstance(step, Compute):
            if step.node in seen:
                found.add(position)
            seen.add(step.node)
    return found


def _next_back(graph: Graph, schedule: Schedule) -> list[int | None]:
    """For each position, the backward node that runs next after it."""
    upcoming: int | None = None
    table: list[int | None] = []
    for step in reversed(schedule.steps):
        table.append(upcoming)
        if isinstance(step, Compute) and graph.nodes[step.node].phase is Phase.BACKWARD:
            upcoming = step.node
    return table[::-1]


def _segments(
    graph: Graph, schedule: Schedule, block_of: tuple[int, ...], again: set[int], next_back: list[int | None]
) -> list[Segment]:
    """Steps by block. Forgets stay with what runs before them; a rebuild belongs to the backward of its block that
    follows it."""
    segments: list[Segment] = []
    passed_loss = False
    for position, step in enumerate(schedule.steps):
        if isinstance(step, Forget):
            segments[-1].positions.append(position)
            continue
        node = graph.nodes[step.node]
        if node.phase is Phase.LOSS:
            passed_loss = True
            segments.append(Segment(Role.BACKWARD, len(graph.blocks), [position]))
            continue
        block = block_of[node.id if node.forward is None else node.forward]
        role = Role.BACKWARD if passed_loss else Role.FORWARD
        if position in again:
            follower = next_back[position]
            if follower is None or block_of[_forward(graph, follower)] != block:
                role = Role.REBUILD
        if segments[-1:] == [] or segments[-1].block != block or segments[-1].role is not role:
            segments.append(Segment(role, block))
        segments[-1].positions.append(position)
    return segments


def _forward(graph: Graph, backward_node: int) -> int:
    forward = graph.nodes[backward_node].forward
    assert forward is not None
    return forward
