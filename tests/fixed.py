"""Costs that are the same on every machine and in every run, in the place of measured ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from remat_codegen.graph.ir import Graph
from remat_codegen.graph.simplify import Model
from remat_codegen.profile.costs import Advance, Costs, Profile


def by_bytes(graph: Graph, device: str = "cpu") -> Profile:
    """What a node takes, from the bytes that it touches."""
    touched = [sum(graph.data[d].nbytes for d in (*n.reads, *n.writes)) for n in graph.nodes]
    return Profile(tuple(1000 + t for t in touched), (0,) * len(touched), device)


def all_alike(graph: Graph, device: str = "cpu") -> Profile:
    """Every node takes as long, and no more memory than its results."""
    return Profile((1000,) * len(graph.nodes), (0,) * len(graph.nodes), device)


@dataclass(frozen=True)
class Fixed(Costs):
    """Costs by a function of the graph."""

    stage = "profile"
    device: str
    costs: Callable[[Graph, str], Profile]

    def of(self, model: Model, advance: Advance | None = None) -> Profile:
        return self.costs(model.graph, self.device)


def fix(patch: pytest.MonkeyPatch, costs: Callable[[Graph, str], Profile] = by_bytes) -> None:
    """Nothing is measured while `patch` lasts."""
    patch.setattr("remat_codegen.run.priced.costs_for", lambda request: Fixed(request.device, costs))
