"""Whether a trace that libraries were told of computes what the model does."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from remat_codegen.sizes import hint
from remat_codegen.trace.ir import Trace, refs, substitute
from remat_codegen.trace.state import attributes_of, put_back
from remat_codegen.trace.surroundings import Autocast, autocasting

SEED = 0

Results = tuple[list[torch.Tensor], dict[str, torch.Tensor]]  # what is returned, and gradients


def computes_alike(program: Any, module: nn.Module, args: Any, kwargs: Any, autocast: Autocast) -> bool | None:
    """Whether `program`, a graph module, returns first of all the tensors that `module` does, with the same gradients, to the
    bit. True, too, where those of the module are others each time; None where there is no memory to find out.

    Leaves the module, the arguments and the generators as they were.
    """
    if _most_bytes(program) > _free_bytes():
        return None
    buffers, held = [(b, b.clone()) for b in module.buffers()], attributes_of(module)
    try:
        first = _results(module, args, kwargs, autocast)
        if not _are_equal(first, _results(module, args, kwargs, autocast)):
            return True
        return _are_equal(first, _results(program, args, kwargs, autocast, len(first[0])))
    except Exception:  # no memory, or no forward pass but in a trace
        return None
    finally:
        put_back(module, held)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _results(run: nn.Module, args: Any, kwargs: Any, autocast: Autocast, most: int | None = None) -> Results:
    """The first tensors that `run` returns, and the gradients of its parameters for random cotangents."""
    given, others = pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs))
    parameters = {name: p for name, p in run.named_parameters() if p.requires_grad}
    with torch.random.fork_rng(sorted({p.device.index for p in run.parameters() if p.device.type == "cuda"})):
        torch.manual_seed(SEED)
        with autocasting(autocast):
            found = [t for t in pytree.tree_leaves(run(*given, **others)) if isinstance(t, torch.Tensor)][:most]
        ends = [t for t in found if t.requires_grad]
        cotangents = [torch.randn_like(t) for t in ends]
        gradients = torch.autograd.grad(ends, list(parameters.values()), cotangents, allow_unused=True)
    return [t.detach() for t in found], {n: g for n, g in zip(parameters, gradients, strict=True) if g is not None}


def _are_equal(one: Results, other: Results) -> bool:
    tensors, others = ([*found, *gradients.values()] for found, gradients in (one, other))
    same = len(one[0]) == len(other[0]) and [*one[1]] == [*other[1]]
    return same and all(map(_is_equal, tensors, others))


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    alike = (one.shape, one.dtype) == (other.shape, other.dtype)
    return alike and bool(((one == other) | ((one != one) & (other != other))).all())


def have_the_same_operations(one: Trace, other: Trace) -> bool:
    """Whether two traces compute the same but for what is decided by."""
    return _described(one) == _described(other)


def _described(trace: Trace) -> list[Any]:
    """What a trace computes its result by, without what it numbers: names of operations, and what they are given."""
    ends = list(trace.outputs[: len(trace.outputs) - len(trace.decisions)])
    wanted, deciding = set(refs(ends)), set(refs(list(trace.outputs[len(ends) :])))
    kept = []
    for operation in reversed(trace.operations):
        made = {v for v in operation.results if v is not None}
        given = refs((operation.args, dict(operation.kwargs)))
        if made & deciding and not made & wanted:
            deciding.update(given)
        else:
            wanted.update(given)
            kept.append(operation)
    names: dict[int, Any] = {v.id: v.path for v in trace.variables if v.path}
    described: list[Any] = []
    for place, operation in enumerate(reversed(kept)):
        names |= {v: (place, k) for k, v in enumerate(operation.results) if v is not None}
        described.append((operation.name, substitute((operation.args, dict(operation.kwargs)), names)))
    return [*described, substitute(ends, names)]


def _most_bytes(program: Any) -> int:
    """The bytes that a training step holds at most: all that it computes on the CPU, and gradients."""
    computed = (n.meta.get("val") for n in program.graph.nodes if n.op == "call_function")
    tensors = [t for t in (*computed, *program.parameters()) if isinstance(t, torch.Tensor) and t.device.type == "cpu"]
    return sum(math.prod(map(hint, t.shape)) * t.element_size() for t in tensors)


def _free_bytes() -> float:
    """The memory that is left, where the system says so."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return math.inf
