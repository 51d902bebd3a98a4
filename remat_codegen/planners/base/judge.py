"""What a schedule that a planner tries costs, by the one simulator, and whether the emitter can write it."""

from __future__ import annotations

from dataclasses import dataclass

from remat_codegen.graph.ir import Graph
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Compute, Schedule, simulate, validate


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule of the whole step, as the simulator sees it."""

    schedule: Schedule
    time_ns: int
    peak_bytes: int


def judge(graph: Graph, profile: Profile, schedule: Schedule) -> Candidate:
    """What a schedule costs; raises ValueError if it is none, or if the emitter could not write it."""
    check(graph, schedule)
    return cost(graph, profile, schedule)


def check(graph: Graph, schedule: Schedule) -> None:
    """Raises ValueError if it is no schedule, or one that the emitter could not write."""
    validate(graph, schedule)
    restrict(graph, schedule)


def cost(graph: Graph, profile: Profile, schedule: Schedule) -> Candidate:
    """What a schedule costs that is known to be one."""
    timeline = simulate(graph, profile, schedule)
    return Candidate(schedule, timeline.time_ns, timeline.peak_bytes)


def restrict(graph: Graph, schedule: Schedule) -> None:
    """Raises ValueError unless every node up to the loss runs once, in order, before the loss: what the emitter can write."""
    runs = [s.node for s in schedule.steps if isinstance(s, Compute)][: graph.loss + 1]
    for expected, node in enumerate(runs):
        if node != expected:
            raise ValueError(f"{graph.nodes[node].name} runs again before the loss")


def is_chain(graph: Graph) -> bool:
    """Whether the blocks are several, cover the forward nodes, and go back one after the other."""
    home = [b.id for b in graph.blocks for _ in range(b.first, b.last + 1)]
    if len(graph.blocks) < 2 or len(home) != graph.loss:
        return False
    places = [-1 if n.forward is None else home[n.forward] for n in graph.backward_nodes]
    single = all(len(p) == 1 for p in graph.producers if p[0] < graph.loss)
    return single and -1 not in places and places == sorted(places, reverse=True)
