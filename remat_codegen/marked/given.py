"""What a part is given in lists, dicts and plain objects. It holds all of that, and has it made again, whether it reads it or
not."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from remat_codegen.marked.names import free_names
from remat_codegen.marked.outside import LIBRARIES, PURE, root_of
from remat_codegen.marked.syntax import is_dotted


def given_to_expression(node: ast.expr, outside: Collection[ast.expr]) -> frozenset[str]:
    """The names of what an expression is given, and attributes, `state.levels`. `outside` are handed in alone."""
    return frozenset({*free_names(node, outside), *(ast.unparse(n) for n in outside if is_dotted(n))})


def given_to_calls(node: ast.expr) -> frozenset[str]:
    """The same of the calls in an expression: what is taken out of a list for them is given alone."""
    arguments = [argument for call in calls_in(node) for argument in (*call.args, *(k.value for k in call.keywords))]
    return frozenset(name for argument in arguments for name in _whole(argument))


def calls_in(node: ast.expr) -> list[ast.Call]:
    """The calls in an expression of what may be a module."""
    return [n for n in ast.walk(node) if isinstance(n, ast.Call) and root_of(n.func) not in LIBRARIES | PURE]


def taken_out(argument: ast.expr) -> bool:
    """Whether an argument is, or has in it, something out of a list, a dict or an object, but for a module's own."""
    taken = (n for n in ast.walk(argument) if isinstance(n, (ast.Subscript, ast.Attribute)))
    return any(isinstance(n, ast.Subscript) or root_of(n) not in LIBRARIES | PURE | {"self"} for n in taken)


def _whole(node: ast.AST) -> Iterator[str]:
    """What is handed on whole."""
    if isinstance(node, ast.expr) and is_dotted(node):
        yield ast.unparse(node)
    elif not isinstance(node, (ast.Subscript, ast.Attribute, ast.Call, ast.Lambda)):
        for child in ast.iter_child_nodes(node):
            yield from _whole(child)
