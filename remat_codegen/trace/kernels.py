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

from remat_codegen.trace.swapping import own_copy, swapped

NAMESPACE = "remat_kernels"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_CHOOSE: Any = sdpa_kernel.__wrapped__  # type: ignore[attr-defined]
_OWN_CHOOSE = contextlib.contextmanager(own_copy(_CHOOSE))

Kernels = tuple[tuple[SDPBackend, ...], bool]  # as sdpa_kernel is given them; whether their order counts
_CHOSEN: dict[str, Kernels] = {}  # by the name of the operation


def without_kernels(target: Any) -> Any:
    """The operation of PyTorch's that is meant, whatever kernels are chosen for it."""
    return _ATTENTION if target._schema.name.startswith(f"{NAMESPACE}::") else target


def chosen_kernels(target: Any) -> str | None:
    """The expression for the context manager that chooses an operation's kernels, if one does."""
    namespace, _, name = target._schema.name.partition("::")
    if namespace != NAMESPACE:
        return None
    kernels, ordered = _CHOSEN[name]
    names = ", ".join(f"torch.nn.attention.{kernel}" for kernel in kernels)
    return f"torch.nn.attention.sdpa_kernel([{names}]{', set_priority=True' if ordered else ''})"


@contextlib.contextmanager
def kernels_as_operations() -> Iterator[None]:
    """In here, attention with a choice of kernels is traced as an operation that makes the choice."""

    def make(_: Any) -> Any:
        def choose(backends: Any, set_priority: bool = False) -> Iterator[Any]:
            kernels = tuple(dict.fromkeys([backends] if isinstance(backends, SDPBackend) else backends))
            with _choosing((kernels, set_priority)), _Attention((kernels, set_priority)):
                yield {}

        return choose

    with swapped(_CHOOSE, make):
        yield


def _choosing(chosen: Kernels) -> Any:
    kernels, ordered = chosen
    return _OWN_CHOOSE(list(kernels), **({"set_priority": True} if ordered else {}))  # older versions do not know it


class _Attention(TorchFunctionMode):
    """Calls another operation instead of attention's own."""

    def __init__(self, chosen: Kernels) -> None:
        super().__init__()
        self.chosen = chosen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Runs the function, or its substitute."""
        if func in (torch.nn.functional.scaled_dot_product_attention, _ATTENTION, torch.ops.aten.scaled_dot_product_attention):
            func = _operation(self.chosen)
        return func(*args, **(kwargs or {}))


def _operation(chosen: Kernels) -> Any:
    """The operation for a choice, which is made when it is first asked for."""
    kernels, ordered = chosen
    name = "_".join(["attention", *(kernel.name.lower() for kernel in kernels), *(["ordered"] if ordered else [])])
    if name not in _CHOSEN:
        _CHOSEN[name] = chosen
        _LIBRARY.define(f"{name}{str(_ATTENTION._schema).removeprefix(_ATTENTION._schema.name)}")
        _LIBRARY.impl(name, lambda *args, **kwargs: _run(chosen, args, kwargs), "CompositeImplicitAutograd")
    return getattr(getattr(torch.ops, NAMESPACE), name)


def _run(chosen: Kernels, args: Any, kwargs: Any) -> Any:
    with _choosing(chosen):
        return _ATTENTION(*args, **kwargs)
