"""What forward reads of its modules, and of the objects that they hold, beside tensors and modules: numbers, texts and
functions, which a trace holds for good."""

from __future__ import annotations

import contextlib
import linecache
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from remat_codegen.torch_seam import plain_dtype, pytree
from remat_codegen.trace.objects import Objects, is_setting
from remat_codegen.trace.refusals import is_library

LIKE_OTHERS = (torch.ops.aten.type_as.default, torch.ops.aten.to.other)
OTHERWISE_KNOWN = frozenset(vars(nn.Module()))  # `training`, and what PyTorch keeps for itself


@dataclass
class Reads:
    """The names of attributes that forward reads, and of those that it sets; the modules that it asks for their mode; and
    whether it asks a tensor for its type. `objects` are the plain objects that modules hold, and what it reads of these."""

    read: dict[str, None] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    asked_for_modes: list[nn.Module] = field(default_factory=list)
    asked_for_types: bool = False
    objects: Objects = field(default_factory=Objects)

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Notes what is read and set meanwhile."""
        own = nn.Module.__setattr__

        def get(module: nn.Module, name: str) -> Any:
            value = object.__getattribute__(module, name)
            if name == "training" and not any(module is m for m in self.asked_for_modes) and _decides(sys._getframe(1)):
                self.asked_for_modes.append(module)
            if name not in self.read and _is_own(module, name, value) and not _is_off(module, value):
                self.read[name] = None
            if name not in OTHERWISE_KNOWN and name in self.read:
                self.objects.meet_in(module, name, value)
            return value

        def put(module: nn.Module, name: str, value: Any) -> None:
            if not _is_torch(sys._getframe(1)):  # torch.export sets dicts and lists to copies of them
                self.written.add(name)
            own(module, name, value)

        def dtype(tensor: torch.Tensor) -> Any:
            if not self.asked_for_types:
                self.asked_for_types = not is_library(sys._getframe(1).f_code.co_filename)
            return plain_dtype.__get__(tensor)

        torch.Tensor.dtype = property(dtype)  # type: ignore[assignment, misc]
        nn.Module.__getattribute__ = get  # type: ignore[method-assign, assignment]
        nn.Module.__setattr__ = put  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            del nn.Module.__getattribute__, torch.Tensor.dtype
            nn.Module.__setattr__ = own  # type: ignore[method-assign]
            self.objects.forget_classes()

    def modes(self, module: nn.Module) -> frozenset[str]:
        """The paths of the modules whose mode forward asked for, as in `if self.training:`. A trace went one way."""
        return frozenset(path for path, part in module.named_modules() if any(part is m for m in self.asked_for_modes))

    def of(self, module: nn.Module, changed: Iterable[str]) -> tuple[str, ...]:
        """The names under which modules hold what a plan is made for, as a text can say: no tensors and no other objects, and
        nothing that forward sets or changes."""
        held = [vars(part) for part in module.modules()]
        left_out = OTHERWISE_KNOWN | self.written | {name.rpartition(".")[2] for name in changed}
        names = (name for name in self.read if name not in left_out)
        return tuple(n for n in names if all(is_setting(values[n]) for values in held if n in values))

    def of_objects(self, module: nn.Module) -> dict[str, dict[str, str]]:
        """The same of the plain objects that modules hold, by their paths, as `h.0.config`."""
        return self.objects.rows(module, self.read, self.written | OTHERWISE_KNOWN)


def _is_own(module: nn.Module, name: str, value: Any) -> bool:
    """Whether a module has a value of its own, or one of its class's that is a number or text, until objects get theirs."""
    if name in object.__getattribute__(module, "__dict__"):
        return True
    if not isinstance(value, (int, float, str)) or name.startswith("__"):
        return False
    kind = next((kind for kind in type(module).__mro__ if name in vars(kind)), nn.Module)
    return not kind.__module__.startswith("torch.") and vars(kind)[name] is value


def _is_torch(frame: types.FrameType) -> bool:
    return "/torch/export/" in frame.f_code.co_filename or "/torch/_export/" in frame.f_code.co_filename


def _decides(frame: types.FrameType) -> bool:
    """Whether a line of the user's reads a mode for something else than dropout, which follows the mode."""
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return not is_library(frame.f_code.co_filename) and "training" in text and "drop" not in text


def mentions_types(exported: torch.fx.GraphModule) -> bool:
    """Whether forward casts, as in `x.float()`: a trace holds the types that these were. torch.export's own assertions do not
    count."""
    nodes = (n for n in exported.graph.nodes if n.target is not torch.ops.aten._assert_tensor_metadata.default)
    return any(n.target in LIKE_OTHERS or any(map(_is_typed, pytree.tree_leaves((n.args, n.kwargs)))) for n in nodes)


def _is_typed(value: Any) -> bool:
    return isinstance(value, torch.dtype) and (value.is_floating_point or value.is_complex)


def _is_off(module: nn.Module, value: Any) -> bool:
    """Options of PyTorch's modules that nobody has asked for: they would be half of what a file lists."""
    return (value is None or value is False) and type(module).__module__.startswith("torch.")
