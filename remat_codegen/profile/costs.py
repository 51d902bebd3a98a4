"""The costs of a graph's nodes, beside the graph and not on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """For each node of a graph, in its order: time, and memory needed while it runs beyond what it reads and writes.

    `time_ns` in nanoseconds, `workspace_bytes` in bytes, `device` as in `torch.device`. `others` are those of the same model at
    smaller batch sizes, where one file has plans for several.
    """

    time_ns: tuple[int, ...]
    workspace_bytes: tuple[int, ...]
    device: str = "cpu"
    others: tuple[Profile, ...] = ()

    def at(self, number: int) -> Profile:
        """The costs of what a file's plan of that number is for."""
        return (self, *self.others)[min(number, len(self.others))]
