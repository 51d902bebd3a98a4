"""Numbers as the user's source computes them: `C // self.heads`, `1.0 / math.sqrt(head_dim)`."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

LONGEST = 48  # characters; a longer expression is harder to read than its number
DEEPEST = 8  # assignments that lead to one another
LARGEST_BASE, LARGEST_EXPONENT = 2**32, 64  # of a power

Number = int | float


def _power(base: Number, exponent: Number) -> Number:
    """Raises OverflowError where a whole number would be large: such a source must not take for ever to read."""
    if abs(exponent) > LARGEST_EXPONENT or abs(base) > LARGEST_BASE:
        raise OverflowError
    return base**exponent


_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_OPERATORS = {"add": ast.Add, "sub": ast.Sub, "mul": ast.Mult, "div": ast.Div, "pow": ast.Pow, "remainder": ast.Mod}
_MATH = {"sqrt": math.sqrt, "log": math.log, "exp": math.exp}


class Names(Protocol):
    """What names in the source stand for, where that is a number; None elsewhere. The spellings are for the generated file."""

    def size(self, name: str) -> int | None:
        """A size that was unpacked from a shape."""

    def size_spelled(self, name: str) -> str:
        """Its name in the generated file."""

    def attribute(self, name: str) -> tuple[Number, str] | None:
        """`self.NAME`, and its spelling."""

    def assigned(self, name: str) -> ast.expr | None:
        """What a name was assigned, if only once."""

    def has_math(self) -> bool:
        """Whether `math` is the module."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Reads expressions of one function of the source."""

    names: Names

    def spelled(self, expression: ast.expr, number: Number, operand: bool = False) -> str | None:
        """The expression as it stands in the generated file, if it gives just this number; None where that is not known.

        That of an `operand` can stand beside an operator.
        """
        try:
            value = self.value(expression)
            if value is None or repr(value) != repr(number):  # 2 is not 2.0, and 0.0 is not -0.0
                return None
            written = _Rewriter(self).visit(_copy(expression))
            text = ast.unparse(written)
        except RecursionError:  # as long as that, it is nothing to be read
            return None
        if operand and isinstance(written, (ast.BinOp, ast.UnaryOp)):
            text = f"({text})"
        return text if len(text) <= LONGEST else None

    def value(self, expression: ast.expr, depth: int = 0) -> Number | None:
        """What an expression evaluates to."""
        match expression:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return number
            case ast.Name(id=name):
                size, assigned = self.names.size(name), self.names.assigned(name)
                return self.value(assigned, depth + 1) if size is None and assigned and depth < DEEPEST else size
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                found = self.names.attribute(name)
                return None if found is None else found[0]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.value(operand, depth)
                return None if value is None else -value
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _applied(_BINARY[type(op)], self.value(left, depth), self.value(right, depth))
            case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr=name), args=[given], keywords=[]):
                known = name in _MATH and self.names.has_math()
                return _applied(_MATH[name], self.value(given, depth)) if known else None
        return None


def operands(statement: ast.stmt, operation: str) -> Iterator[ast.expr]:
    """What stands on either side of an operator in a statement: of `*` for mul."""
    kind = _OPERATORS.get(operation)
    for node in ast.walk(statement):
        if kind is not None and isinstance(node, ast.BinOp) and isinstance(node.op, kind):
            yield from (node.right, node.left)
        if kind is not None and isinstance(node, ast.AugAssign) and isinstance(node.op, kind):
            yield node.value


def _applied(function: Callable[..., Number], *values: Number | None) -> Number | None:
    try:
        found = None if any(v is None for v in values) else function(*values)
    except (ArithmeticError, ValueError):
        return None
    return found if type(found) in (int, float) else None


def _copy(expression: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(expression), mode="eval").body


class _Rewriter(ast.NodeTransformer):
    """Replaces the names of an expression whose value is known."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.names = arithmetic.names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        assigned = None if self.names.size(node.id) is not None else self.names.assigned(node.id)
        if assigned is not None:
            return self.visit(_copy(assigned))
        return ast.Name(self.names.size_spelled(node.id)) if self.names.size(node.id) is not None else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        own = isinstance(node.value, ast.Name) and node.value.id == "self"
        found = self.names.attribute(node.attr) if own else None
        return node if found is None else ast.parse(found[1], mode="eval").body
