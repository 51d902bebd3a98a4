"""From what integers a node's inputs are drawn: an index points anywhere into what it indexes.

All zeros would let an embedding's backward add everything to one row, which takes kernels of GPUs far longer than rows that
differ. An index beyond what it indexes ends the whole process's use of a GPU. So an input is drawn from a range only if all
that reads it in the node is known: operations that index, and those that hand its numbers on. It is 0 otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from remat_codegen.torch_seam import schema
from remat_codegen.trace import Operation, Ref, Variable, without_kernels

PASSING = frozenset(
    "view reshape expand expand_as unsqueeze squeeze permute transpose t mT flatten unflatten view_as reshape_as "
    "contiguous clone detach alias to _to_copy type_as slice select narrow chunk split split_with_sizes unbind "
    "repeat movedim swapaxes flip roll lift_fresh_copy broadcast_to cat stack".split()
)
UNMOVED = frozenset(  # what these give does not depend on how large the numbers are, or is a place and no number
    "argmax argmin argsort zeros_like ones_like empty_like full_like rand_like randn_like new_zeros new_ones new_full "
    "new_empty".split()
)
BY_DIMENSION = frozenset(  # (tensor, dimension, index, ...)
    "gather index_select scatter scatter_add scatter_reduce index_add index_copy index_fill index_reduce".split()
)


def integer_ranges(operations: Sequence[Operation], variables: Sequence[Variable]) -> dict[int, int]:
    """By variable: integers of it are below this number, which is above 1. It holds what `operations` read, in this order."""
    below: dict[int, int] = {}
    for op in reversed(operations):
        for variable, most in _reads(op, variables, below).items():
            below[variable] = min(most, below.get(variable, most))
    return {v: most for v, most in below.items() if most > 1}


def _reads(op: Operation, variables: Sequence[Variable], below: Mapping[int, int]) -> dict[int, int]:
    """What one operation takes for each integer that it reads, given what is taken of its results."""
    name = _name(op)
    integers = [v for v in dict.fromkeys(op.reads) if _is_integer(variables[v])]
    made = op.made
    if name in PASSING and all(_is_integer(variables[v]) for v in made):
        handed_on = min((below[v] for v in made if v in below), default=None)
        return {} if handed_on is None else dict.fromkeys(integers, handed_on)
    indices = _indices(name, op, variables)
    if not indices and (name in UNMOVED or all(variables[v].dtype is torch.bool for v in made)):
        return {}
    if indices and integers:  # a table of integers is as its rows have to be
        table = min((below[v] for v in made if v in below), default=1)
        return {v: indices.get(v, table) for v in integers}
    return dict.fromkeys(integers, 1)


def _name(op: Operation) -> str:
    """Of an operation in place, that of the other."""
    return op.base.rstrip("_").removeprefix("_unsafe_")


def _is_integer(variable: Variable) -> bool:
    dtype = variable.dtype
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def _indices(name: str, op: Operation, variables: Sequence[Variable]) -> dict[int, int]:
    """The variables that an operation takes as indices, and how many there are of what each of them indexes."""
    args = _arguments(op)

    def shape(argument: str) -> tuple[int, ...]:
        return variables[args[argument].variable].shape

    found: list[tuple[Any, int]] = []
    if name in ("embedding", "embedding_bag"):
        found = [(args.get("indices"), shape("weight")[0])]
    elif name in BY_DIMENSION and isinstance(args.get("dim"), int) and shape("self"):
        found = [(args.get("index"), shape("self")[args["dim"]])]
    elif name == "take_along_dim" and isinstance(args.get("dim"), int):
        found = [(args.get("indices"), shape("self")[args["dim"]])]
    elif name in ("index", "index_put"):
        found = _places(args["indices"], shape("self"), variables)
    elif name in ("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d"):
        classes = shape("self")
        found = [(args.get("target"), classes[1] if len(classes) > 1 else classes[0])]
    elif name == "one_hot" and args.get("num_classes", -1) > 0:
        found = [(args.get("self"), args["num_classes"])]
    below: dict[int, int] = {}
    for ref, most in found:
        if isinstance(ref, Ref) and _is_integer(variables[ref.variable]):
            below[ref.variable] = max(1, min(most, below.get(ref.variable, most)))
    return below


def _arguments(op: Operation) -> dict[str, Any]:
    """The arguments of a call by name, without those that have their default."""
    names = [a.name for a in schema(without_kernels(op.target)).arguments]
    return dict(zip(names, op.args, strict=False)) | dict(op.kwargs)


def _places(indices: Any, shape: Sequence[int], variables: Sequence[Variable]) -> list[tuple[Any, int]]:
    """What x[indices] takes: None stands for a dimension, a mask for as many as it has."""
    found, dimension = [], 0
    for index in indices:
        if isinstance(index, Ref) and variables[index.variable].dtype is torch.bool:
            dimension += len(variables[index.variable].shape)
            continue
        found.append((index, shape[dimension]))
        dimension += 1
    return found
