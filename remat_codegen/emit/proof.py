"""Whether an expression does what an operation does, before it is written: both are run on tensors without data, and the
calls that reach PyTorch's kernels have to be the same, argument by argument."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from remat_codegen.emit.spell import DEVICE, ENDLESS, spell, spellings
from remat_codegen.torch_seam import FakeTensorMode, TorchDispatchMode, pytree, schema
from remat_codegen.trace import Operation, Ref, Trace, substitute, without_kernels
from remat_codegen.trace.tracing import silent_logs

NAMES = {"torch": torch, "F": torch.nn.functional}  # of a generated file, beside the builtins
SAME = {"layout": torch.strided, "pin_memory": False}  # what it means to give None for these


class Proof:
    """What is known of the expressions for a trace's operations. Equal ones on equal tensors are looked at once."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.known: dict[str, bool] = {}
        self.names = NAMES | {DEVICE: torch.device(trace.accelerator)} if trace.accelerator else NAMES

    def holds(self, operation: Operation, expression: Callable[[Callable[[int], str]], str]) -> bool:
        """Whether `expression`, given how to name a variable, does exactly what `operation` does."""
        names = {v: f"t{i}" for i, v in enumerate(dict.fromkeys(operation.mentions))}
        text = expression(names.__getitem__)
        key = f"{operation.name} {text} {[self._layout(v) for v in names]} {self._values(operation)}"
        if key not in self.known:
            self.known[key] = self._is_same(operation, text, names)
        return self.known[key]

    def way(self, operation: Operation) -> int:
        """The first of an operation's spellings that does exactly what it does."""
        operation = replace(operation, target=without_kernels(operation.target))
        count = len(spellings(operation, lambda variable: "x"))
        return next((way for way in range(count - 1) if self.shown(operation, way)), count - 1)

    def shown(self, operation: Operation, way: int) -> bool:
        """Whether one of its spellings does what an operation does."""
        if spellings(operation, lambda variable: "x")[way] is None:
            return False
        return self.holds(operation, lambda tensor: spell(operation, tensor, None, way=way))

    def _is_same(self, operation: Operation, text: str, names: dict[int, str]) -> bool:
        def original(tensors: dict[str, torch.Tensor]) -> Any:
            given = {v: tensors[n] for v, n in names.items()}
            return operation.target(*substitute(operation.args, given), **substitute(dict(operation.kwargs), given))

        def spelled(tensors: dict[str, torch.Tensor]) -> Any:
            return eval(text, self.names, tensors)

        try:
            with warnings.catch_warnings(), silent_logs():
                warnings.simplefilter("ignore")
                return self._calls(original, names) == self._calls(spelled, names)
        except Exception:  # of whatever kind: where nothing can be shown, nothing is claimed
            return False

    def _calls(self, run: Callable[[dict[str, torch.Tensor]], Any], names: dict[int, str]) -> list[Any]:
        with FakeTensorMode(), torch.no_grad():
            tensors = {n: self._empty(v) for v, n in names.items()}
            with _Log(tensors) as log:
                result = run(dict(tensors))
            return [*log.calls, log.plain(result)]

    def _layout(self, variable: int) -> tuple[Any, ...]:
        v = self.trace.variables[variable]
        return v.shape, v.stride, v.dtype, v.device

    def _values(self, operation: Operation) -> str:
        anonymous = substitute((operation.args, dict(operation.kwargs)), _Anonymous())
        return repr(anonymous)

    def _empty(self, variable: int) -> torch.Tensor:
        shape, stride, dtype, device = self._layout(variable)
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)


class _Anonymous:
    def __getitem__(self, variable: int) -> Ref:
        return Ref(-1)


class _Log(TorchDispatchMode):
    """Writes down what is called, with tensors by name: those given, and each result by its place."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.names = {id(t): n for n, t in tensors.items()}
        self.given = set(self.names)
        self.held: list[Any] = list(tensors.values())  # so that no other tensor gets the same id
        self.calls: list[Any] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Runs the operation."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is torch.ops.prim.device.default:  # asked for by methods in Python, such as x[2:]
            return result
        if func is torch.ops.aten.detach.default and id(args[0]) not in self.given:  # by torch.arange, of what it made
            self.names[id(result)] = self.names[id(args[0])]
            self.held.append(result)
            return result
        self.calls.append((str(func), self._arguments(func, args, kwargs)))
        for place, leaf in enumerate(pytree.tree_leaves(result)):
            if isinstance(leaf, torch.Tensor):
                self.held.append(leaf)
                self.names.setdefault(id(leaf), f"{len(self.calls)}.{place}")
        return result

    def _arguments(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        given = dict(zip((a.name for a in schema(func).arguments), args, strict=False)) | kwargs
        found = []
        for argument in schema(func).arguments:
            default = argument.default_value if argument.has_default_value() else None
            value = given.get(argument.name, default)
            found.append(self.plain(SAME.get(argument.name) if value is None else value))
        return found

    def plain(self, value: Any) -> Any:
        """A value such that equal ones compare equal, and others do not: 2, 2.0 and True differ, and so do 0.0 and -0.0."""
        if isinstance(value, torch.Tensor):
            return self.names.get(id(value), "?"), tuple(value.shape), value.stride(), value.dtype
        if isinstance(value, (list, tuple)):
            return [self.plain(v) for v in value]
        if isinstance(value, int) and value >= ENDLESS:
            return "to the end"
        return repr(value)
