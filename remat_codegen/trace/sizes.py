"""Sizes that may differ from call to call (`--dynamic idx.0`): which they are, and the numbers that follow from them.

A size is a variable of the trace with origin SIZE. A number that depends on sizes stands in an operation's arguments as a
`Size`: a Python expression over such variables, with its value for the traced inputs. All stages but emission use the value.
"""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import sympy
import torch

from remat_codegen.errors import TargetError, UnsupportedError, ValuesError
from remat_codegen.torch_seam import PythonPrinter, pytree

FORM = "NAME.DIMENSION, such as idx.0; several are separated by commas"
FIXED = "leave that size out of --dynamic; a file with marks takes all sizes"
FUNCTIONS = {"math": math, "max": max, "min": min, "float": float, "int": int, "abs": abs}


@dataclass(frozen=True, slots=True)
class Size:
    """A number that follows from sizes. `text` is an expression in which {0}, {1} stand for `variables`."""

    text: str
    variables: tuple[int, ...]
    hint: Any

    def spelled(self, name: Callable[[int], str]) -> str:
        """The expression, with sizes called as `name` says."""
        return self.text.format(*(name(v) for v in self.variables))

    def at(self, values: dict[int, int]) -> Any:
        """The number for other sizes, given by variable."""
        return eval(self.spelled(lambda v: str(values[v])), dict(FUNCTIONS))  # our own text, of sizes and arithmetic


@dataclass(frozen=True, slots=True)
class Dynamic:
    """A size that may change: dimension `dimension` of the input variable `source`, from `least` to `most` (None: any).

    `share_at_one` is for sizes that may be 1 only without the plan: the share of the peak that PyTorch has then.
    """

    variable: int
    source: int
    dimension: int
    planned: int
    least: int
    most: int | None
    share_at_one: float | None = None

    def others(self) -> list[int]:
        """Some other values that it may have."""
        some = (2 * self.planned, self.planned // 2)
        return [n for n in some if n >= self.least and (self.most is None or n <= self.most)]


class Together(IntEnum):
    """Which sizes that are equal now are always equal: none, those of the same dimension of different inputs, or all."""

    NONE = 0
    SAME_DIMENSION = 1
    ALL = 2


Asked = tuple[tuple[torch.Tensor, int], ...]
LIMITS = re.compile(r"[^=;]+=[1-9][0-9]*(;[^=;]+=[1-9][0-9]*)*")


def parse_dynamic(
    text: str,
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    where: str = "--dynamic",
    least: int = 2,
) -> Asked:
    """The input tensors and dimensions that `text` ("idx.0, mask.1") names. Raises TargetError naming what is wrong.

    `where` is the option that says so, `least` the smallest size that it may name.
    """
    leaves = named_leaves(forward, args, kwargs)
    found = []
    for word in filter(None, (w.strip() for w in text.split(","))):
        name, _, last = word.rpartition(".")
        tensor = leaves.get(name)
        if not name or not last.lstrip("-").isdigit():
            raise TargetError(f"cannot read {word!r}", where=where, hint=f"write {where} {FORM}")
        if tensor is None:
            raise TargetError(f"no input is called {name!r}", where=where, hint=f"there are {', '.join(leaves)}")
        dimension = int(last)
        if not -tensor.dim() <= dimension < tensor.dim():
            there = ", ".join(f"{name}.{d}" for d in range(tensor.dim()))
            hint = f"there are {there}" if there else "leave it out: it is a single number"
            raise TargetError(f"{name} has {tensor.dim()} dimensions, so there is no {word}", where=where, hint=hint)
        dimension %= tensor.dim()
        if tensor.shape[dimension] < least:
            hint = f"trace it with {least} or more"
            raise TargetError(f"{word} is {tensor.shape[dimension]} in the example inputs", where=where, hint=hint)
        found.append((tensor, dimension))
    return tuple(found)


def parse_limits(
    text: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Asked, int], ...]:
    """The sizes that `text` ("x.0,scale.0=4;x.1=2", of the form LIMITS) names, each with the most that it says. Raises
    TargetError where there is none of that name."""
    named = [words.rpartition("=") for words in text.split(";") if words]
    return tuple((parse_dynamic(places, forward, args, kwargs, least=1), int(most)) for places, _, most in named)


def named_leaves(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors among the arguments of a call, by name."""
    bound = inspect.signature(forward).bind(*args, **kwargs)
    leaves, _ = pytree.tree_flatten_with_path(dict(bound.arguments))
    named = {".".join(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", "")))) for k in path): t for path, t in leaves}
    return {name: leaf for name, leaf in named.items() if isinstance(leaf, torch.Tensor)}


# ---------------------------------------------------------------------------------------------- numbers


def hint(number: Any) -> int:
    """A size as it is for the traced inputs. Raises ValuesError where it depends on a tensor's values."""
    if not isinstance(number, torch.SymInt):
        return int(number)
    value = number.node.hint
    if value is None:
        hint = "use torch.where, or a mask that keeps the shape"
        raise ValuesError("a size depends on the values of a tensor, which a plan cannot follow", hint=hint)
    return int(value)


class Symbols:
    """The symbols of one exported program: those of sizes that may change, by variable, and the values of all."""

    def __init__(self) -> None:
        self.values: dict[sympy.Symbol, int] = {}
        self.variables: dict[sympy.Symbol, int] = {}

    def note(self, number: Any) -> sympy.Expr | None:
        """Remembers the value of an input's size; returns its expression, None for a plain number."""
        if not isinstance(number, torch.SymInt):
            return None
        expression = number.node.expr
        if isinstance(expression, sympy.Symbol):
            self.values[expression] = hint(number)
        return expression

    def fixed(self, guards: Sequence[Any], sizes: Sequence[Dynamic]) -> frozenset[int]:
        """The variables of sizes with other values of which not all is equal that tracing has taken to be (`guards`), such as
        a product of sizes and a number: what the model has done then may be for this number only. (How large a size may be
        torch.export says itself.)"""
        equations = [guard for guard in guards if isinstance(guard, sympy.Eq)]
        return frozenset(s.variable for s in sizes if not all(self._hold(equations, s, n) for n in s.others()))

    def _hold(self, guards: Sequence[Any], size: Dynamic, number: int) -> bool:
        changed = {s: number if self.variables.get(s) == size.variable else v for s, v in self.values.items()}
        numbers = {symbol: sympy.Integer(value) for symbol, value in changed.items()}
        return all(guard.xreplace(numbers) != sympy.false for guard in guards)

    def size(self, number: Any) -> Any:
        """A traced integer as a Size, or as an int where no size that may change is in it."""
        expression = number.node.expr.xreplace({s: sympy.Integer(v) for s, v in self.values.items() if s not in self.variables})
        symbols = sorted((s for s in expression.free_symbols if s in self.variables), key=lambda s: self.variables[s])
        if not symbols:
            return hint(number)
        marked = expression.xreplace({s: sympy.Symbol(f"SIZE{i}", integer=True) for i, s in enumerate(symbols)})
        text = re.sub(r"SIZE(\d+)", r"{\1}", PythonPrinter().doprint(marked))
        atom = re.fullmatch(r"\{0\}|\w+\(.*\)|\(.*\)", text)
        return Size(text if atom else f"({text})", tuple(self.variables[s] for s in symbols), hint(number))


_COMBINED: dict[Any, str] = {
    operator.add: "({} + {})",
    operator.sub: "({} - {})",
    operator.mul: "({} * {})",
    operator.truediv: "({} / {})",
    operator.floordiv: "({} // {})",
    operator.mod: "({} % {})",
    operator.pow: "({} ** {})",
    operator.neg: "(-{})",
    torch.sym_float: "float({})",
    torch.sym_int: "int({})",
    torch.sym_max: "max({}, {})",
    torch.sym_min: "min({}, {})",
    math.sqrt: "math.sqrt({})",
    getattr(torch, "_sym_sqrt", math.sqrt): "math.sqrt({})",
}


def combine(target: Any, given: Sequence[Any]) -> Any:
    """What a Python operation makes of numbers, some of which may be Sizes. Raises UnsupportedError for an unknown one."""
    plain = [g.hint if isinstance(g, Size) else g for g in given]
    value = target(*plain)
    if not any(isinstance(g, Size) for g in given):
        return value
    form = _COMBINED.get(target)
    if form is None:
        what = f"{getattr(target, '__name__', target)} of a size that may change is not supported"
        raise UnsupportedError(what, hint=FIXED)
    variables = tuple(dict.fromkeys(v for g in given if isinstance(g, Size) for v in g.variables))
    texts = [g.spelled(lambda v: f"{{{variables.index(v)}}}") if isinstance(g, Size) else repr(g) for g in given]
    return Size(form.format(*texts), variables, value)
