"""How a call of the model reaches the traced inputs, and how what it returns is put together again."""

from __future__ import annotations

import inspect
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from keyword import iskeyword
from typing import Any

from remat_codegen import runtime
from remat_codegen.emit.spell import literal
from remat_codegen.errors import UnsupportedError
from remat_codegen.torch_seam import pytree
from remat_codegen.trace import Ref, Trace


@dataclass(frozen=True, slots=True)
class Argument:
    """A leaf of what the model was called with: what to call it, its expression in forward, and its variable or its value."""

    name: str
    expression: str
    variable: int | None
    value: Any


def arguments(
    trace: Trace, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], bound: str | None = None
) -> list[Argument]:
    """The leaves of a call `forward(*args, **kwargs)`, forward's other parameters with their defaults included.

    `bound` is the expression for a dictionary of forward's parameters, where they are not at hand by name.
    """
    parameters = list(inspect.signature(forward).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    leaves, _ = pytree.tree_flatten_with_path((args, kwargs))
    found = []
    for (path, value), variable in zip(leaves, trace.inputs, strict=False):  # the last inputs are buffers
        name, rest = _place(path, parameters, positional, named)
        if variable is None and value != value:  # nothing compares equal to NaN
            continue
        expression = name if bound is None else f"{bound}[{name!r}]"
        found.append(Argument(name + rest, expression + rest, variable, value))
    given = {p.name for p in positional[: len(args)]} | set(kwargs)
    for parameter in parameters:
        if parameter.name not in given and parameter.default is not parameter.empty and _is_plain(parameter.default):
            expression = parameter.name if bound is None else f"{bound}[{parameter.name!r}]"
            found.append(Argument(parameter.name, expression, None, parameter.default))
    return found


@dataclass(frozen=True, slots=True)
class Told:
    """An argument that is not, or not only, leaves: its name, its expression in forward, what runtime.told says of it, and
    whether that is forward's own default."""

    name: str
    expression: str
    text: str
    is_default: bool


def told(
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    defaults: Mapping[str, str],
    bound: str | None = None,
) -> list[Told]:
    """Those arguments of a call `forward(*args, **kwargs)` that a step has to be given alike, beside its leaves: lists and
    dicts, which may be of other lengths, and defaults that are things, but for those that forward itself changes. `defaults`
    are as runtime.told said them before it ran, `bound` is as in `arguments`."""
    call = inspect.signature(forward).bind(*args, **kwargs)
    given = set(call.arguments)
    call.apply_defaults()
    found = []
    for name, value in call.arguments.items():
        is_default = name not in given
        if is_default and runtime.told(value) != defaults.get(name, runtime.told(value)):
            continue
        if isinstance(value, (tuple, list, dict)) or (is_default and not _is_plain(value)):
            expression = name if bound is None else f"{bound}[{name!r}]"
            found.append(Told(name, expression, runtime.told(value), is_default))
    return found


def _is_plain(value: Any) -> bool:
    return value is None or (isinstance(value, (bool, int, float, str)) and value == value)


def _place(path: Sequence[Any], parameters: list, positional: list, named: set[str]) -> tuple[str, str]:
    """The parameter that a leaf arrives in, and how to reach it from there."""
    where, first, *rest = path
    inside = "".join(_access(key) for key in rest)
    if where.idx == 0 and first.idx < len(positional):
        return positional[first.idx].name, inside
    if where.idx == 0:
        return _variadic(parameters, inspect.Parameter.VAR_POSITIONAL), f"[{first.idx - len(positional)}]{inside}"
    if first.key in named:
        return first.key, inside
    return _variadic(parameters, inspect.Parameter.VAR_KEYWORD), f"[{first.key!r}]{inside}"


def _variadic(parameters: list, kind: Any) -> str:
    return next(p.name for p in parameters if p.kind is kind)


def _key(key: Any) -> str:
    """The key of a dictionary. Raises UnsupportedError for one that cannot be written down."""
    try:
        return literal(key, str)
    except TypeError as error:
        what = f"a dictionary with a key of the type {type(key).__name__} is not supported"
        raise UnsupportedError(what, hint="use texts or numbers as keys") from error


def _access(key: Any) -> str:
    if isinstance(key, pytree.SequenceKey):
        return f"[{key.idx}]"
    if isinstance(key, pytree.MappingKey):
        return f"[{_key(key.key)}]"
    if isinstance(key, pytree.GetAttrKey):
        return f".{key.name}"
    what = f"an input of the kind {type(key).__name__} is not supported"
    raise UnsupportedError(what, hint="pass tensors in tuples, lists and dicts")


def passed_on(forward: Callable[..., Any]) -> str:
    """The arguments that hand forward's own parameters to another function with the same ones."""
    parts = []
    for p in inspect.signature(forward).parameters.values():
        prefixes: dict[Any, str] = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**", p.KEYWORD_ONLY: f"{p.name}="}
        parts.append(prefixes.get(p.kind, "") + p.name)
    return ", ".join(parts)


def result(trace: Trace, tensor: Callable[[int], str], class_expression: Callable[[type], str]) -> str:
    """The expression that puts together what forward returns; `class_expression` says how to reach a class."""
    leaves = [tensor(o.variable) if isinstance(o, Ref) else literal(o, tensor) for o in trace.outputs]
    return _assemble(trace.output_spec, iter(leaves), class_expression)


def _assemble(spec: Any, leaves: Any, class_expression: Callable[[type], str]) -> str:
    if spec.is_leaf():
        return next(leaves)
    children = spec.children() if hasattr(spec, "children") else spec.children_specs
    parts = [_assemble(child, leaves, class_expression) for child in children]
    kind, context = spec.type, spec.context
    if kind is tuple:
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    if kind is list:
        return f"[{', '.join(parts)}]"
    if kind is dict:
        return "{" + ", ".join(f"{_key(k)}: {v}" for k, v in zip(context, parts, strict=True)) + "}"
    if kind is namedtuple:  # pytree's name for all of them; the class is the context
        return f"{class_expression(context)}({', '.join(parts)})"
    keys = _keys(kind, context)
    if keys is None or len(keys) != len(parts):
        raise UnsupportedError(
            f"a model that returns a {kind.__name__} is not supported", hint="return a tuple, a list or a dict"
        )
    given = ", ".join(f"{k!r}: {v}" for k, v in zip(keys, parts, strict=True))
    if issubclass(kind, OrderedDict) and not is_dataclass(kind):
        return f"{class_expression(kind)}({{{given}}})"
    if all(k.isidentifier() and not iskeyword(k) for k in keys):
        return f"{class_expression(kind)}({', '.join(f'{k}={v}' for k, v in zip(keys, parts, strict=True))})"
    return f"{class_expression(kind)}(**{{{given}}})"


def _keys(kind: type, context: Any) -> list[str] | None:
    """The fields that a mapping or a dataclass is made of, as pytree keeps them."""
    found = context[0] if isinstance(context, (list, tuple)) and context and isinstance(context[0], (list, tuple)) else context
    strings = isinstance(found, (list, tuple)) and all(isinstance(k, str) for k in found)
    return list(found) if strings and (issubclass(kind, dict) or is_dataclass(kind)) else None
