"""More budget never gives a slower table."""

from __future__ import annotations

import pytest
from conftest import ROOT

from remat_codegen.ask.request import Request
from remat_codegen.graph.ir import total_bytes
from remat_codegen.marked.choose import Chooser
from remat_codegen.planners import rockmate
from remat_codegen.profile.costs import Profile
from remat_codegen.run import tabling
from remat_codegen.run.traced import trace_target
from remat_codegen.schedule import simulate, without_recomputation
from remat_codegen.show.results import Progress

MODELS = {
    "vit": ("ViT", "image=32, patch=8, width=48, layers=3, heads=3", "image=float32[8,3,32,32]"),
    "experts": ("Decoder", "", None),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_more_budget_never_gives_a_slower_table(name):
    """With times that nobody has to measure: what a node writes takes as long as it is large."""
    kind, init, inputs = MODELS[name]
    traced = trace_target(Request(f"{ROOT}/examples/{name}.py:{kind}", "90%", init=init, inputs=inputs), Progress(None))
    graph, found = traced.graph, tabling.found_of(traced)
    times = tuple(1000 + total_bytes(graph, node.writes) for node in graph.nodes)
    profile = found.holders.costs(Profile(times, (0,) * len(graph.nodes), "cpu"))
    plain = simulate(graph, profile, without_recomputation(graph))
    reached = plain.time_ns * 10
    for share in (0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0):
        limit = int(share * plain.peak_bytes)
        schedule = rockmate.plan(graph, profile, limit).schedule
        if schedule is not None:
            chooser = Chooser(graph, profile, found.candidates, lambda order, limit=limit: limit, found.holders.held)
            best = chooser.search([schedule])
            assert best.over_bytes or best.time_ns <= reached, share
            reached = reached if best.over_bytes else best.time_ns
    assert reached == plain.time_ns
