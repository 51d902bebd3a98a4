"""Attention inside of `with sdpa_kernel(...)`: an operation of its own for each choice of kernels.

A trace does not show what it runs under, and other kernels round otherwise. The operation makes the same choice wherever it is
run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from remat_codegen.torch_seam import attention_kernels, schema

NAMESPACE = "remat_kernels"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default

Kernels = tuple[tuple[SDPBackend, ...], bool]  # as sdpa_kernel is given them; whether their order is another than usual
_CHOSEN: dict[str, Kernels] = {}  # by the name of the operation


def without_kernels(target: Any) -> Any:
    """The operation of PyTorch's that is meant, whatever kernels are chosen for it."""
    return _ATTENTION if schema(target).name.startswith(f"{NAMESPACE}::") else target


def chosen_kernels(target: Any) -> str | None:
    """The expression for the context manager that chooses an operation's kernels, if one does."""
    namespace, _, name = schema(target).name.partition("::")
    if namespace != NAMESPACE:
        return None
    kernels, ordered = _CHOSEN[name]
    names = ", ".join(f"torch.nn.attention.{kernel}" for kernel in kernels)
    return f"torch.nn.attention.sdpa_kernel([{names}]{', set_priority=True' if ordered else ''})"


def as_operation(function: Any, usual: tuple[SDPBackend, ...]) -> Any:
    """What is to be traced for a function: for attention that may take other kernels than `usual`, an operation that makes the
    choice; else itself."""
    if function not in (torch.nn.functional.scaled_dot_product_attention, _ATTENTION, _ATTENTION.overloadpacket):
        return function
    chosen = attention_kernels()
    ordered = chosen != tuple(k for k in usual if k in chosen)
    return function if chosen == usual else _operation((chosen, ordered))


def _operation(chosen: Kernels) -> Any:
    """The operation for a choice, which is made when it is first asked for."""
    kernels, ordered = chosen
    name = "_".join(["attention", *(kernel.name.lower() for kernel in kernels), *(["ordered"] if ordered else [])])
    if name not in _CHOSEN:
        _CHOSEN[name] = chosen
        _LIBRARY.define(f"{name}{str(schema(_ATTENTION)).removeprefix(schema(_ATTENTION).name)}")
        _LIBRARY.impl(name, lambda *args, **kwargs: _run(chosen, args, kwargs), "CompositeImplicitAutograd")
    return getattr(getattr(torch.ops, NAMESPACE), name)


def _run(chosen: Kernels, args: Any, kwargs: Any) -> Any:
    kernels, ordered = chosen
    with sdpa_kernel(list(kernels), set_priority=ordered):
        return _ATTENTION(*args, **kwargs)
