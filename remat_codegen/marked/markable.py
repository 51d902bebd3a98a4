"""Which expressions of a file can be wrapped into a part without changing what the file computes, and why others cannot."""

from __future__ import annotations

import ast
from functools import lru_cache

from remat_codegen.marked.syntax import FUNCTIONS, Syntax, syntax_of
from remat_codegen.trace.places import Span

SCOPES = frozenset("locals vars dir eval exec globals breakpoint".split())  # what looks at the names of the function it is in
LAZY = frozenset("map filter zip enumerate reversed iter".split())
IN_PLACE: dict[type, str] = {ast.Add: "add_", ast.Sub: "sub_", ast.Mult: "mul_", ast.Div: "div_"}  # what += is for a tensor
DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef)


@lru_cache(maxsize=65536)
def markable(source: str, span: Span) -> str:
    """Why the expression at a span cannot be a part; empty where it can."""
    syntax = syntax_of(source)
    if syntax is None:
        return "the file cannot be read"
    node = syntax.find(span)
    if node is None:
        return "no expression stands there"
    return _place(syntax, node) or _content(syntax, node) or _beside(syntax, node)


def method_of(syntax: Syntax, node: ast.AST) -> ast.FunctionDef | None:
    """The method that an expression stands in, however deep in functions of it."""
    found = None
    for outer in syntax.ancestors(node):
        if isinstance(outer, ast.ClassDef):
            break
        found = outer if isinstance(outer, DEFINED) else found
    return found if isinstance(found, ast.FunctionDef) and isinstance(syntax.parents[found], ast.ClassDef) else None


def function_of(syntax: Syntax, node: ast.AST) -> ast.FunctionDef | None:
    """The function at the top of a file that an expression stands in, in no other function and no class."""
    outer = list(syntax.ancestors(node))
    defining = [o for o in outer if isinstance(o, (*DEFINED, ast.Lambda, ast.ClassDef))]
    return outer[-2] if defining == outer[-2:-1] and isinstance(outer[-2], ast.FunctionDef) else None  # type: ignore[return-value]


def home_of(syntax: Syntax, node: ast.AST) -> ast.FunctionDef | None:
    """The method that an expression stands in, or the function at the top of the file."""
    return method_of(syntax, node) or function_of(syntax, node)


def _place(syntax: Syntax, node: ast.AST) -> str:
    """What of the surroundings speaks against a mark."""
    if isinstance(node, ast.AugAssign) and not (isinstance(node.target, ast.Name) and type(node.op) in IN_PLACE):
        return "it changes what is no variable"
    if not isinstance(node, (ast.expr, ast.AugAssign)) or isinstance(node, (ast.Starred, ast.Slice)):
        return "it is no expression"
    if isinstance(node, ast.GeneratorExp) or (isinstance(node, ast.Call) and _names(node.func) & LAZY):
        return "what is in it runs later"
    if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        return "it is assigned to"
    method, function = method_of(syntax, node), function_of(syntax, node)
    if function is not None:
        return _between(syntax, node, function)
    if method is None:
        return "it is neither in a method nor in a function"
    if not _is_of_its_method(syntax, node, method):
        return "it is in a function that may be another module's of the class"
    first = [*method.args.posonlyargs, *method.args.args][:1]
    if not first or first[0].arg != "self" or any(_names(d) & {"staticmethod", "classmethod"} for d in method.decorator_list):
        return "its method has no self"
    return _between(syntax, node, method)


def _is_of_its_method(syntax: Syntax, node: ast.AST, method: ast.FunctionDef) -> bool:
    """Whether the functions within a method that an expression stands in know their module, or do not leave the method."""
    outer = list(syntax.ancestors(node))
    within = [o for o in outer[: outer.index(method)] if isinstance(o, FUNCTIONS)]
    return any("self" in _names(f) for f in within) or all(_stays(syntax, f) for f in within)


def _stays(syntax: Syntax, function: ast.AST) -> bool:
    """Whether a function is only called, by the one that it is defined in, or given to map or filter there."""
    if _is_used_up(syntax, function):
        return True
    statement = syntax.parents[function]
    assigned = statement.targets if isinstance(statement, ast.Assign) else []
    name = getattr(function, "name", None) or (getattr(assigned[0], "id", None) if len(assigned) == 1 else None)
    home = next((o for o in syntax.ancestors(function) if isinstance(o, FUNCTIONS)), None)
    uses = [n for n in ast.walk(home or function) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    return home is not None and name is not None and all(_is_used_up(syntax, n) for n in uses)


def _is_used_up(syntax: Syntax, function: ast.AST) -> bool:
    """Whether a function is called where it stands, or is given to map or filter."""
    call = syntax.parents.get(function)
    if not isinstance(call, ast.Call):
        return False
    return call.func is function or (isinstance(call.func, ast.Name) and call.func.id in ("map", "filter"))


def _between(syntax: Syntax, node: ast.AST, method: ast.FunctionDef) -> str:
    inner, within = node, [node]
    for outer in syntax.ancestors(node):
        if isinstance(outer, (*DEFINED, ast.Lambda)):
            found = _in_function(outer, inner, within)
            if found:
                return found
        if isinstance(outer, ast.pattern):
            return "it is in a pattern"
        if isinstance(outer, (ast.AnnAssign, ast.arg)) and outer.annotation is inner:
            return "it is an annotation"
        if outer is method:
            return ""
        inner = outer
        within.append(outer)
    return "it is neither in a method nor in a function"


def _in_function(function: ast.AST, inner: ast.AST, within: list[ast.AST]) -> str:
    """What of a function, of which `inner` is a child, speaks against marks in it."""
    body = function.body if isinstance(function, DEFINED) else [getattr(function, "body", None)]
    if inner not in body:
        return "it is a default, a decorator or an annotation"
    if isinstance(function, ast.AsyncFunctionDef):
        return "it is in an asynchronous function"
    if isinstance(function, ast.FunctionDef) and _yields(function):
        return "it is in a generator"
    if isinstance(function, ast.FunctionDef) and "self" in _rebound(function):
        return "self is assigned to"
    return ""


def _content(syntax: Syntax, node: ast.AST) -> str:
    """What in an expression cannot be moved into a function of its own."""
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Await, ast.Yield, ast.YieldFrom)):
            return "it waits or yields"
        if isinstance(inner, ast.NamedExpr) and not _is_only_in(syntax, node, inner.target.id):
            return "it assigns a name (:=) that is not only read in it"
        if any(getattr(c, "is_async", 0) for c in getattr(inner, "generators", ())):
            return "it waits or yields"
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name):
            if inner.func.id == "super" and not inner.args:
                return "super() only works in the method itself"
            if inner.func.id in SCOPES:
                return f"{inner.func.id}() looks at the names of the method"
        if isinstance(inner, ast.Name) and inner.id == "__class__":
            return "__class__ is only known in the method itself"
    return ""


def _is_only_in(syntax: Syntax, node: ast.AST, name: str) -> bool:
    """Whether the function that an expression stands in mentions a name nowhere else, and does not look at all of them."""
    home = home_of(syntax, node)
    return home is not None and not _names(home) & SCOPES and is_only_in(home, node, name)


def is_only_in(function: ast.AST, node: ast.AST, name: str) -> bool:
    """Whether a function mentions a name only in one expression of it."""
    within = set(ast.walk(node))
    return not any(_mentions(n, name) for n in ast.walk(function) if n not in within)


def _mentions(node: ast.AST, name: str) -> bool:
    """Whether a node itself, not what is in it, reads or binds a name."""
    return name in {getattr(node, field, None) for field in ("id", "arg", "name", "asname", "rest")} | {*_declared(node)}


def _declared(node: ast.AST) -> list[str]:
    return node.names if isinstance(node, (ast.Global, ast.Nonlocal)) else []


def _beside(syntax: Syntax, node: ast.AST) -> str:
    """What in the method that an expression stands in works in modules of its own class only, which those are not that take it
    over: what decorates a method may hold the one of that class."""
    method = method_of(syntax, node)
    held = method is not None and bool(method.decorator_list) and looks_at_class(method)
    return "its method is decorated, and looks at its class, by super() or __class__" if held else ""


def looks_at_class(method: ast.FunctionDef) -> bool:
    """Whether a method may ask for the class that it was written in."""
    return bool(_names(method) & {"super", "__class__"})


def _yields(function: ast.FunctionDef) -> bool:
    """Whether a function is a generator; functions inside of it do not count."""
    ahead: list[ast.AST] = list(function.body)
    while ahead:
        node = ahead.pop()
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, (*DEFINED, ast.Lambda, ast.ClassDef)):
            ahead += ast.iter_child_nodes(node)
    return False


def _rebound(function: ast.FunctionDef) -> set[str]:
    stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    nested = [n for n in ast.walk(function) if isinstance(n, (*DEFINED, ast.Lambda)) and n is not function]
    return stored | {a.arg for n in nested for a in ast.walk(n.args) if isinstance(a, ast.arg)}


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
