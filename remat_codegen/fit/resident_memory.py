"""What a training process holds all the time beside the step's own work, which is what budgets are for: parameters, their
gradients, the optimizer's state, buffers and inputs; and what the device has free for all of it together.

Memory that tensors share counts once (tied parameters, a buffer that is a view of another). What is frozen has neither gradient
nor state. What autocast makes of weights is none of this: copies in another type belong to the step, and its plan counts them.

On CUDA there is what the allocator and the libraries take: each piece is a block of whole 512 bytes (graph/allocator.py),
cuBLAS keeps a workspace for the thread of the forward pass and one for autograd's, and of the segments that the allocator takes
from the device one of each kind is begun and not full. A CUDA context is not among it: it is gone from what a device has free.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from remat_codegen.ask.budget import format_bytes
from remat_codegen.ask.optimizers import NO_OPTIMIZER, state_pieces
from remat_codegen.errors import BudgetError
from remat_codegen.graph.allocator import allocated_bytes
from remat_codegen.show.results import Item
from remat_codegen.torch_seam import pytree, storage_key
from remat_codegen.trace.absent import kind_of

CUBLAS_BYTES = 32 * 2**20  # of one thread
THREADS = 2  # that multiply matrices: the one that runs forward, and autograd's
SEGMENTS_BYTES = (
    2 + 20
) * 2**20  # one for pieces up to 1 MiB and one for those up to 10; larger ones have segments of their own
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
CGROUP_FILES = (  # limit, use, and the part of the use that is given back when it is needed: version 2, then 1
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)


def standing(
    module: torch.nn.Module, inputs: Any, optimizer: str, device: str, held: Iterable[torch.Tensor] = ()
) -> tuple[Item, ...]:
    """What stands beside the step, item by item. `inputs` is any structure of tensors, `optimizer` a name in `OPTIMIZERS`,
    `held` are tensors that the model holds as plain attributes. What is on other devices does not count."""
    kind = torch.device(device).type
    here = _Storages(kind)
    parameters = list(module.parameters())
    leaves = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    trained = [p for p in parameters if p.requires_grad and kind_of(p) == kind]
    wanting = [t for t in leaves if t.requires_grad and t.is_leaf and kind_of(t) == kind]
    pieces = {"parameters": here.new(parameters)}
    pieces["gradients"] = [t.numel() * t.element_size() for t in (*trained, *wanting)]
    pieces[state_name(optimizer)] = _state(trained, optimizer, kind)
    pieces["buffers"] = here.new([*module.buffers(), *held])
    pieces["inputs"] = here.new(leaves)
    details = {"parameters": _numbers(parameters), "gradients": _also_inputs(wanting)}
    items = [Item(what, sum(found), details.get(what, "")) for what, found in pieces.items()]
    items = [item for item in items if item.nbytes or item.what == "parameters"]
    return (*items, *(_cuda_items([n for found in pieces.values() for n in found]) if kind == "cuda" else ()))


def state_name(optimizer: str) -> str:
    """What an optimizer's state is called in a sum."""
    return "no optimizer's state" if optimizer == NO_OPTIMIZER else f"{optimizer}'s state"


class _Storages:
    """Pieces of memory on one kind of device, each counted once."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.seen: set[int] = set()

    def new(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        """The bytes of each storage that was not there before."""
        found = []
        for tensor in tensors:
            if kind_of(tensor) == self.kind and (key := storage_key(tensor)) not in self.seen:
                self.seen.add(key)
                found.append(tensor.untyped_storage().nbytes())
        return found


def _state(trained: Sequence[torch.Tensor], optimizer: str, kind: str) -> list[int]:
    number = torch.get_default_dtype().itemsize
    return [n for p in trained for n in state_pieces(optimizer, p.shape, p.element_size(), number, kind == "cpu")]


def _numbers(parameters: Sequence[torch.Tensor]) -> str:
    frozen = sum(p.numel() for p in parameters if not p.requires_grad)
    return f"{sum(p.numel() for p in parameters):,} numbers{f', {frozen:,} of them frozen' if frozen else ''}"


def _also_inputs(wanting: Sequence[torch.Tensor]) -> str:
    return "of inputs, too" if wanting else ""


def _cuda_items(pieces: Sequence[int]) -> tuple[Item, ...]:
    rounded = sum(allocated_bytes(n, "cuda") - n for n in pieces)
    blocks = [Item("blocks of the allocator", rounded, "what they are larger than is asked for")] if rounded else []
    return (
        *blocks,
        Item("segments of the allocator", SEGMENTS_BYTES, "begun and not full"),
        Item("cuBLAS's workspaces", THREADS * CUBLAS_BYTES, "of the forward pass and of the backward pass"),
    )


# ---------------------------------------------------------------------------------------------- what there is


def free_bytes(device: str) -> int:
    """What a device has free, and what this process has taken of a GPU for tensors. Raises BudgetError where it is unknown."""
    where = torch.device(device)
    if where.type == "cuda":
        free, _ = torch.cuda.mem_get_info(where)
        return int(free) + torch.cuda.memory_reserved(where)
    known = [n for n in (_free_of_machine(), _free_of_container()) if n is not None]
    if not known:
        raise BudgetError("this system does not say what is free", where="--fit", hint="give a number, like --fit 24GiB")
    return min(known)


def _free_of_machine() -> int | None:
    """Memory that can be had without swapping, as the operating system sees it."""
    try:
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    names = getattr(os, "sysconf_names", {})
    for pages in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):  # macOS knows the second only
        if pages in names and "SC_PAGE_SIZE" in names and os.sysconf(pages) > 0:
            return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    return None


def _free_of_container() -> int | None:
    """What a container's limit leaves; None where there is no limit."""
    for limit, use, stat, given_back in CGROUP_FILES:
        try:
            most, used = int((CGROUP / limit).read_text()), int((CGROUP / use).read_text())
            rows = dict(line.split() for line in (CGROUP / stat).read_text().splitlines())
            return max(0, most - used + int(rows.get(given_back, 0)))
        except (OSError, ValueError):  # another version, or `max`
            continue
    return None


def sum_in_words(items: Sequence[Item]) -> str:
    """1.00 GiB of parameters, 2.00 GiB of adamw's state."""
    return ", ".join(f"{item.what} {format_bytes(item.nbytes)}" for item in items)
