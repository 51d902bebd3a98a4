"""Functions that torch.jit.script has compiled. (Modules that it has are refused where the model is loaded.)

Once such a function was called a few times, it runs without autograd and has a gradient of its own, which holds on to what it
needs by itself: no trace shows that, and no part forgets it. So gradients cannot go through one. What is none of a gradient's
business, as positions that are computed so, is traced like anything else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from remat_codegen.torch_seam import pytree
from remat_codegen.trace.refusals import refused


@contextlib.contextmanager
def no_scripted_gradients() -> Iterator[None]:
    """In here, what was scripted runs as it is written, and is refused where a gradient goes through it.

    Raises UnsupportedError, naming the user's line.
    """
    kind: Any = torch.jit.ScriptFunction
    with torch.jit.optimized_execution(False), mock.patch.object(kind, "__call__", _refusing(kind.__call__)):
        yield


def _refusing(own: Callable[..., Any]) -> Callable[..., Any]:
    def call(scripted: Any, *args: Any, **kwargs: Any) -> Any:
        result = own(scripted, *args, **kwargs)
        trained = any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in pytree.tree_leaves(result))
        if trained and torch.is_grad_enabled():
            what = f"{scripted.name} is compiled by torch.jit.script, whose gradients hold what they need where no plan sees it"
            raise refused(what, "leave out torch.jit.script; torch.compile is what came after it")
        return result

    return call
