"""Graphs with their costs, and with what a file needs beside the planned tensors: what planners are given."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from remat_codegen.advice.aswritten import as_written
from remat_codegen.ask.batch import parse_batch
from remat_codegen.ask.budget import Budget
from remat_codegen.ask.request import Request
from remat_codegen.graph import exchange
from remat_codegen.graph.allocator import unsplit_bytes
from remat_codegen.graph.drawing import drawing_nodes
from remat_codegen.graph.ir import Graph
from remat_codegen.graph.simplify import Model
from remat_codegen.marked.changed import changed_buffers
from remat_codegen.marked.holders import Holders
from remat_codegen.planners.base.reserve import SLACK_BYTES, Reserve
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.costs import Costs, Profile
from remat_codegen.profile.estimated import Estimated
from remat_codegen.profile.measure import Measured
from remat_codegen.run.traced import Traced, trace_target
from remat_codegen.schedule import left_unsplit, simulate, without_recomputation
from remat_codegen.show.results import AS_WRITTEN, AsWritten, Progress

PARTS_AROUND = 16  # parts that may hold a copy of one buffer at a time
LOOK_BYTES = 512  # of the numbers by which a part's values are known again: `_some` in parts.py takes no more
MEASURING = 0.4  # of a limited time


@dataclass(frozen=True, slots=True)
class Priced:
    """A graph with its costs. `plain_*` are those of the step without recomputation, `reserve` is what a generated file
    needs beside the planned tensors (nothing for a graph that no model was traced for). `scale` is as in `Exchange`.
    `as_written` is what a model takes that checkpoints by itself; `capability` is the GPU's, and
    `estimated` its name where it is not there."""

    label: str
    graph: Graph
    profile: Profile
    plain_ns: int
    plain_bytes: int
    reserve: Reserve = field(default_factory=Reserve)
    scale: int | None = None
    notes: tuple[str, ...] = ()
    traced: Traced | None = None
    as_written: AsWritten | None = None
    capability: str | None = None
    estimated: str | None = None

    def limit(self, budget: Budget) -> int:
        """A budget in bytes."""
        return budget.resolve(self.plain_bytes + self.reserve.slack_bytes)


def over(time_ns: int, plain_ns: int) -> float:
    """A time as an overhead over the plain step (0.12 for 12 %); in a step that takes no time, nothing does."""
    return time_ns / plain_ns - 1 if plain_ns else 0.0


def priced_file(path: Path, progress: Progress, *, add_backward: bool = False) -> Priced:
    """A graph from a file. Raises GraphFileError."""
    with progress.stage("read"):
        found = exchange.load(path, add_backward=add_backward)
    profile = Profile(found.time_ns, found.workspace_bytes, found.device)
    plain = simulate(found.graph, profile, without_recomputation(found.graph))
    return Priced(
        path.name,
        found.graph,
        profile,
        plain.time_ns,
        plain.peak_bytes,
        reserve=Reserve(found.reserve_bytes, frozenset(found.drawing)),
        scale=found.scale,
        notes=found.notes,
    )


def priced_model(request: Request, progress: Progress) -> Priced:
    """A traced and measured model. Raises RematError."""
    return priced(trace_target(request, progress), request, progress)


def priced(traced: Traced, request: Request, progress: Progress) -> Priced:
    """A traced model, measured. Raises RematError."""
    if traced.others:
        parse_batch(request.batch)  # which says that there can be one only
    return with_costs(traced, measured_costs(request, traced, progress), request)


def with_costs(traced: Traced, profile: Profile, request: Request) -> Priced:
    """A traced model with its costs."""
    plain = Holders(traced.model).plain_step(profile)
    own = as_written(traced.model, profile, plain.time_ns)
    return Priced(
        traced.target.label,
        traced.graph,
        profile,
        plain.time_ns,
        plain.peak_bytes,
        reserve_of(traced, profile),
        notes=() if own is None else (f"{AS_WRITTEN}, {own.sentence()}",),
        traced=traced,
        as_written=own,
        capability=capability_of(request),
        estimated=None if request.gpu is None else request.gpu.key,
    )


def measured_costs(request: Request, traced: Traced, progress: Progress) -> Profile:
    """Time and workspace of the graph's nodes, measured on the request's device or remembered from an earlier run."""
    found = _measured_costs(request, traced, progress)
    return replace(found, others=tuple(_measured_costs(request, one, progress) for one in traced.others))


def _measured_costs(request: Request, traced: Traced, progress: Progress) -> Profile:
    costs = costs_for(request)
    with progress.stage(costs.stage):
        try:
            found = costs.of(traced.model, lambda done, total, name: progress.update(done, total))
            return with_leaves(found, traced)
        finally:  # interrupted, too
            costs.tell(progress.note)


def with_leaves(profile: Profile, traced: Traced) -> Profile:
    """Costs with room for the parameters that forward makes, whenever that is: autograd holds them to the end of the step, and
    on the way back their gradients, too."""
    leaves, loss = traced.model.trace.leaf_bytes, traced.graph.loss
    if not leaves:
        return profile
    room = (nbytes + leaves * (1 + (node > loss)) for node, nbytes in enumerate(profile.workspace_bytes))
    return replace(profile, workspace_bytes=tuple(room))


def costs_for(request: Request) -> Costs:
    """The cost model of a request: the one place that picks one."""
    if request.gpu is not None:
        return Estimated(request.gpu)
    cache = Cache(request.device, enabled=request.cache)
    if (left := request.seconds_left(MEASURING)) is None or request.time_limit is None:
        return Measured(request.device, cache)
    return Measured(request.device, cache, hurry_at=time.monotonic() + left, limit_s=request.time_limit)


def capability(device: str) -> str | None:
    """The compute capability of a GPU, by which PyTorch chooses kernels: 9.0. None for a CPU."""
    if torch.device(device).type != "cuda":
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return f"{major}.{minor}"


def capability_of(request: Request) -> str | None:
    """The same of the device that a request is for, which need not be there."""
    return capability(request.device) if request.gpu is None else request.gpu.capability


def reserve_of(traced: Traced, profile: Profile | None = None) -> Reserve:
    """What a generated file may need beside the planned tensors; blocks of a GPU's allocator only where there are costs."""
    fixed = SLACK_BYTES + traced.model.record.shared_cast_bytes + _looks_bytes(traced.model) + _copies_bytes(traced.model)
    if not traced.model.trace.accelerator:
        return Reserve(fixed, drawing_nodes(traced.model))
    if profile is None:
        return Reserve(fixed)
    followed = left_unsplit(traced.graph, profile, without_recomputation(traced.graph))
    return Reserve(fixed, unsplit_bytes=unsplit_bytes((d.nbytes for d in traced.graph.data), followed))


def _looks_bytes(model: Model) -> int:
    """What a file whose operations depend on values holds to compare: a few numbers of each thing that parts put back."""
    if model.trace.run is None:
        return 0
    each = LOOK_BYTES if model.trace.accelerator else LOOK_BYTES // 2  # GPUs give nothing less; 64 numbers of four bytes
    return each * sum(len(row.saved) + len(row.phantoms) for row in model.record.operations)


def _copies_bytes(model: Model) -> int:
    """What parts take for copies of buffers that count: some around each, of which a GPU gives no less than a block."""
    copied = [b.nbytes for b in changed_buffers(model.trace, model.record) if b.is_copied]
    return PARTS_AROUND * sum(max(nbytes, LOOK_BYTES) if model.trace.accelerator else nbytes for nbytes in copied)
