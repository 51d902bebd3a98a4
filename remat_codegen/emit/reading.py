"""What the user's source says where an operation comes from: the shapes that it unpacked before, and the expressions that may
have become the operation's numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile

from remat_codegen.emit.arithmetic import Number, operands
from remat_codegen.emit.sources import tree_of
from remat_codegen.trace import Operation, Ref, Source

_SHAPING = frozenset("view reshape expand repeat split chunk unflatten".split())


@dataclass(frozen=True, slots=True)
class Shape:
    """What `x.shape`, `x.shape[:2]`, `x.shape[1]` or `x.size(1)` asks for: dimensions of `base`, a name in the source.

    `suffix` is how to ask any tensor for them; the dimensions of a `whole` shape are known when it is unpacked.
    """

    base: str
    dimensions: tuple[int, ...]
    suffix: str
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Unpacking:
    """`B, T, C = x.shape` in a function of the source, which stands on the lines from `first` to `last`."""

    first: int
    last: int
    line: int
    names: tuple[str, ...]
    shape: Shape


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the source, which stands on the lines from `first` to `last`."""

    first: int
    last: int
    unpackings: tuple[Unpacking, ...]
    statements: tuple[ast.stmt, ...]
    assigned: dict[str, ast.Assign]  # names that are assigned once
    shaping: frozenset[str]  # attributes of self that shapes depend on, and that nothing but __init__ sets


def may_be(argument: ast.expr, number: Number) -> bool:
    """Whether an argument in the source can be the number that was traced."""
    return not isinstance(argument, ast.Constant) or argument.value == number


def statement_around(function: Function, operation: Operation) -> ast.stmt | None:
    """The innermost statement that an operation comes from."""
    assert operation.source is not None
    line = operation.source.line
    found = [s for s in function.statements if s.lineno <= line <= (s.end_lineno or s.lineno)]
    return min(found, key=lambda s: (s.end_lineno or s.lineno) - s.lineno, default=None)


def operands_in(function: Function, operation: Operation) -> Iterator[ast.expr]:
    """What stands beside the operators in the source that may have led to an operation."""
    statement = statement_around(function, operation)
    return iter(()) if statement is None else operands(statement, base_name(operation))


def base_name(operation: Operation) -> str:
    """What people call an operation, in place or not."""
    return operation.base.rstrip("_")


def calls_in(function: Function, operation: Operation) -> Iterator[list[ast.expr]]:
    """The arguments, but for tensors in front, of the calls in the source that may have led to an operation."""
    statement = statement_around(function, operation)
    tensors = sum(1 for _ in takewhile(lambda a: isinstance(a, Ref), operation.args))
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)] if statement is not None else []
    for call in calls:
        called = call.func
        if base_name(operation) not in (getattr(called, "attr", None), getattr(called, "id", None)):
            continue
        of_tensor = isinstance(called, ast.Attribute) and not _is_package(called.value)
        given = call.args[tensors - 1 if of_tensor and tensors else tensors :]
        yield [part for a in given for part in (a.elts if isinstance(a, (ast.Tuple, ast.List)) else [a])]


def bounds_in(function: Function, operation: Operation) -> Iterator[ast.expr]:
    """What stands between brackets in the statement that an operation comes from."""
    statement = statement_around(function, operation)
    for node in ast.walk(statement) if statement is not None else ():
        index = node.slice if isinstance(node, ast.Subscript) else None
        for part in index.elts if isinstance(index, ast.Tuple) else [index]:
            bounds = [part.lower, part.upper, part.step] if isinstance(part, ast.Slice) else [part]
            yield from (b for b in bounds if b is not None and not isinstance(b, ast.Constant))


def _is_package(value: ast.expr) -> bool:
    """Whether an expression is torch, F or torch.nn.functional, rather than a tensor."""
    if isinstance(value, ast.Attribute):
        return value.attr == "functional"
    return isinstance(value, ast.Name) and value.id in ("torch", "F", "functional")


def function_around(source: Source | None) -> Function | None:
    functions = () if source is None else _functions(tree_of(source.file))
    around = [f for f in functions if source is not None and f.first <= source.line <= f.last]
    return min(around, key=lambda f: f.last - f.first, default=None)


@lru_cache(maxsize=64)
def _functions(tree: ast.Module) -> tuple[Function, ...]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    changing = frozenset(name for f in functions if f.name != "__init__" for name in _attributes(f, ast.Store, ast.Del))
    return tuple(_read(f, changing) for f in functions)


def _attributes(tree: ast.AST, *contexts: type[ast.expr_context]) -> set[str]:
    """The names of attributes, of whatever, that are read or set."""
    return {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, contexts)}


def _read(function: ast.FunctionDef, changing: frozenset[str]) -> Function:
    statements = tuple(n for n in ast.walk(function) if isinstance(n, ast.stmt) and n is not function)
    last = function.end_lineno or function.lineno
    bound = [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    found = []
    for statement in statements:
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        names = tuple(p.id for p in parts if isinstance(p, ast.Name))
        shape = shape_of(statement.value) if isinstance(statement, ast.Assign) else None
        once = all(n == "_" or bound.count(n) == 1 for n in names)  # else its value depends on where it is read
        alone = shape is None or isinstance(target, ast.Tuple) or shape.suffix.endswith("]") and ":" not in shape.suffix
        if shape is None or not names or len(names) != len(parts) or not once or not alone:
            continue
        if shape.whole:
            shape = replace(shape, dimensions=tuple(range(len(names))))
        if len(names) == len(shape.dimensions):
            found.append(Unpacking(function.lineno, last, statement.lineno, names, shape))
    single = [s for s in statements if isinstance(s, ast.Assign) and len(s.targets) == 1]
    assigned = {t.id: s for s in single for t in s.targets if isinstance(t, ast.Name) and bound.count(t.id) == 1}
    calls = [n for n in ast.walk(function) if isinstance(n, ast.Call) and getattr(n.func, "attr", "") in _SHAPING]
    shaping = frozenset(name for c in calls for a in c.args for name in _attributes(a, ast.Load))
    return Function(function.lineno, last, tuple(found), statements, assigned, shaping - changing)


@lru_cache(maxsize=64)
def imports_math(tree: ast.Module) -> bool:
    imports = [a for s in tree.body if isinstance(s, ast.Import) for a in s.names]
    return any(a.name == "math" and a.asname is None for a in imports)


def shape_of(value: ast.expr) -> Shape | None:
    """The shape that an expression asks for; None for other expressions."""
    if isinstance(value, ast.Subscript):
        whole, index = shape_of(value.value), value.slice
        if whole is None or not whole.whole:
            return None
        if (
            isinstance(index, ast.Slice)
            and index.lower is None
            and index.step is None
            and isinstance(index.upper, ast.Constant)
        ):
            count = index.upper.value
            return Shape(whole.base, tuple(range(count)), f".shape[:{count}]") if isinstance(count, int) and count > 0 else None
        return _one(whole.base, index)
    if isinstance(value, ast.Attribute) and value.attr == "shape" and isinstance(value.value, ast.Name):
        return Shape(value.value.id, (), ".shape", True)
    called = value.func if isinstance(value, ast.Call) and not value.keywords else None
    if isinstance(value, ast.Call) and isinstance(called, ast.Attribute) and called.attr == "size":
        if isinstance(called.value, ast.Name) and not value.args:
            return Shape(called.value.id, (), ".shape", True)
        return _one(called.value.id, value.args[0]) if isinstance(called.value, ast.Name) and len(value.args) == 1 else None
    return None


def _one(base: str, index: ast.expr) -> Shape | None:
    try:
        dimension = ast.literal_eval(index)
    except ValueError:
        return None
    return Shape(base, (dimension,), f".shape[{dimension}]") if type(dimension) is int else None
