"""What forward leaves outside of its modules while it runs without data: tensors that are none, in caches of classes, of files
and of functions. Whoever computes with the model later must not find them."""

from __future__ import annotations

import contextlib
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from remat_codegen.torch_seam import pytree
from remat_codegen.trace.refusals import is_library

CONTAINERS = (dict, list, set)


@dataclass
class _Names:
    """The names of a class or a file, with what they had; and what was in those of its dicts, lists and sets."""

    owner: Any
    values: dict[str, Any] = field(default_factory=dict)
    copies: dict[str, Any] = field(default_factory=dict)
    misses: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values = dict(vars(self.owner))
        self.copies = {n: v.copy() for n, v in self.values.items() if type(v) in CONTAINERS}
        self.misses = {n: _missed(v) for n, v in self.values.items()}

    def put_back(self) -> None:
        """Takes out what has no data, and what functions remember since."""
        for name, value in list(vars(self.owner).items()):
            if _missed(value) > self.misses.get(name, 0):
                _cached(value).cache_clear()
            elif is_empty(value):
                self._put_back(name, value)

    def _put_back(self, name: str, value: Any) -> None:
        before = self.values.get(name, self)
        if before is self:
            delattr(self.owner, name)
        elif before is not value:
            setattr(self.owner, name, before)
        if type(before) in CONTAINERS:
            before.clear()
            (before.extend if isinstance(before, list) else before.update)(self.copies[name])


@contextlib.contextmanager
def caches_as_before(module: torch.nn.Module) -> Iterator[None]:
    """In here, forward runs without data: classes and files that a model's modules are of get back what they had of tensors."""
    names = [_Names(owner) for owner in _owners(module)]
    try:
        yield
    finally:
        for held in names:
            held.put_back()


def _owners(module: torch.nn.Module) -> list[Any]:
    """The classes of a model that are not PyTorch's, the files that they stand in, and the user's own that these import."""
    kinds = dict.fromkeys(k for m in module.modules() for k in type(m).__mro__ if not _is_torch(k.__module__))
    files = dict.fromkeys(sys.modules[k.__module__] for k in kinds if k.__module__ in sys.modules)
    imported = [v for file in files for v in vars(file).values() if isinstance(v, types.ModuleType)]
    own = dict.fromkeys(v for v in imported if _is_users(getattr(v, "__file__", None) or ""))
    classes = [v for file in files for v in vars(file).values() if isinstance(v, type) and v.__module__ == file.__name__]
    return list(dict.fromkeys([*kinds, *files, *own, *classes]))


def _is_users(path: str) -> bool:
    installed = "site-packages" in path or path.startswith(sysconfig.get_paths()["stdlib"])
    return bool(path) and not installed and not is_library(path)


def _is_torch(name: str) -> bool:
    return name in ("builtins", "typing", "abc") or name.partition(".")[0] == "torch"


def _cached(thing: Any) -> Any:
    methods = types.MethodType, classmethod, staticmethod
    return thing.__func__ if isinstance(thing, methods) else thing  # others may raise what they like when asked for one


def _missed(thing: Any) -> int:
    """How often a function that remembers what it gave, by functools.lru_cache, had to compute it."""
    info: Callable[[], Any] | None = getattr(_cached(thing), "cache_info", None) if callable(_cached(thing)) else None
    try:
        return int(info().misses) if info is not None and hasattr(_cached(thing), "cache_clear") else 0
    except Exception:  # something else of that name
        return 0


def is_empty(value: Any) -> bool:
    """Whether something is, or has, a tensor without data."""
    if not isinstance(value, (torch.Tensor, tuple, *CONTAINERS)):
        return False
    leaves = [*value] if isinstance(value, set) else pytree.tree_leaves(value)
    return any(isinstance(leaf, torch.Tensor) and (leaf.is_meta or type(leaf).__name__ in KINDS) for leaf in leaves)


KINDS = frozenset(("FakeTensor", "FunctionalTensor"))
