"""Reads a schedule as a program: which function each step belongs to, and what has to be named so that it can be forgotten.

    Program = forward segments, backward segments
    Segment = a block's steps in one stretch: its first forward, its way back with what is rebuilt in between, or a rebuild of its own
    Lives   = for each data node, its copies: where created, where forgotten, who reads it

Only what the schedule forgets and rebuilds gets a name at run time. Everything else is plain PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from remat_codegen.graph.ir import Graph, Kind, Phase
from remat_codegen.schedule import Compute, Forget, Schedule


class Role(StrEnum):
    """What a segment does."""

    FORWARD = "forward"
    BACKWARD = "backward"
    REBUILD = "rebuild"


@dataclass(slots=True)
class Segment:
    """Steps of one block, by their positions in the schedule."""

    role: Role
    block: int
    positions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Copy:
    """One life of a data node, from the step that creates it to the one that forgets it (positions in the schedule)."""

    created: int
    forgotten: int
    readers: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Program:
    """A schedule, divided into segments, with what must be named.

    `slots` are values that autograd must find again after they were rebuilt, `groups` are forward nodes whose saved tensors are, `kept`
    tells for each value the copies that a later segment's rebuild reads.
    """

    graph: Graph
    schedule: Schedule
    block_of: tuple[int, ...]
    forward: list[Segment]
    backward: list[Segment]
    copies: dict[int, list[Copy]]
    slots: set[int]
    groups: set[int]
    segment_of: dict[int, int]
    again: set[int]

    def copy_at(self, data: int, position: int) -> Copy:
        """The copy of a data node that a step at `position` reads."""
        return next(c for c in reversed(self.copies[data]) if c.created < position)

    def rebuild_readers(self, data: int, copy: Copy) -> list[int]:
        """The steps of other segments that rebuild something from this copy."""
        home = self.segment_of[copy.created]
        return [r for r in copy.readers if self.is_rebuild(r) and self.segment_of[r] != home]

    def is_rebuild(self, position: int) -> bool:
        """Whether a step runs a forward node again."""
        step = self.schedule.steps[position]
        return isinstance(step, Compute) and self.graph.nodes[step.node].phase is Phase.FORWARD and position in self.again



    def is_backward(self, position: int) -> bool:
        """Whether a step is a backward node."""
        step = self.schedule.steps[position]
        return isinstance(step, Compute) and self.graph.nodes[step.node].phase is Phase.BACKWARD


def divide(graph: Graph, schedule: Schedule) -> Program:
    """The program of a valid schedule."""
    block_of = tuple(b.id for b in graph.blocks for _ in range(b.first, b.last + 1))
    again = _again(graph, schedule)
    forward, backward = _segments(graph, schedule, block_of, again)
    segment_of = {p: i for i, s in enumerate([*forward, *backward]) for p in s.positions}
    copies = _copies(graph, schedule)
    program = Program(graph, schedule, block_of, forward, backward, copies, set(), set(), segment_of, again)
    for data, lives in copies.items():
        rebuilt = any(program.is_backward(r) for c in lives[1:] for r in c.readers)
        if rebuilt and graph.data[data].kind is Kind.VALUE:
            program.slots.add(data)
        if rebuilt and graph.data[data].kind is Kind.PHANTOM:
            program.groups.add(graph.producers()[data][0])
    return program


def _again(graph: Graph, schedule: Schedule) -> set[int]:
    seen: set[int] = set()
    found = set()
    for position, step in enumerate(schedule.steps):
        if isinstance(step, Compute):
            if step.node in seen:
                found.add(position)
            seen.add(step.node)
    return found


def _copies(graph: Graph, schedule: Schedule) -> dict[int, list[Copy]]:
    copies: dict[int, list[Copy]] = {}
    end = len(schedule.steps)
    for position, step in enumerate(schedule.steps):
        if isinstance(step, Forget):
            copies[step.data][-1].forgotten = position
            continue
        node = graph.nodes[step.node]
        for data in node.reads:
            copies[data][-1].readers.append(position)
        for data in node.writes:
            if graph.data[data].kind is not Kind.GRADIENT or data not in copies:
                copies.setdefault(data, []).append(Copy(position, end))
    return copies


def _segments(
    graph: Graph, schedule: Schedule, block_of: tuple[int, ...], again: set[int]
) -> tuple[list[Segment], list[Segment]]:
    """Steps by block. Forgets stay with what runs before them; a rebuild belongs to the backward of its block that follows it."""
    forward: list[Segment] = []
    backward: list[Segment] = []
    next_back = _next_backward_block(graph, schedule, block_of)
    passed_loss = False
    for position, step in enumerate(schedule.steps):
        segments = backward if passed_loss else forward
        if isinstance(step, Forget):
            if segments:
                segments[-1].positions.append(position)
            continue
        node = graph.nodes[step.node]
        if node.phase is Phase.LOSS:
            passed_loss = True
            continue
        block = block_of[node.id if node.forward is None else node.forward]
        role = Role.FORWARD if not passed_loss else Role.BACKWARD
        if position in again and (not passed_loss or next_back[position] != block):
            role = Role.REBUILD
        if not segments or segments[-1].block != block or segments[-1].role is not role:
            segments.append(Segment(role, block))
        segments[-1].positions.append(position)
    return forward, backward


def _next_backward_block(graph: Graph, schedule: Schedule, block_of: tuple[int, ...]) -> dict[int, int | None]:
    upcoming: int | None = None
    table: dict[int, int | None] = {}
    for position in reversed(range(len(schedule.steps))):
        step = schedule.steps[position]
        table[position] = upcoming
        if isinstance(step, Compute) and graph.nodes[step.node].phase is Phase.BACKWARD:
            forward = graph.nodes[step.node].forward
            assert forward is not None
            upcoming = block_of[forward]
    return table
