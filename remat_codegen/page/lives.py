"""Each value over the step: its copies, who reads it, and why it is kept or rebuilt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from remat_codegen.ask.budget import format_bytes
from remat_codegen.graph.ir import Data, Graph, Kind, shown_name
from remat_codegen.graph.simplify import Model
from remat_codegen.page.data import Curve, Run, Tensor, ValueRow
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Compute, Schedule

MOST_NAMED = 3  # names in a sentence
Lives = tuple[tuple[int, int], ...]
MIB = 1024**2


def lives_of(graph: Graph, schedule: Schedule) -> list[Lives]:
    """For each data node the runs between which each of its copies is alive, the first and the last one included."""
    begun: dict[int, int] = {}
    found: list[list[tuple[int, int]]] = [[] for _ in graph.data]
    run = -1
    for step in schedule.steps:
        if isinstance(step, Compute):
            run += 1
            for data in graph.nodes[step.node].writes:
                begun.setdefault(data, run)
        else:
            found[step.data].append((begun.pop(step.data), run))
    for data, first in begun.items():
        found[data].append((first, run))
    return [tuple(lives) for lives in found]


def values_of(
    model: Model, profile: Profile, schedule: Schedule, runs: Sequence[Run], curve: Curve, limit_bytes: int | None
) -> tuple[ValueRow, ...]:
    """A row for each data node, in the order in which they first live. `limit_bytes` is what the curve has to keep below."""
    return _Values(model, profile, lives_of(model.graph, schedule), runs, curve, limit_bytes).rows()


@dataclass(frozen=True)
class _Values:
    model: Model
    profile: Profile
    lives: list[Lives]
    runs: Sequence[Run]
    curve: Curve
    limit_bytes: int | None

    @property
    def graph(self) -> Graph:
        """The model's graph."""
        return self.model.graph

    @cached_property
    def loss(self) -> int:
        """The run between forward and backward pass."""
        return next(i for i, r in enumerate(self.runs) if r.node == self.graph.loss)

    def rows(self) -> tuple[ValueRow, ...]:
        reads: list[list[int]] = [[] for _ in self.graph.data]
        for number, run in enumerate(self.runs):
            for data in self.graph.nodes[run.node].reads:
                reads[data].append(number)
        fates = [self._fate(d, reads[d.id]) for d in self.graph.data]
        dearest = max((self._price(d) for d in self.graph.data if fates[d.id] == "rebuilt"), default=None)
        tensors = self._tensors()
        ordered = sorted(self.graph.data, key=lambda d: (self.lives[d.id][:1], d.id))
        return tuple(self._row(d, tensors[d.id], reads[d.id], fates[d.id], dearest) for d in ordered)

    def _row(self, data: Data, tensors: list[Tensor], reads: list[int], fate: str, dearest: float | None) -> ValueRow:
        return ValueRow(
            name=shown_name(data),
            kind=data.kind,
            nbytes=data.nbytes,
            node=self.graph.producers[data.id][0],
            tensors=tuple(tensors),
            lives=self.lives[data.id],
            reads=tuple(reads),
            fate=fate,
            why=self._why(data, fate, reads, dearest),
        )

    def _tensors(self) -> list[list[Tensor]]:
        found: list[list[Tensor]] = [[] for _ in self.graph.data]
        for variable, data in zip(self.model.trace.variables, self.model.data_of, strict=True):
            if data is not None:
                dtype = str(variable.dtype).removeprefix("torch.")
                found[data].append(Tensor(variable.name, tuple(variable.shape), dtype))
        return found

    def _fate(self, data: Data, reads: Sequence[int]) -> str:
        if data.kind is Kind.GRADIENT:
            return "gradient"
        if data.id in self.graph.outputs:
            return "output"
        if len(self.lives[data.id]) > 1:
            return "rebuilt"
        first, last = self.lives[data.id][0]
        return "kept" if first <= self.loss <= last and any(r >= self.loss for r in reads) else "passing"

    # ------------------------------------------------------------------ in words

    def _why(self, data: Data, fate: str, reads: Sequence[int], dearest: float | None) -> tuple[str, ...]:
        if fate == "gradient":
            return ("A gradient lives from the operation that makes it to the one that takes it further.",)
        if fate == "output":
            return ("Returned to whoever calls the model, who holds it until the step ends.",)
        if fate == "rebuilt":
            return self._rebuilt(data, reads)
        if fate == "kept":
            return self._kept(data, [r for r in reads if r >= self.loss], dearest)
        return ("Nothing in the backward pass reads it: it is freed as soon as the forward pass has.",)

    def _kept(self, data: Data, later: Sequence[int], dearest: float | None) -> tuple[str, ...]:
        again = self._named([r for r in later if self.runs[r].again])
        said = [f"Others are rebuilt from it: {again}."] if again else []
        node = self.graph.nodes[self.graph.producers[data.id][0]]
        if not node.recomputable:
            return (*said, "Its operation may run only once: it changes something, or would not give the same again.")
        needed = self._needed(data)
        if needed is None:
            return (*said, "It is made from what can be made only once, and is not kept itself.")
        cost, made = sum(self.profile.time_ns[n] for n in needed), sum(self.graph.data[d].nbytes for d in node.writes)
        count = "one operation" if len(needed) == 1 else f"{len(needed)} operations"
        paid = f"; the plan pays up to {_price(dearest)} elsewhere" if dearest is not None else ", and no memory is missing"
        return (*said, f"Rebuilding it would take {shown_time(cost)} for {count}: {_price(cost / max(1, made))}{paid}.")

    def _needed(self, data: Data) -> set[int] | None:
        """The operations that would have to run for a value if it were not kept; None where one of them may not."""
        waiting, found = [self.graph.producers[data.id][0]], set[int]()
        while waiting:
            node = self.graph.nodes[waiting.pop()]
            if not node.recomputable:
                return None
            if node.id in found:
                continue
            found.add(node.id)
            waiting += [self.graph.producers[d][0] for d in node.reads if not self._held_at_loss(d)]
        return found

    def _held_at_loss(self, data: int) -> bool:
        return any(first <= self.loss <= last for first, last in self.lives[data])

    def _rebuilt(self, data: Data, reads: Sequence[int]) -> tuple[str, ...]:
        lives, node = self.lives[data.id], self.graph.producers[data.id][0]
        free_ns = sum(self.runs[begin].start_ns - self.runs[end].end_ns for end, begin in self._gaps(data.id))
        again = len(lives) - 1
        times = "once" if again == 1 else f"{again} times"
        cost = shown_time(again * self.profile.time_ns[node])
        said = [
            f"Rebuilt {times}: {format_bytes(data.nbytes)} are free for {shown_time(free_ns)}, for {cost} of computing again."
        ]
        needed = [r for r in reads if r >= lives[1][0]]
        others = [d for d in self.graph.nodes[node].writes if d != data.id]
        if needed:
            said.append(f"It is needed again by {self._named(needed)}.")
        elif others:
            beside = ", ".join(shown_name(self.graph.data[d]) for d in others)
            said.append(f"Only what is made beside it is needed again: {beside}.")
        return (*said, *self._if_kept(data))

    def _if_kept(self, data: Data) -> tuple[str, ...]:
        """What the step would need with this value kept and all else as it is, or with all that are alike."""
        gaps = [r for end, begin in self._gaps(data.id) for r in range(end + 1, begin)]
        if self.limit_bytes is None or not gaps:
            return ()
        highest = max(gaps, key=lambda r: self.curve.total_bytes[r])
        room = self.limit_bytes - self.curve.total_bytes[highest]
        if data.nbytes > room:
            return (f"Kept meanwhile, it would bring the step {format_bytes(data.nbytes - room)} above the budget.",)
        alike = [d for d in self.alike[self._kind(data)] if any(end < highest < begin for end, begin in self._gaps(d))]
        together = sum(self.graph.data[d].nbytes for d in alike)
        if together > room:
            above = format_bytes(together - room)
            return (
                f"Kept meanwhile, it alone would fit; the {len(alike)} alike would bring the step {above} above the budget.",
            )
        return ("Kept meanwhile, it would fit into the budget: what it is made beside, or with, is rebuilt anyway.",)

    def _gaps(self, data: int) -> list[tuple[int, int]]:
        """The last run of each copy and the first of the next."""
        return [(end, begin) for (_, end), (begin, _) in pairwise(self.lives[data])]

    def _kind(self, data: Data) -> tuple[str, int]:
        """What values are alike in: the operation, and which of its results they are."""
        node = self.graph.nodes[self.graph.producers[data.id][0]]
        return node.signature, node.writes.index(data.id)

    @cached_property
    def alike(self) -> dict[tuple[str, int], list[int]]:
        """Values that are forgotten, by what they are alike in."""
        found: dict[tuple[str, int], list[int]] = {}
        for data in self.graph.data:
            if len(self.lives[data.id]) > 1:
                found.setdefault(self._kind(data), []).append(data.id)
        return found

    def _price(self, data: Data) -> float:
        """Nanoseconds for each byte of its operation's results."""
        node = self.graph.nodes[self.graph.producers[data.id][0]]
        return self.profile.time_ns[node.id] / max(1, sum(self.graph.data[d].nbytes for d in node.writes))

    def _named(self, runs: Sequence[int]) -> str:
        names = list(dict.fromkeys(self.graph.nodes[self.runs[r].node].name for r in runs))
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return ", ".join(names[:MOST_NAMED]) + more


def shown_time(nanoseconds: int) -> str:
    """A time for people: 1.25 s, 18.6 ms, 40.1 µs."""
    for least, unit in ((10**9, "s"), (10**6, "ms")):
        if nanoseconds >= least:
            return f"{nanoseconds / least:.{2 if unit == 's' else 1}f} {unit}"
    return f"{nanoseconds / 1000:.1f} µs"


def _price(ns_per_byte: float) -> str:
    return f"{ns_per_byte * MIB / 1e6:.2f} ms per MiB"
