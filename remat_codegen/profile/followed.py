"""The most memory that a piece of work would hold on a GPU that is not there: the life of each piece of memory is followed
while the work runs on tensors without data.

What the caching allocator rounds is rounded here. What a library allocates inside of a kernel nobody sees; where that is large
and its size is known from PyTorch's source, it stands in `_ROOM`. cuDNN's and cuBLAS's workspaces are not counted.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from remat_codegen.graph.allocator import allocated_bytes
from remat_codegen.torch_seam import TorchDispatchMode, current_node, key_of_storage, pytree
from remat_codegen.trace import absent

aten = torch.ops.aten
ADDS_TO_LEAF = "AccumulateGrad"  # the node of autograd's that adds to a .grad: in place on a GPU, elsewhere without data
FEW_INDICES = 3072  # up to which an embedding's gradient needs no sorting
ROWS_AT_ONCE = 10  # of a gradient that one thread adds up there


class Followed(TorchDispatchMode):
    """What is alive of what is made in here, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.most = 0
        self.known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, and notes what it allocates."""
        out = func(*args, **(kwargs or {}))
        node = current_node()
        if node is not None and ADDS_TO_LEAF in type(node).__name__:
            return out
        for leaf in pytree.tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == absent.TYPE:
                self._see(leaf.untyped_storage(), func, args)
        room = _ROOM.get(func)
        self.most = max(self.most, self.held + (room(*args) if room is not None else 0))
        return out

    def _see(self, storage: torch.UntypedStorage, func: Any, args: Any) -> None:
        key = key_of_storage(storage)
        if key in self.known or any(_is_of(leaf, key) for leaf in pytree.tree_leaves(args)):
            return
        nbytes = allocated_bytes(storage.nbytes(), absent.CUDA)
        self.known[key] = weakref.ref(storage, functools.partial(self._released, key, nbytes))
        self.held += nbytes

    def _released(self, key: int, nbytes: int, _: Any) -> None:
        if self.known.pop(key, None) is not None:
            self.held -= nbytes

    def begin(self) -> int:
        """What is held now, over which the most is looked for from now on."""
        self.most = self.held
        return self.held


def _is_of(leaf: Any, key: int) -> bool:
    return isinstance(leaf, torch.Tensor) and key_of_storage(leaf.untyped_storage()) == key


def followed_peak(prepare: Callable[[], Any], work: Callable[[Any], Any]) -> int:
    """The most that `work(prepare())` holds over what is held when it begins: what it releases of its argument counts."""
    with Followed() as followed:
        prepared = [prepare()]
        before = followed.begin()
        work(prepared.pop())
        return max(0, followed.most - before)


def _sorted_rows(grad: torch.Tensor, indices: torch.Tensor, rows: int, *_: Any) -> int:
    """Of an embedding's gradient: indices, sorted, and partial sums in single precision."""
    count = indices.numel()
    if count <= FEW_INDICES:
        return 0
    sums = count // ROWS_AT_ONCE + min(count, rows)
    return 8 * 8 * count + sums * grad.shape[-1] * max(4, grad.element_size())


def _as_much(tensor: torch.Tensor, *_: Any) -> int:
    """As much as what is given."""
    return tensor.numel() * tensor.element_size()


_ROOM: dict[Any, Callable[..., int]] = {
    aten.embedding_dense_backward.default: _sorted_rows,
    aten.logsumexp.default: _as_much,
}
