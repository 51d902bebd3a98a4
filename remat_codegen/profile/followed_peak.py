"""The most memory that a piece of work would hold on a GPU that is not there: the life of each piece of memory is followed
while the work runs on tensors without data.

What the caching allocator rounds is rounded here. What a kernel allocates for itself nobody sees: `kernel_workspace.py` says
it, where it is known. The workspaces of cuBLAS are not counted.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from remat_codegen.graph.allocator import allocated_bytes
from remat_codegen.profile.kernel_workspace import room_bytes
from remat_codegen.torch_seam import TorchDispatchMode, current_node, key_of_storage, pytree
from remat_codegen.trace import absent

ADDS_TO_LEAF = "AccumulateGrad"  # the node of autograd's that adds to a .grad: in place on a GPU, elsewhere without data


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
        self.most = max(self.most, self.held + room_bytes(func, args))
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
