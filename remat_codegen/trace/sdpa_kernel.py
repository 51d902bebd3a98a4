"""Attention inside of `with sdpa_kernel(...)`: an operation of its own for each choice of kernels.

A trace does not show what it runs under, and other kernels round otherwise. The operation makes the same choice wherever it is
run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

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


@contextlib.contextmanager
def kernels_as_operations() -> Iterator[None]:
    """In here, attention with a choice of kernels is traced as an operation that makes the choice."""
    with _Attention(attention_kernels()):
        yield


class _Attention(TorchFunctionMode):
    """Calls another operation instead of attention's own where it may take other kernels than `usual`."""

    def __init__(self, usual: tuple[SDPBackend, ...]) -> None:
        super().__init__()
        self.usual = usual

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Runs the function, or its substitute."""
        if func in (torch.nn.functional.scaled_dot_product_attention, _ATTENTION, torch.ops.aten.scaled_dot_product_attention):
            chosen = attention_kernels()
            ordered = chosen != tuple(k for k in self.usual if k in chosen)
            func = func if chosen == self.usual else _operation((chosen, ordered))
        return func(*args, **(kwargs or {}))


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
