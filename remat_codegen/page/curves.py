"""Memory over a step, and its parts, by the one simulator."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from remat_codegen.graph.ir import Graph, Kind
from remat_codegen.page.data import Curve, Run
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Compute, Schedule, Timeline, simulate

ACTIVATIONS = (Kind.VALUE, Kind.PHANTOM)


def runs_of(profile: Profile, schedule: Schedule, lines: tuple[int, ...] = ()) -> tuple[Run, ...]:
    """What runs, in order. `lines` are those of the file, by step of the schedule."""
    found, seen, now = [], set[int](), 0
    for position, step in enumerate(schedule.steps):
        if isinstance(step, Compute):
            end = now + profile.time_ns[step.node]
            found.append(Run(step.node, now, end, step.node in seen, lines[position] if lines else 0))
            seen.add(step.node)
            now = end
    return tuple(found)


def during(timeline: Timeline, schedule: Schedule) -> tuple[int, ...]:
    """The most that is alive while each node runs."""
    return tuple(b for step, b in zip(schedule.steps, timeline.during_bytes, strict=True) if isinstance(step, Compute))


def curve_of(graph: Graph, profile: Profile, schedule: Schedule) -> Curve:
    """The curve of a step. A category's part is what a simulation says of a graph in which nothing else has a size."""
    no_workspace, alone = replace(profile, workspace_bytes=(0,) * len(graph.nodes)), replace(schedule, beside_bytes={})

    def of(kinds: Collection[Kind], costs: Profile, of_what: Schedule = alone) -> tuple[int, ...]:
        return during(simulate(_sized(graph, kinds), costs, of_what), schedule)

    runs = runs_of(profile, schedule)
    return Curve(
        nodes=tuple(r.node for r in runs),
        start_ns=tuple(r.start_ns for r in runs),
        end_ns=runs[-1].end_ns if runs else 0,
        total_bytes=during(simulate(graph, profile, schedule), schedule),
        activations_bytes=of(ACTIVATIONS, no_workspace),
        gradients_bytes=of((Kind.GRADIENT,), no_workspace),
        workspace_bytes=of((), profile, schedule),
    )


def _sized(graph: Graph, kinds: Collection[Kind]) -> Graph:
    """The graph with data of other kinds taking no room."""
    return replace(graph, data=tuple(d if d.kind in kinds else replace(d, nbytes=0) for d in graph.data))
