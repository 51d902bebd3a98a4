"""What an operation is by nature: whether it draws random numbers, what it writes in place, what memory its library hides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from remat_codegen.torch_seam import pytree, schema, storage_key, unset_fake_temporarily
from remat_codegen.trace import Operation

# Arguments that an operation moves along, running statistics, though its results in training do not depend on them.
STATISTICS = {"batch_norm": (3, 4), "instance_norm": (3, 4)}
REDUCING = frozenset("mse_loss smooth_l1_loss binary_cross_entropy soft_margin_loss".split())  # in the memory of all numbers
DROPOUTS = frozenset(f"aten::{name}dropout" for name in ("", "feature_", "alpha_", "feature_alpha_"))
IN_TRAINING = 5  # the argument that says whether it does


def moves_statistics(op: Operation) -> bool:
    """Whether an operation moves running statistics along. Fake tensors do not show it."""
    return op.base in STATISTICS and _argument(op, IN_TRAINING, schema(op.target).arguments[IN_TRAINING]) is True


def storage_bytes(op: Operation, args: Sequence[Any], result: torch.Tensor) -> int:
    """The bytes of a result's memory. Losses that compute all numbers before they reduce them do so in that; fake tensors say
    that it holds one number."""
    nbytes: int = result.untyped_storage().nbytes()
    if op.base not in REDUCING or not _argument(op, (place := _place(op, "reduction")), schema(op.target).arguments[place]):
        return nbytes
    return max(nbytes, math.prod(torch.broadcast_shapes(args[0].shape, args[1].shape)) * result.element_size())


def is_opaque(op: Operation) -> bool:
    """Whether an operation saves a workspace of its library's own, the size of which fake tensors do not know."""
    return op.base in ("lstm", "gru", "rnn_tanh", "rnn_relu")


def real_phantoms(op: Operation, args: Any, kwargs: Any) -> tuple[int, ...]:
    """The sizes of what an operation saves beside its arguments and results, seen by running it for real, on zeros."""

    def real(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        zeros = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device).zero_()
        return zeros.requires_grad_(leaf.requires_grad)

    found: list[torch.Tensor] = []
    with unset_fake_temporarily(), torch.random.fork_rng(devices=[]):
        args, kwargs = pytree.tree_map(real, (args, kwargs))
        weights = args[_place(op, "params")]
        if weights[0].is_cuda:
            in_one_piece(op, weights)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: found.append(t.detach()), lambda held: held):
            out = op.target(*args, **kwargs)
        known = {storage_key(t) for t in pytree.tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)}
        sizes = {storage_key(t): t.untyped_storage().nbytes() for t in found}
    return tuple(size for key, size in sizes.items() if key not in known)


def in_one_piece(op: Operation, weights: Sequence[torch.Tensor]) -> None:
    """Has the weights of a recurrent network lie in memory as its module lays them on CUDA: apart, cuDNN copies them in each
    call. They get other values."""
    gates = {"lstm": 4, "gru": 3}.get(op.base, 1)
    kind: Any = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(op.base, torch.nn.RNN)
    rows, inputs = weights[0].shape
    hidden, handed_on = rows // gates, weights[1].shape[1]
    options: dict[str, Any] = {"nonlinearity": op.base.removeprefix("rnn_")} if kind is torch.nn.RNN else {}
    options |= {"proj_size": handed_on} if handed_on != hidden else {}
    bias, layers, _, _, bidirectional, *_ = op.args[_place(op, "params") + 1 :]
    options |= {"bias": bias, "num_layers": layers, "bidirectional": bidirectional}
    module = kind(inputs, hidden, device=weights[0].device, dtype=weights[0].dtype, **options)
    for weight, flat in zip(weights, module.parameters(), strict=True):
        weight.data = flat.data


def weights_of(op: Operation) -> Sequence[Any]:
    """What a recurrent network's operation gets as weights."""
    return op.args[_place(op, "params")]


def _place(op: Operation, name: str) -> int:
    return next(i for i, a in enumerate(schema(op.target).arguments) if a.name == name)


def written_arguments(op: Operation, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """The tensors that an operation's schema says it writes."""
    return written_tensors(op.target, args, kwargs)


def written_tensors(target: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """The tensors that the schema of what is called says it writes."""
    for position, argument in enumerate(schema(target).arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        yield from (t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor))


def rows_at_most(
    indices: Sequence[torch.Tensor | None], known: Callable[[torch.Tensor], int | None]
) -> list[torch.Tensor | None]:
    """Indices with numbers in place of masks, as many as are `known` to be True, or as if every mask were True everywhere: how
    many rows a mask takes depends on data. `h[mask] = row` takes those of the gradient on its way back."""
    found: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            found.append(index)
        else:
            count = known(index)
            rows = index.numel() if count is None else count
            found += [index.new_empty(rows, dtype=torch.int64) for _ in range(index.dim())]
    return found


def is_random(op: Operation) -> bool:
    """Whether an operation draws from the device's generator. Attention does so for its dropout alone, and a dropout of nothing
    gives what it is given."""
    given = {a.name: _argument(op, i, a) for i, a in enumerate(schema(op.target).arguments)}
    dropout = given.get("dropout_p", given.get("dropout"))
    if schema(op.target).name.rstrip("_") in DROPOUTS:
        dropout = given["p"] if given["train"] else 0.0
    return bool(dropout) if dropout is not None else torch.Tag.nondeterministic_seeded in op.target.tags


def _argument(op: Operation, position: int, argument: Any) -> Any:
    return op.args[position] if position < len(op.args) else dict(op.kwargs).get(argument.name, argument.default_value)
