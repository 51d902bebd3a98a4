"""Smaller inputs than the example's, which a file of functions (edition 1) has no plan for: the largest for which the
model's own forward is within the budget, so that the file runs that. Written `x.0,scale.0=4`, several with `;`
between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from remat_codegen.ask.batch import Batch, at_batch, batch_sizes, leading, parse_batches, size_of
from remat_codegen.ask.request import Request
from remat_codegen.emit.guards import PLAIN_MARGIN
from remat_codegen.errors import RematError
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.run.dynamic import plain_peak
from remat_codegen.run.traced import Traced, trace_loaded
from remat_codegen.show.results import Progress
from remat_codegen.torch_seam import pytree
from remat_codegen.trace.sizes import named_leaves, parse_dynamic

TRIES = 3  # sizes at which the model is traced: what it needs grows almost evenly


def with_smaller(request: Request, traced: Traced, plan: SavedPlan, progress: Progress) -> SavedPlan:
    """The plan, with the sizes up to which the original forward is within its budget, but for those that the file takes
    anyway. The batch is one such size, the length another."""
    if request.static:
        return replace(plan, smaller=None)
    with progress.stage("sizes"):
        try:
            found = [_first(request, traced, plan, ways) for ways in _sizes(request, traced)]
        except RematError:  # a size of 0, or a name that cannot be written
            found = []
    return replace(plan, smaller=";".join(filter(None, found)) or None)


def _sizes(request: Request, traced: Traced) -> Iterator[tuple[str, ...]]:
    """What the batch could be, and what the length could be, as options name sizes, the likeliest first."""
    forward, given = traced.target.module.forward, (traced.target.args, traced.target.kwargs)
    leaves = named_leaves(forward, *given)
    batch = parse_batches(request.batch)[0].places if request.batch else ""
    batch = batch or leading(forward, *given)
    for ways in ((batch,), _lengths(leaves, leading(forward, *given, dimension=1))):
        yield tuple(w for w in ways if not any(_is_open(traced, *one) for one in parse_dynamic(w, forward, *given, least=1)))


def _is_open(traced: Traced, tensor: torch.Tensor, dimension: int) -> bool:
    """Whether the file takes any number in a dimension of an input: torch.export says nothing of 1."""
    trace, leaves = traced.model.trace, pytree.tree_leaves((traced.target.args, traced.target.kwargs))
    variable = next(v for leaf, v in zip(leaves, trace.inputs, strict=False) if leaf is tensor)
    if variable is None or (sizes := trace.variables[variable].sizes) is None:
        return False
    least = {trace.variables[size.variable].name: size.least for size in trace.sizes}
    return isinstance(name := sizes[dimension], str) and least[name] <= 2


def _lengths(leaves: dict[str, torch.Tensor], second: str) -> tuple[str, ...]:
    """All sizes but the leading ones that are as large as those in second place, which a mask has twice; or just these."""
    if not second:
        return ()
    name, _, dimension = second.partition(",")[0].rpartition(".")
    size = leaves[name].shape[int(dimension)]
    every = ",".join(f"{n}.{d}" for n, t in leaves.items() for d in range(1, t.dim()) if t.shape[d] == size)
    return tuple(dict.fromkeys((every, second)))


def _first(request: Request, traced: Traced, plan: SavedPlan, ways: tuple[str, ...]) -> str:
    """The first of some ways to say what is smaller that there is a size for; empty where there is none."""
    return next((f"{way}={n}" for way in ways if way and (n := _most(request, traced, plan, way))), "")


def _most(request: Request, traced: Traced, plan: SavedPlan, places: str) -> int:
    """A size, below the planned one, at which the original forward is within the budget; 0 where none was found."""
    target = traced.target
    planned = size_of(batch_sizes(places, target.module.forward, target.args, target.kwargs))
    whole, share = plain_peak(traced.model), plan.budget_bytes / (PLAIN_MARGIN * max(1, plan.unmodified_peak_bytes))
    size = min(planned - 1, int(planned * share))
    for _ in range(TRIES):
        if size < 1 or request.time_is_up:
            return 0
        try:
            there = trace_loaded(at_batch(target, Batch(size, places)), _as_it_is(request), Progress(None))
        except (RematError, RuntimeError, ValueError, IndexError):  # the model takes no such inputs
            return 0
        needed = plain_peak(there.model) / max(1, whole)
        if needed <= share:
            return size
        slope = max(0.0, 1 - needed) / (planned - size)
        size = min(size - 1, int(size - (needed - share) / slope)) if slope else 0
    return 0


def _as_it_is(request: Request) -> Request:
    return replace(request, dynamic="", batch="")
