"""A schedule that was read back, block by block: what each keeps for the backward pass, forgets and computes again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remat_codegen.graph.ir import Graph, Kind, total_bytes
from remat_codegen.graph.simplify import Model
from remat_codegen.profile.costs import Profile
from remat_codegen.readback.interpreter import Call, Reading
from remat_codegen.schedule import Compute, Forget, Timeline


@dataclass(frozen=True, slots=True)
class BlockSummary:
    """What a schedule does with one block. `kept` is what lives from its forward to its backward, `forgotten` what was
    computed, freed, and computed again; `recomputed` are nodes, as often as they run again. `overhead` is their time over
    that of the whole step without recomputation.
    """

    block: int
    path: str
    functions: tuple[str, ...]
    nodes: int
    kept: tuple[str, ...]
    kept_bytes: int
    forgotten: tuple[str, ...]
    forgotten_bytes: int
    recomputed: tuple[str, ...]
    overhead: float
    peak_bytes: int

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        names = ("block", "path", "nodes", "kept_bytes", "forgotten_bytes", "peak_bytes")
        lists = ("functions", "kept", "forgotten", "recomputed")
        rows = {n: getattr(self, n) for n in names} | {n: list(getattr(self, n)) for n in lists}
        return rows | {"overhead": round(self.overhead, 6)}


def summarize(model: Model, profile: Profile, reading: Reading, timeline: Timeline, plain_ns: int) -> tuple[BlockSummary, ...]:
    """A line for each block of the graph. The schedule must be valid; `plain_ns` is the time without recomputation."""
    graph = model.graph
    block_of = [b.id for b in graph.blocks for _ in range(b.first, b.last + 1)]
    kept, forgotten = _lives(graph, reading)
    again = _again(reading)
    peaks = _peaks(graph, block_of, reading, timeline)
    found = []
    for block in graph.blocks:
        own = range(block.first, block.last + 1)
        data = [d for n in own for d in graph.nodes[n].writes]
        keeps, forgets = [d for d in data if d in kept], [d for d in data if d in forgotten]
        runs = [n for n in again if n in own]
        path, functions = _called(reading.calls, block.id, graph, model)
        row = BlockSummary(
            block=block.id,
            path=path,
            functions=functions,
            nodes=len(own),
            kept=tuple(graph.data[d].name for d in keeps),
            kept_bytes=total_bytes(graph, keeps),
            forgotten=tuple(graph.data[d].name for d in forgets),
            forgotten_bytes=total_bytes(graph, forgets),
            recomputed=tuple(graph.nodes[n].name for n in runs),
            overhead=sum(profile.time_ns[n] for n in runs) / max(1, plain_ns),
            peak_bytes=peaks.get(block.id, 0),
        )
        found.append(row)
    return tuple(found)


def _called(calls: Sequence[Call], block: int, graph: Graph, model: Model) -> tuple[str, tuple[str, ...]]:
    """Where a block stands in the model, and the functions that run it."""
    forward = [c for c in calls if not c.backward]
    own = [c for c in calls if c.block == block]
    own = own or ([forward[block]] if block < len(forward) == len(graph.blocks) else [])
    return next((c.path for c in own), ""), tuple(dict.fromkeys(c.function for c in own))


def _lives(graph: Graph, reading: Reading) -> tuple[set[int], set[int]]:
    """The values and phantoms that live from their first run into the backward pass, and those that live again."""
    alive: set[int] = set()
    kept: set[int] = set()
    lives: dict[int, int] = {}
    for step in reading.schedule.steps:
        if isinstance(step, Forget):
            alive.discard(step.data)
            continue
        if step.node == graph.loss:
            kept = {d for d in alive if graph.data[d].kind is not Kind.GRADIENT}
        for data in graph.nodes[step.node].writes:
            if data not in alive and graph.data[data].kind is not Kind.GRADIENT:
                lives[data] = lives.get(data, 0) + 1
            alive.add(data)
    return kept, {d for d, count in lives.items() if count > 1}


def _again(reading: Reading) -> list[int]:
    seen: set[int] = set()
    found = []
    for step in reading.schedule.steps:
        if isinstance(step, Compute):
            found += [step.node] if step.node in seen else []
            seen.add(step.node)
    return found


def _peaks(graph: Graph, block_of: Sequence[int], reading: Reading, timeline: Timeline) -> dict[int, int]:
    """The most that is alive while something of a block runs; the loss counts to the last block."""
    peaks: dict[int, int] = {}
    for step, during in zip(reading.schedule.steps, timeline.during_bytes, strict=True):
        if isinstance(step, Compute):
            node = graph.nodes[step.node]
            forward = min(node.id if node.forward is None else node.forward, graph.loss - 1)
            peaks[block_of[forward]] = max(peaks.get(block_of[forward], 0), during)
    return peaks
