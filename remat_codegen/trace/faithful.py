"""Whether a trace computes what the model does, where libraries were told that they are traced (`questions.py`): both are
run."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from remat_codegen.torch_seam import pytree, tree_map
from remat_codegen.trace.attributes import computed_attributes
from remat_codegen.trace.ir import Origin, Trace, refs, substitute
from remat_codegen.trace.sizes import hint
from remat_codegen.trace.state import attributes_of, put_back
from remat_codegen.trace.structures import know_dataclasses
from remat_codegen.trace.surroundings import Autocast, autocasting

SEED = 0
LARGEST_STEP_BYTES = 8 * 2**30  # what a step that is run may hold: a constant, so that every machine chooses the same trace


@dataclass(frozen=True)
class Program:
    """What torch.export has made of a model. It returns (result, more) where forward returns `beside` its result."""

    run: Any
    beside: bool


@dataclass(frozen=True)
class Step:
    """What a step leaves: tensors and the rest of what is returned, gradients and buffers by name."""

    tensors: list[torch.Tensor]
    rest: list[Any]
    gradients: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]


def computes_alike(program: Program, module: nn.Module, args: Any, kwargs: Any, autocast: Autocast) -> bool | None:
    """Whether `program` returns what `module` does, with the same gradients and buffers, to the bit. True, too, where those of
    the module are others each time; None where a step is too large to find out, or cannot run.

    Works on copies; leaves generators as they were.
    """
    if _most_bytes(program.run) > LARGEST_STEP_BYTES:
        return None
    try:
        with warnings.catch_warnings(record=True):
            first = _step(module, False, args, kwargs, autocast)
            if not _are_alike(first, _step(module, False, args, kwargs, autocast)):
                return True
            return _are_alike(first, _step(program.run, program.beside, args, kwargs, autocast))
    except Exception:  # no memory, no copy, or no forward pass but in a trace
        return None


def computes_alike_again(module: nn.Module, args: Any, kwargs: Any, autocast: Autocast) -> bool:
    """Whether a step of a model is the same, to the bit, after a forward pass of which only its plain objects keep something,
    as a table that the first one makes. False, too, where that cannot be run. Works on copies; leaves generators as they were.
    """
    try:
        with warnings.catch_warnings(record=True):
            first, moved = _step(module, False, args, kwargs, autocast), copy.deepcopy(module, computed_attributes(module))
            held, buffers = attributes_of(moved), {name: b.clone() for name, b in moved.named_buffers()}
            _run(moved, args, kwargs, autocast)
            put_back(moved, held)
            with torch.no_grad():
                for name, buffer in moved.named_buffers():
                    buffer.copy_(buffers[name])
            return _are_alike(first, _step(moved, False, args, kwargs, autocast))
    except Exception:  # no memory, no copy, no data
        return False


def _run(module: nn.Module, args: Any, kwargs: Any, autocast: Autocast) -> None:
    """A forward pass of which nothing is wanted."""
    given, others = tree_map(_leaf, (args, kwargs))
    with torch.no_grad(), _generators_as_before(), autocasting(autocast):
        module(*given, **others)


def _generators_as_before() -> Any:
    return torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else [])


def _step(original: nn.Module, beside: bool, args: Any, kwargs: Any, autocast: Autocast) -> Step:
    """One step of a copy, the gradients for random cotangents."""
    run = copy.deepcopy(original, computed_attributes(original))
    buffers = dict(run.named_buffers())
    given, others = tree_map(_leaf, (args, kwargs))
    inputs = {f"input {i}": leaf for i, leaf in enumerate(pytree.tree_leaves((given, others)))}
    trained = {**inputs, **dict(run.named_parameters())}
    trained = {name: t for name, t in trained.items() if isinstance(t, torch.Tensor) and t.requires_grad}
    with _generators_as_before():
        torch.manual_seed(SEED)
        with autocasting(autocast):
            found = run(*given, **others)
        leaves, spec = pytree.tree_flatten(know_dataclasses(found[0] if beside else found))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        ends = [t for t in tensors if t.requires_grad]
        cotangents = [torch.randn_like(t) for t in ends]
        some = ends and trained
        gradients = torch.autograd.grad(ends, [*trained.values()], cotangents, allow_unused=True) if some else ()
    rest = [spec, *(leaf for leaf in leaves if not isinstance(leaf, torch.Tensor))]
    kept = {
        name: b for name, b in run.named_buffers() if b is buffers.get(name)
    }  # assigned ones are returned beside the result
    by_name = {name: g for name, g in zip(trained, gradients, strict=False) if g is not None}
    return Step([t.detach() for t in tensors], rest, by_name, kept)


def _leaf(leaf: Any) -> Any:
    return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf


def _are_alike(one: Step, other: Step) -> bool:
    if (len(one.tensors), one.rest, one.gradients.keys()) != (len(other.tensors), other.rest, other.gradients.keys()):
        return False
    both = one.buffers.keys() & other.buffers.keys()
    pairs = [*zip(one.tensors, other.tensors, strict=True), *((one.buffers[n], other.buffers[n]) for n in both)]
    pairs += [(gradient, other.gradients[name]) for name, gradient in one.gradients.items()]
    return all(_is_equal(a, b) for a, b in pairs)


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    alike = (one.shape, one.dtype) == (other.shape, other.dtype)
    return alike and bool(((one == other) | ((one != one) & (other != other))).all())


def have_the_same_operations(one: Trace, other: Trace) -> bool:
    """Whether two traces compute the same but for what is decided by."""
    return one.output_spec == other.output_spec and _described(one) == _described(other)


def _described(trace: Trace) -> list[str]:
    """What a trace computes its result by, without what it numbers: names of operations, and what they are given."""
    ends = list(trace.outputs[: len(trace.outputs) - len(trace.decisions)])
    wanted, deciding = set(refs(ends)), set(refs(list(trace.outputs[len(ends) :])))
    kept = []
    for operation in reversed(trace.operations):
        made = set(operation.made)
        if made & deciding and not made & wanted:
            deciding.update(operation.reads)
        else:
            wanted.update(operation.reads)
            kept.append(operation)
    names: dict[int, Any] = {v.id: v.path for v in trace.variables if v.origin is not Origin.CONSTANT and v.path}
    names |= {v: (tensor.dtype, tensor.shape, tensor.tolist()) for v, tensor in trace.constants}
    described = []
    for place, operation in enumerate(reversed(kept)):
        names |= {v: (place, k) for k, v in enumerate(operation.results) if v is not None}
        given = substitute((operation.args, dict(operation.kwargs)), names)
        described.append(repr((operation.name, given, operation.grad_enabled, operation.autocast)))
    return [*described, repr(substitute(ends, names))]


def _most_bytes(program: Any) -> int:
    """The bytes that a training step holds at most: all that it computes, and gradients."""
    computed = (n.meta.get("val") for n in program.graph.nodes if n.op == "call_function")
    tensors = [t for t in (*computed, *program.parameters()) if isinstance(t, torch.Tensor)]
    return sum(math.prod(map(hint, t.shape)) * t.element_size() for t in tensors)
