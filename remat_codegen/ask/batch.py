"""Inputs of another batch size (`--batch 16`): the rows that there are, again and again, or fewer of them. Several sizes
(`--batch 32,16,8`) are for files with a plan for each.

Which sizes are the batch: the leading one of every input, where that is the same for all, or those that are named as for
`--dynamic` (`--batch src.1,tgt.1=16`). Rows are repeated rather than drawn, so that values are such as the model takes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from remat_codegen.ask.target import Target
from remat_codegen.errors import TargetError
from remat_codegen.torch_seam import pytree, tree_map
from remat_codegen.trace.absent import beside
from remat_codegen.trace.sizes import Asked, named_leaves, parse_dynamic

OPTION = "--batch"
FORM = f"write {OPTION} 16, or name the sizes: {OPTION} idx.0,targets.0=16"

_FORM = re.compile(r"(?:([^=]*[^=\s])\s*=)?\s*([0-9]{1,9}(?:\s*,\s*[0-9]{1,9})*)")


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch size, and the sizes that it is for, as for `--dynamic`; empty: the leading one of every input."""

    size: int
    places: str = ""

    def __str__(self) -> str:
        return f"{self.places}={self.size}" if self.places else str(self.size)


def parse_batch(text: str) -> Batch:
    """Reads `--batch` where there can be one size. Raises TargetError."""
    first, *others = parse_batches(text)
    if others:
        what = f"{text!r} names several sizes, which only a generated file can have plans for"
        raise TargetError(what, where=OPTION, hint="name one of them")
    return first


def parse_batches(text: str) -> tuple[Batch, ...]:
    """Reads `--batch`, the largest size first. Raises TargetError."""
    found = _FORM.fullmatch(text.strip())
    sizes = {int(size) for size in found[2].split(",")} if found is not None else {0}
    if found is None or 0 in sizes:
        raise TargetError(f"cannot read {text!r}", where=OPTION, hint=FORM)
    places = (found[1] or "").replace(" ", "")
    return tuple(Batch(size, places) for size in sorted(sizes, reverse=True))


def batch_sizes(
    places: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], where: str = OPTION
) -> Asked:
    """The inputs and dimensions that are the batch. Raises TargetError where they differ, or there are none."""
    if places:
        found = parse_dynamic(places, forward, args, kwargs, where=where, least=1)
    else:
        leaves = pytree.tree_leaves((args, kwargs))
        found = tuple((t, 0) for t in leaves if isinstance(t, torch.Tensor) and t.dim())
    sizes = {tensor.shape[dimension] for tensor, dimension in found}
    if len(sizes) == 1 and sizes != {0}:
        return found
    if not sizes:
        raise TargetError("no input has a size that could be the batch", where=where, hint=f"leave out {where}")
    names = {id(leaf): name for name, leaf in named_leaves(forward, args, kwargs).items()}
    listed = ", ".join(f"{names.get(id(t), 'an input')}.{d} is {t.shape[d]}" for t, d in found)
    hint = f"name it: {where} {_likeliest(found, names) or 'idx.0'}{'=N' if where == OPTION else ''}"
    raise TargetError(f"cannot tell which size is the batch: {listed}", where=where, hint=hint)


def leading(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], dimension: int = 0) -> str:
    """The sizes that most inputs begin with, or have in another `dimension`, as the options name them; empty where no input has
    one."""
    leaves = named_leaves(forward, args, kwargs)
    found = tuple((t, dimension) for t in leaves.values() if t.dim() > dimension)
    return _likeliest(found, {id(leaf): name for name, leaf in leaves.items()})


def _likeliest(found: Asked, names: dict[int, str]) -> str:
    shared = Counter(t.shape[d] for t, d in found if id(t) in names)
    size = max(shared, key=lambda one: shared[one], default=0)
    named = [f"{names[id(t)]}.{d}" for t, d in found if id(t) in names and t.shape[d] == size]
    return ",".join(dict.fromkeys(named))


def size_of(asked: Asked) -> int:
    """The batch size that `batch_sizes` found."""
    tensor, dimension = asked[0]
    return int(tensor.shape[dimension])


def with_batch(
    batch: Batch, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs with another batch size. One tensor that stands in two places stays one tensor. Raises TargetError."""
    dimensions: dict[int, set[int]] = {}
    for tensor, dimension in batch_sizes(batch.places, forward, args, kwargs):
        dimensions.setdefault(id(tensor), set()).add(dimension)
    made: dict[int, torch.Tensor] = {}

    def change(leaf: Any) -> Any:
        if id(leaf) not in dimensions:
            return leaf
        if id(leaf) not in made:
            made[id(leaf)] = _resized(leaf, dimensions[id(leaf)], batch.size)
        return made[id(leaf)]

    changed: tuple[tuple[Any, ...], dict[str, Any]] = tree_map(change, (args, kwargs))
    return changed


def at_batch(target: Target, batch: Batch) -> Target:
    """A target with inputs of another batch size. Raises TargetError where there are none."""
    args, kwargs = with_batch(batch, target.module.forward, target.args, target.kwargs)
    return replace(target, args=args, kwargs=kwargs)


def at_largest_batch(target: Target, batch: str) -> Target:
    """A target with inputs of the largest batch size that `--batch` names, if it is given. Raises TargetError."""
    return at_batch(target, parse_batches(batch)[0]) if batch else target


def _resized(tensor: torch.Tensor, dimensions: set[int], size: int) -> torch.Tensor:
    """The tensor with `size` rows in some dimensions, as a leaf, its dimensions in the same order in memory."""
    rows = tensor.detach()
    with beside(tensor):
        for dimension in dimensions:
            rows = rows.index_select(dimension, torch.arange(size, device=tensor.device) % tensor.shape[dimension])
        order = sorted(range(tensor.dim()), key=tensor.stride().__getitem__, reverse=True)  # equal ones stay in order
        made = torch.empty_permuted(rows.shape, order, dtype=tensor.dtype, device=tensor.device)
        return made.copy_(rows).requires_grad_(tensor.requires_grad)
