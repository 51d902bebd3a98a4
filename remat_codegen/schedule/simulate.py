"""The one validator and the one simulator, which judge every planner, every test and every report."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from remat_codegen.graph.ir import Graph, Kind, Node, Phase, total_bytes
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule.steps import Forget, Schedule


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the simulator says of a schedule. The per-step lists have one entry per step of the schedule.

    `during_bytes` is the most that is alive while a step runs (its workspace included), `after_bytes` what is alive
    once it is done.
    """

    peak_bytes: int
    time_ns: int
    during_bytes: tuple[int, ...]
    after_bytes: tuple[int, ...]

    @property
    def peak_step(self) -> int:
        """The index of the first step that reaches the peak."""
        return self.during_bytes.index(self.peak_bytes)


def validate(graph: Graph, schedule: Schedule) -> None:
    """Raises ValueError where a schedule could not be run, or does not compute the step.

    Every node runs, for the first time in the graph's order; the loss and the backward nodes run once; a node finds
    everything it reads alive, and all contributions to it made; what is forgotten was alive; only outputs are left at the end.
    """
    alive: set[int] = set()
    contributed: list[set[int]] = [set() for _ in graph.data]
    producers = graph.producers
    reached = -1
    for position, step in enumerate(schedule.steps):
        if isinstance(step, Forget):
            if step.data not in alive:
                raise ValueError(f"step {position} forgets {graph.data[step.data].name}, which is not alive")
            alive.discard(step.data)
            contributed[step.data].clear()
            continue
        node = graph.nodes[step.node]
        if node.id > reached + 1:
            raise ValueError(f"step {position} runs {node.name} before node {reached + 1}")
        if node.id <= reached and (node.phase is not Phase.FORWARD or not node.recomputable):
            raise ValueError(f"step {position} runs {node.name} again, which may run only once")
        for data in node.reads:
            if data not in alive or any(p < node.id and p not in contributed[data] for p in producers[data]):
                raise ValueError(f"step {position} runs {node.name} without {graph.data[data].name}")
        reached = max(reached, node.id)
        alive.update(node.writes)
        for data in node.writes:
            contributed[data].add(node.id)
    if reached != len(graph.nodes) - 1:
        raise ValueError(f"the schedule ends before node {reached + 1}")
    if alive - set(graph.outputs):
        raise ValueError(f"{graph.data[min(alive - set(graph.outputs))].name} is never forgotten")
    if set(graph.outputs) - alive:
        raise ValueError(f"{graph.data[min(set(graph.outputs) - alive)].name} is an output and forgotten")


def simulate(graph: Graph, profile: Profile, schedule: Schedule) -> Timeline:
    """Time and memory of a valid schedule, step by step. A node that runs again while its old result lives needs
    room for both. What is forgotten after a node that needs less room than it makes went while that ran."""
    alive: set[int] = set()
    current = time_ns = runs = most = 0
    during: list[int] = []
    after: list[int] = []
    for step in schedule.steps:
        if isinstance(step, Forget):
            alive.discard(step.data)
            current -= graph.data[step.data].nbytes
            during.append(min(current, most))
        else:
            node = graph.nodes[step.node]
            again = [d for d in node.writes if d in alive and graph.data[d].kind is not Kind.GRADIENT]
            created = total_bytes(graph, (d for d in node.writes if d not in alive))
            beside = total_bytes(graph, again) + profile.workspace_bytes[node.id] + schedule.beside_bytes.get(runs, 0)
            most = current + created + beside
            during.append(most)
            current += created
            runs += 1
            alive.update(node.writes)
            time_ns += profile.time_ns[node.id]
        after.append(current)
    return Timeline(max(during, default=0), time_ns, tuple(during), tuple(after))


def alive_before(graph: Graph, schedule: Schedule, position: int) -> set[int]:
    """The data that are alive when a step of a valid schedule begins."""
    alive: set[int] = set()
    for step in schedule.steps[:position]:
        if isinstance(step, Forget):
            alive.discard(step.data)
        else:
            alive.update(graph.nodes[step.node].writes)
    return alive


class Pricing:
    """Peak and time of many orders of one graph's nodes: what `simulate` says of `with_forgets`, without making a schedule.

    The orders begin with the forward pass and the loss; backward nodes run once.
    """

    def __init__(self, graph: Graph, profile: Profile) -> None:
        self.outputs, self.loss = frozenset(graph.outputs), graph.loss
        self.nbytes = [data.nbytes for data in graph.data]
        self.touches = [tuple({*n.reads, *n.writes}) for n in graph.nodes]
        self.workspace_bytes, self.times_ns = profile.workspace_bytes, profile.time_ns
        self.first = [self._made(graph, n, [d for d in n.writes if graph.producers[d][0] == n.id]) for n in graph.nodes]
        self.again = [self._made(graph, n, ()) for n in graph.nodes]

    def _made(self, graph: Graph, node: Node, begun: Collection[int]) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Of what a node writes, some of which begins by it: that; what does so, too, unless it is held meanwhile; and the
        bytes of what needs room beside the value that is there. Gradients are added to."""
        others = [d for d in node.writes if d not in begun and graph.data[d].kind is not Kind.GRADIENT]
        stay = [d for d in others if d in self.outputs or d in node.reads]
        return tuple(begun), tuple(d for d in others if d not in stay), total_bytes(graph, stay)

    def time_ns(self, order: Sequence[int]) -> int:
        """The time in nanoseconds."""
        return sum(map(self.times_ns.__getitem__, order))

    def peak_bytes(self, order: Sequence[int], held: Mapping[int, Collection[int]], beside_bytes: Mapping[int, int]) -> int:
        """The peak in bytes. `held` is as in `with_forgets`, `beside_bytes` as in a schedule. It goes backwards, so that who
        touches a copy of a value first is the last that needs it."""
        nbytes, touches, workspace = self.nbytes, self.touches, self.workspace_bytes
        first, again, loss, alive = self.first, self.again, self.loss, set(self.outputs)
        current = peak = sum(map(nbytes.__getitem__, alive))
        for position in range(len(order) - 1, -1, -1):
            node = order[position]
            more = held.get(position, ())
            for data in (*touches[node], *more) if more else touches[node]:
                if data not in alive:
                    alive.add(data)
                    current += nbytes[data]
            begun, anew, beside = first[node] if node >= loss or position == node else again[node]
            during = current + workspace[node] + beside + beside_bytes.get(position, 0)
            for data in begun:
                alive.discard(data)
                current -= nbytes[data]
            for data in anew:
                if more and data in more:  # room for both
                    during += nbytes[data]
                else:
                    alive.discard(data)
                    current -= nbytes[data]
            if during > peak:
                peak = during
        return peak
