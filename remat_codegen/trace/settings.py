"""What forward reads of its modules beside tensors and modules: numbers, texts and functions, which a trace holds for good."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree


def _limits(type: torch.finfo) -> tuple[float, ...]:
    return type.max, type.tiny, type.eps


KINDS = (bool, int, float, complex, str, type(None), torch.dtype)
NAMED = (types.FunctionType, types.BuiltinFunctionType, type)
LIKE_OTHERS = (torch.ops.aten.type_as.default, torch.ops.aten.to.other)
LIMITS = {n for t in (torch.float64, torch.float32, torch.bfloat16, torch.float16) for n in _limits(torch.finfo(t))}
OTHERWISE_KNOWN = frozenset({*vars(nn.Module()), "structure"})  # `training`, and what PyTorch keeps for itself


@dataclass
class Reads:
    """The names of attributes that forward reads, and of those that it sets."""

    read: dict[str, None] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Notes what is read and set meanwhile."""
        own = nn.Module.__setattr__

        def get(module: nn.Module, name: str) -> Any:
            value = object.__getattribute__(module, name)
            if name not in self.read and name in object.__getattribute__(module, "__dict__") and not _is_off(module, value):
                self.read[name] = None
            return value

        def put(module: nn.Module, name: str, value: Any) -> None:
            self.written.add(name)
            own(module, name, value)

        nn.Module.__getattribute__ = get  # type: ignore[method-assign, assignment]
        nn.Module.__setattr__ = put  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            del nn.Module.__getattribute__
            nn.Module.__setattr__ = own  # type: ignore[method-assign]

    def of(self, module: nn.Module) -> tuple[str, ...]:
        """The names under which modules hold what a plan is made for, as a text can say: no tensors and no other objects."""
        held = [vars(part) for part in module.modules()]
        names = (name for name in self.read if name not in OTHERWISE_KNOWN | self.written)
        return tuple(n for n in names if all(_is_setting(values[n]) for values in held if n in values))


def mentions_types(exported: torch.fx.GraphModule) -> bool:
    """Whether forward mentions types of numbers, as in `x.float()` and `torch.finfo(x.dtype).min`: a trace holds the types that
    these were. torch.export's own assertions do not count."""
    nodes = (n for n in exported.graph.nodes if n.target is not torch.ops.aten._assert_tensor_metadata.default)
    return any(n.target in LIKE_OTHERS or any(map(_is_typed, pytree.tree_leaves((n.args, n.kwargs)))) for n in nodes)


def _is_typed(value: Any) -> bool:
    if isinstance(value, torch.dtype):
        return value.is_floating_point or value.is_complex
    return type(value) is float and abs(value) in LIMITS


def _is_off(module: nn.Module, value: Any) -> bool:
    """Options of PyTorch's modules that nobody has asked for: they would be half of what a file lists."""
    return (value is None or value is False) and type(module).__module__.startswith("torch.")


def _is_setting(value: Any) -> bool:
    if "; " in repr(value):  # parts one row from the next
        return False
    if isinstance(value, NAMED):
        return True
    if dataclasses.is_dataclass(value):  # a configuration; the text that Python makes of one
        text = repr(value)
        return text.startswith(f"{type(value).__name__}(") and " at 0x" not in text
    return type(value) in KINDS or (isinstance(value, (tuple, list, dict)) and _is_plain(value))


def _is_plain(value: Any) -> bool:
    return all(type(leaf) in KINDS for leaf in pytree.tree_leaves(value))
