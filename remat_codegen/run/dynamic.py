"""What becomes of a traced model at other sizes (`--dynamic`): whether a size may be 1, and how the peak grows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from remat_codegen.errors import RematError, UnsupportedError
from remat_codegen.graph.ir import Graph
from remat_codegen.graph.record import Record, record
from remat_codegen.graph.simplify import Model, simplify
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import Schedule, simulate, with_forgets
from remat_codegen.schedule.order import order_of
from remat_codegen.torch_seam import pytree
from remat_codegen.trace import Autocast, Operation, Origin, Trace, Variable, silent_logs, trace
from remat_codegen.trace.sizes import Asked, Dynamic, Size, Together


def trace_sizes(module: torch.nn.Module, args: Any, kwargs: Any, autocast: Autocast, asked: Asked) -> Trace:
    """The trace of a model in which the sizes `asked` for may change, each as freely as the model lets it.

    Raises UnsupportedError for a size with another value of which the traced operations do not fit together.
    """
    fixed: str | None = None
    for together in Together if len(asked) > 1 else [Together.NONE]:
        traced = trace(module, args, kwargs, autocast, asked, together)
        fixed = next((traced.variables[s.variable].name for s in traced.sizes if not _may_change_alone(traced, s)), None)
        if fixed is None:
            return traced
    hint = "leave it out, or name all sizes that have to be equal to it"
    raise UnsupportedError(f"the traced operations do not fit another {fixed}", where="--dynamic", hint=hint)


def _may_change_alone(traced: Trace, size: Dynamic) -> bool:
    if size.variable in traced.fixed:
        return False
    values = {s.variable: s.planned for s in traced.sizes} | {size.variable: _other(size)}
    try:
        with silent_logs():
            record(at_sizes(traced, values))
    except (RematError, RuntimeError, ValueError, IndexError):
        return False
    return True


def _other(size: Dynamic) -> int:
    """Twice the size, or half of it, or what else the model takes; the size itself where that is all."""
    near = (2 * size.planned, size.planned // 2, size.planned + 1, size.planned - 1)
    fitting = [n for n in near if n >= size.least and (size.most is None or n <= size.most)]
    return fitting[0] if fitting else size.planned


def with_least(module: torch.nn.Module, args: Any, kwargs: Any, traced: Trace, recorded: Record, asked: Asked) -> Trace:
    """The trace, with what may be done at size 1, of which torch.export says nothing since it may broadcast."""
    found = [_at_one(module, args, kwargs, traced, recorded, s) if s.least == 2 else s for s in traced.sizes]
    return replace(traced, sizes=tuple(found))


def _at_one(module: Any, args: Any, kwargs: Any, traced: Trace, recorded: Record, size: Dynamic) -> Dynamic:
    """The size, which may be 1 if a trace then has the same operations, which look at, save and change the same memory."""
    names = {v: place for place, v in enumerate(traced.inputs) if v is not None}
    name = traced.variables[size.variable].name
    narrowed = {names[v.id]: v.sizes.index(name) for v in traced.variables if v.sizes is not None and name in v.sizes}
    leaves, spec = pytree.tree_flatten((args, kwargs))
    small = [_first(leaf, narrowed[i]) if i in narrowed else leaf for i, leaf in enumerate(leaves)]
    small_args, small_kwargs = pytree.tree_unflatten(small, spec)
    try:
        other = trace(module, small_args, small_kwargs, traced.autocast)
        with silent_logs():
            found = record(other)
    except (RematError, RuntimeError, ValueError, IndexError):
        return size
    values = {s.variable: 1 if s is size else s.planned for s in traced.sizes}
    expected = [_comparable(op, values) for op in at_sizes(traced, values).operations]
    same = expected == [_comparable(op, {}) for op in other.operations]
    if same and _memory(traced, recorded) == _memory(other, found):
        return replace(size, least=1)
    here, there = (plain_peak(simplify(*one)) for one in ((traced, recorded), (other, found)))
    return replace(size, share_at_one=there / max(1, here))


def plain_peak(model: Model) -> int:
    """The peak without recomputation, and without workspaces."""
    return _peak_of(model.graph, range(len(model.graph.nodes)))


def _first(tensor: torch.Tensor, dimension: int) -> torch.Tensor:
    return tensor.detach().narrow(dimension, 0, 1).contiguous().requires_grad_(tensor.requires_grad)


def _comparable(operation: Operation, values: dict[int, int]) -> Any:
    plain = _at((operation.args, operation.kwargs), values, refs=True)
    if operation.name.startswith("aten.slice"):
        plain = [0 if a is None else a for a in plain[0]]  # x[:n] and x[0:n]
    return operation.target, plain, operation.grad_enabled, operation.autocast


def _memory(traced: Trace, recorded: Record) -> Any:
    """Which results share memory, what is saved and what is changed."""
    places = [recorded.variables[v.id].storage for v in traced.variables if v.origin is not Origin.SIZE]
    return places, [(row.saved, row.mutated, len(row.phantoms), row.backward) for row in recorded.operations]


# ---------------------------------------------------------------------------------------------- other sizes


def at_sizes(traced: Trace, values: dict[int, int]) -> Trace:
    """The trace with sizes, given by variable, put in; the shapes of results stay as they were traced."""
    return replace(
        traced,
        variables=tuple(_resized(traced, v, values) for v in traced.variables),
        operations=tuple(
            replace(op, args=_at(op.args, values), kwargs=tuple((k, _at(v, values)) for k, v in op.kwargs))
            for op in traced.operations
        ),
    )


def _at(value: Any, values: dict[int, int], refs: bool = False) -> Any:
    if isinstance(value, Size):
        return value.at(values)
    if refs and hasattr(value, "variable"):
        return "tensor"
    if isinstance(value, (list, tuple)):
        return type(value)(_at(v, values, refs) for v in value)
    return value


def _resized(traced: Trace, variable: Variable, values: dict[int, int]) -> Variable:
    if variable.sizes is None:
        return variable
    named = {traced.variables[v].name: n for v, n in values.items()}
    shape = tuple(named[s] if isinstance(s, str) else s for s in variable.sizes)
    return replace(variable, shape=shape, stride=tuple(math.prod(shape[i + 1 :]) for i in range(len(shape))))


def growth(model: Model, schedule: Schedule) -> dict[int, float]:
    """For each size, by variable, the power of it that a schedule's peak grows with near the traced size.

    Found by planning for twice the size, or half of it where the model takes no more; workspaces are taken to grow alike.
    """
    traced = model.trace
    planned = {s.variable: s.planned for s in traced.sizes}
    here = _peak(model, order_of(schedule))
    found = {}
    for size in traced.sizes:
        factor = _other(size) / size.planned
        if factor == 1:
            found[size.variable] = 1.0
            continue
        other = at_sizes(traced, planned | {size.variable: _other(size)})
        there = _peak(simplify(other, record(other)), order_of(schedule))
        found[size.variable] = round(math.log(there / here, factor), 2) if there and here else 1.0
    return found


def _peak(model: Model, order: Sequence[int]) -> int:
    """The peak of running nodes in this order; 0 where at another size the graph has other nodes."""
    return _peak_of(model.graph, order) if max(order, default=-1) < len(model.graph.nodes) else 0


def _peak_of(graph: Graph, order: Sequence[int]) -> int:
    nothing = (0,) * len(graph.nodes)
    return simulate(graph, Profile(nothing, nothing), with_forgets(graph, order)).peak_bytes
