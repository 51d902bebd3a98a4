"""The costs of a graph's nodes, beside the graph and not on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """For each node of a graph, in its order: time, and memory needed while it runs beyond what it reads and writes.

    `time_ns` in nanoseconds, `workspace_bytes` in bytes, `device` as in `torch.device`.
    """

    time_ns: tuple[int, ...]
    workspace_bytes: tuple[int, ...]
    device: str = "cpu"
