"""What each row of a table frees, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remat_codegen.graph.ir import Graph
from remat_codegen.marked.demand import Part
from remat_codegen.marked.table import Entry, key_of
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Compute, Schedule


@dataclass(frozen=True, slots=True)
class RowSummary:
    """A row of PLAN. `freed_bytes` are not held between the forward and the backward pass, `recomputed` are the operations that
    run again, as often as they do, and `overhead` is their time over that of the whole step without recomputation."""

    key: str
    entries: tuple[str, ...]
    freed_bytes: int
    recomputed: tuple[str, ...]
    overhead: float

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        rows: dict[str, Any] = {"row": self.key, "entries": list(self.entries), "freed_bytes": self.freed_bytes}
        return rows | {"recomputed": list(self.recomputed), "overhead": round(self.overhead, 6)}


def summarize(
    graph: Graph, profile: Profile, schedule: Schedule, parts: Sequence[tuple[str, Part]], entries: Sequence[Entry]
) -> tuple[RowSummary, ...]:
    """A line for each row. `parts` are those of the table, outer ones first, each with the path of the module it stands in."""
    runs = Counter(s.node for s in schedule.steps if isinstance(s, Compute))
    again: dict[str, list[int]] = {}
    for node in graph.forward_nodes:
        path = next((path for path, part in reversed(parts) if node.id in part), None)
        if path is not None:
            again.setdefault(key_of(path), []).extend([node.id] * (runs[node.id] - 1))
    plain = max(1, sum(profile.time_ns))
    rows: dict[str, list[Entry]] = {}
    for entry in entries:
        rows.setdefault(entry.key, []).append(entry)
    return tuple(
        RowSummary(
            key,
            tuple(e.said for e in row),
            sum(e.freed_bytes for e in row),
            tuple(graph.nodes[n].name for n in again.get(key, ())),
            sum(profile.time_ns[n] for n in again.get(key, ())) / plain,
        )
        for key, row in rows.items()
    )
