"""A file's expressions: found by line and column, with those around them, in the order in which Python evaluates them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from remat_codegen.trace.places import Span

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def span_of(node: ast.AST) -> Span:
    return node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0  # type: ignore[attr-defined]


class Syntax:
    """The syntax tree of a file. Nothing is found inside of formatted strings, whose places Python 3.11 gets wrong."""

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self.parents: dict[ast.AST, ast.AST] = {}
        self.order: dict[ast.AST, int] = {}  # by expression: when it is done; what stands in it comes before
        self.at: dict[Span, ast.expr | ast.AugAssign] = {}  # the outermost with a span
        self.calls_ending: dict[tuple[int, int], ast.Call] = {}
        self._enter(self.tree)

    def _enter(self, node: ast.AST) -> None:
        if isinstance(node, (ast.expr, ast.AugAssign)):
            self.at.setdefault(span_of(node), node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            self.calls_ending.setdefault(span_of(node)[2:], node)
        for child in [] if isinstance(node, ast.JoinedStr) else in_order(node):
            self.parents[child] = node
            self._enter(child)
        self.order[node] = len(self.order)

    def find(self, span: Span) -> ast.expr | ast.AugAssign | None:
        """The expression at a span. Python places a method's call that has several lines at the method's name."""
        found = self.at.get(span)
        if found is not None:
            return found
        call = self.calls_ending.get(span[2:])
        if call is None or not isinstance(call.func, ast.Attribute):
            return None
        _, _, line, end = span_of(call.func)
        return call if span[:2] == (line, end - len(call.func.attr.encode())) else None

    def around(self, node: ast.AST) -> tuple[ast.AST, ...]:
        """An expression and those that it stands in, outermost first, up to the statement's, or to a lambda's body."""
        found = [node]
        while True:
            parent = self.parents.get(node)
            if parent is None or isinstance(parent, (*FUNCTIONS, ast.stmt)):
                found += [parent] if isinstance(parent, ast.AugAssign) else []
                return tuple(reversed(found))
            if _is_value(parent, self.parents.get(parent)):
                found.append(parent)
            node = parent

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node stands in, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node


def methods_in(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The methods of classes, and of classes within them, by name."""
    for node in getattr(tree, "body", ()):
        if isinstance(node, ast.ClassDef):
            yield from methods_in(node, f"{prefix}{node.name}.")
        elif prefix and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{prefix}{node.name}", node


def functions_in(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The same, and the functions at the top of a file."""
    yield from ((node.name, node) for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    yield from methods_in(tree)


@lru_cache(maxsize=64)
def syntax_of(source: str) -> Syntax | None:
    """The syntax tree of a file; None where this Python cannot read it."""
    try:
        return Syntax(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def bound_in(node: ast.AST) -> frozenset[str]:
    """The names that an expression binds itself: those of comprehensions, of lambdas, and by `:=`."""
    stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    return frozenset(stored | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)})


def in_order(node: ast.AST) -> Iterator[ast.AST]:
    """The children of a node in the order of evaluation."""
    if isinstance(node, ast.IfExp):
        yield from (node.test, node.body, node.orelse)
    elif isinstance(node, ast.DictComp):
        yield from (*node.generators, node.key, node.value)
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        yield from (*node.generators, node.elt)
    elif isinstance(node, ast.comprehension):
        yield from (node.iter, node.target, *node.ifs)
    elif isinstance(node, ast.Dict):
        yield from (n for pair in zip(node.keys, node.values, strict=True) for n in pair if n is not None)
    elif isinstance(node, ast.Assign):
        yield from (node.value, *node.targets)
    else:
        yield from ast.iter_child_nodes(node)


def is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a text alone, as a docstring is."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def value_of(node: ast.expr) -> ast.expr:
    """What an expression gives that may name it, `y := f(x)`."""
    return node.value if isinstance(node, ast.NamedExpr) else node


def is_dotted(node: ast.AST) -> bool:
    """Whether an expression is a plain name, or an attribute of one."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _is_value(node: ast.AST, above: ast.AST | None) -> bool:
    """Whether a node computes a value of its own: the method in `x.view(3)` is none."""
    if isinstance(node, ast.Attribute) and isinstance(above, ast.Call) and above.func is node:
        return False
    return isinstance(node, ast.expr) and not isinstance(node, (ast.Starred, ast.Slice, ast.Lambda))
