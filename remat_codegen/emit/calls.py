"""How a call of the model reaches the traced inputs, and how what it returns is put together again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree

from remat_codegen.emit.spell import literal
from remat_codegen.errors import UnsupportedError
from remat_codegen.trace import Ref, Trace


@dataclass(frozen=True, slots=True)
class Argument:
    """A leaf of what the model was called with: its expression in forward's parameters, and its variable or its value."""

    expression: str
    variable: int | None
    value: Any


def arguments(trace: Trace, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Argument]:
    """The leaves of a call `forward(*args, **kwargs)`, forward's other parameters with their defaults included."""
    parameters = list(inspect.signature(forward).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    leaves, _ = pytree.tree_flatten_with_path((args, kwargs))
    found = []
    for (path, value), variable in zip(leaves, trace.inputs, strict=True):
        found.append(Argument(_expression(path, parameters, positional, named), variable, value))
    given = {p.name for p in positional[: len(args)]} | set(kwargs)
    for parameter in parameters:
        if parameter.name not in given and parameter.default is not parameter.empty and _is_plain(parameter.default):
            found.append(Argument(parameter.name, None, parameter.default))
    return found


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _expression(path: Sequence[Any], parameters: list, positional: list, named: set[str]) -> str:
    where, first, *rest = path
    if where.idx == 0:
        if first.idx < len(positional):
            text = positional[first.idx].name
        else:
            text = f"{_variadic(parameters, inspect.Parameter.VAR_POSITIONAL)}[{first.idx - len(positional)}]"
    elif first.key in named:
        text = first.key
    else:
        text = f"{_variadic(parameters, inspect.Parameter.VAR_KEYWORD)}[{first.key!r}]"
    return text + "".join(_access(key) for key in rest)


def _variadic(parameters: list, kind: Any) -> str:
    return next(p.name for p in parameters if p.kind is kind)


def _access(key: Any) -> str:
    if isinstance(key, pytree.SequenceKey):
        return f"[{key.idx}]"
    if isinstance(key, pytree.MappingKey):
        return f"[{key.key!r}]"
    if isinstance(key, pytree.GetAttrKey):
        return f".{key.name}"
    raise UnsupportedError(f"an input of the kind {type(key).__name__} is not supported")


def passed_on(forward: Callable[..., Any]) -> str:
    """The arguments that hand forward's own parameters to another function with the same ones."""
    parts = []
    for p in inspect.signature(forward).parameters.values():
        prefix = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**", p.KEYWORD_ONLY: f"{p.name}="}.get(p.kind, "")
        parts.append(prefix + p.name)
    return ", ".join(parts)


def result(trace: Trace, tensor: Callable[[int], str]) -> str:
    """The expression that puts together what forward returns."""
    leaves = [tensor(o.variable) if isinstance(o, Ref) else literal(o, tensor) for o in trace.outputs]
    return _assemble(trace.output_spec, iter(leaves))


def _assemble(spec: Any, leaves: Any) -> str:
    if spec.is_leaf():
        return next(leaves)
    parts = [_assemble(child, leaves) for child in spec.children()] if callable(getattr(spec, "children", None)) else [
        _assemble(child, leaves) for child in spec.children_specs
    ]
    if spec.type is tuple:
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    if spec.type is list:
        return f"[{', '.join(parts)}]"
    if spec.type is dict:
        return "{" + ", ".join(f"{k!r}: {v}" for k, v in zip(spec.context, parts, strict=True)) + "}"
    raise UnsupportedError(f"a model that returns a {getattr(spec.type, '__name__', spec.type)} is not supported yet")
