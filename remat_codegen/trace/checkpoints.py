"""Calls of torch.utils.checkpoint inside of forward: the trace goes through them, and notes which operations stand in them.

The plan takes the place of what they do, so that their operations are traced as if nobody checkpointed; each operation then
says in which calls it was made, and what the model takes as it is written can be priced.

`checkpoint(use_reentrant=False)`, `checkpoint_sequential`, `checkpoint_wrapper`, the composable `checkpoint` and what libraries
store as `partial(checkpoint, ...)` all end in one generator function of torch.utils.checkpoint. It runs up to its `yield`
before the user's function, and on after it, and is found by name. Where a PyTorch has none, nothing is noted.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Generator, Iterator
from types import FrameType
from typing import Any

import torch
from torch.utils import checkpoint

from remat_codegen.torch_seam import checkpoint_generator, made_by, proxy_tensor
from remat_codegen.trace.ir import Region
from remat_codegen.trace.refusals import is_library

META = "remat_codegen_regions"  # of nodes of the traced graph: the regions that they stand in, outermost first
RETURNED = "remat_codegen_returned"  # the regions that return what they make
_EXPORT = ("/torch/export/", "/torch/_export/")


@contextlib.contextmanager
def checkpoints_noted() -> Iterator[None]:
    """In here, what is traced inside of a call of torch.utils.checkpoint says so in its node's meta."""
    with checkpoint_generator(_noting):
        yield


def _noting(own: Any) -> Any:
    """A generator function that notes in the place of `own`, which packs what autograd saves: one inside of another leaves
    torch.export's trace with gradients switched off. What the user's `context_fn` does to the forward pass happens."""

    @functools.wraps(own)
    def noted(*args: Any, **kwargs: Any) -> Generator[None]:
        given = inspect.signature(own).bind(*args, **kwargs).arguments
        context_fn = given.get("context_fn", checkpoint.noop_context_fn)
        selective = context_fn is not checkpoint.noop_context_fn
        forward = context_fn()[0] if torch.is_grad_enabled() else contextlib.nullcontext()
        keeps_state = bool(given.get("preserve_rng_state", True))
        with _region(reentrant=False, selective=selective, keeps_state=keeps_state), forward:
            yield

    return noted


def run_reentrant(function: Any, preserve: Any, *args: Any) -> Any:
    """What `CheckpointFunction.apply` returns where an argument has a gradient, traced as the operations that it runs.

    Its backward runs the function again, and goes back through that: the gradients are those of a plain call, but for what
    others read of it that it does not return. That is made without gradients.
    """
    with _region(reentrant=True, selective=False, keeps_state=bool(preserve)) as returned:
        returned.append(function(*args))
    return returned[0]


def escapes(made: torch.fx.Node, reader: torch.fx.Node) -> Region | None:
    """The reentrant call that makes what a node reads outside of it, and does not return it."""
    outside = (r for r in regions_of(made) if r.reentrant and r not in made.meta.get(RETURNED, ()))
    return next((r for r in outside if r not in regions_of(reader)), None)


@contextlib.contextmanager
def _region(*, reentrant: bool, selective: bool, keeps_state: bool) -> Iterator[list[Any]]:
    """Notes one region on the nodes that are made in here. Yields a list for what it returns."""
    mode, returned = proxy_tensor.get_proxy_mode(), list[Any]()
    if mode is None:  # something that is run beside the trace
        yield returned
        return
    graph = mode.tracer.graph
    before = len(graph.nodes)
    where = _caller(sys._getframe())
    yield returned
    made = list(graph.nodes)[before:]
    region = Region(before, where, reentrant=reentrant, selective=selective, keeps_state=keeps_state)
    for node in made:
        node.meta[META] = (region, *node.meta.get(META, ()))
    ends = (made_by(t, mode.tracer) for t in _with_gradient(returned))
    for node in filter(None, ends):
        node.meta[RETURNED] = (region, *node.meta.get(RETURNED, ()))


def _with_gradient(returned: list[Any]) -> list[torch.Tensor]:
    """Of what a reentrant call returns, what has a gradient outside: a tensor, or those of a tuple, but none in a list."""
    direct = (item for result in returned for item in (result if isinstance(result, tuple) else (result,)))
    return [item for item in direct if isinstance(item, torch.Tensor)]


def _caller(frame: FrameType | None) -> str | None:
    """The innermost line of forward that is not PyTorch's, as messages print it."""
    while frame is not None and not any(part in frame.f_code.co_filename for part in _EXPORT):
        path = frame.f_code.co_filename
        if not is_library(path):
            return f"{path.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def regions_of(node: torch.fx.Node) -> tuple[Region, ...]:
    """The regions that a traced node stands in, outermost first."""
    found: tuple[Region, ...] = node.meta.get(META, ())
    return found
