"""The costs of a graph's nodes, beside the graph and not on it, and what a cost model is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:  # `trace` reads a table of this room, and the command line starts without torch
    from remat_codegen.graph.simplify import Model

Advance = Callable[[int, int, str], None]  # how many are done, of how many, and the name of the next


@dataclass(frozen=True, slots=True)
class Profile:
    """For each node of a graph, in its order: time, and memory needed while it runs beyond what it reads and writes.

    `time_ns` in nanoseconds, `workspace_bytes` in bytes, `device` as in `torch.device`. `others` are those of the same model at
    smaller batch sizes, where one file has plans for several. `early_bytes` is by how much a node stays below what it reads and
    writes, where autograd alone holds the gradients that it passes on: one goes before the node makes another.
    `peaks_within` are, for forward nodes of several operations, the most bytes that the node held while each of them ran; empty
    where that is not known.
    """

    time_ns: tuple[int, ...]
    workspace_bytes: tuple[int, ...]
    device: str = "cpu"
    others: tuple[Profile, ...] = ()
    early_bytes: tuple[int, ...] = ()
    peaks_within: tuple[tuple[int, ...], ...] = ()

    def at(self, number: int) -> Profile:
        """The costs of what a file's plan of that number is for."""
        return (self, *self.others)[min(number, len(self.others))]

    def with_gradients_going_early(self) -> Profile:
        """What nodes take where autograd alone holds gradients; then workspaces may be below 0. No file takes less."""
        early = self.early_bytes or (0,) * len(self.workspace_bytes)
        workspaces = tuple(a - b for a, b in zip(self.workspace_bytes, early, strict=True))
        return replace(self, workspace_bytes=workspaces, early_bytes=())


class Costs(ABC):
    """A cost model: what a step's operations take on some device. `stage` is what the user sees while it works."""

    stage: ClassVar[str]

    @abstractmethod
    def of(self, model: Model, advance: Advance | None = None) -> Profile:
        """Time in nanoseconds and workspace in bytes of every node of `model.graph`, in its order; `advance(done, total, name)`
        reports progress. Raises RematError, naming the operation, where it cannot say what one takes."""

    def tell(self, note: Callable[[str], None]) -> None:  # noqa: B027  most have nothing to say
        """Notes what is not as it should be of the costs that it gave, as far as it came; nothing if all is well."""
