"""Names for what is generated: from the user's source where a value was assigned, else its module, else its operation."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from functools import lru_cache

from remat_codegen.emit.sources import tree_of
from remat_codegen.trace import Operation, Source, Trace, function_call

RESERVED = frozenset(
    {"m", "kept", "step", "device", "before", "torch", "nn", "F", "self", "math", "contextlib", "weakref", *dir(builtins)}
)


class Namer:
    """Owns the names of one scope: unique, no keywords, nothing reserved."""

    def __init__(self) -> None:
        self.taken: set[str] = set(RESERVED)

    def fresh(self, wish: str) -> str:
        """`wish`, or `wish_2`, `wish_3` ... where it is taken."""
        clean = re.sub(r"\W", "_", wish) or "value"
        if not clean.isidentifier() or not clean.isascii() or keyword.iskeyword(clean) or keyword.issoftkeyword(clean):
            clean = f"v_{re.sub(r'[^0-9a-zA-Z_]', '_', clean)}"
        name, count = clean, 1
        while name in self.taken:
            count += 1
            name = f"{clean}_{count}"
        self.taken.add(name)
        return name


def wishes(trace: Trace) -> dict[int, str]:
    """For each result, the name that a reader of the user's source would expect."""
    last_of_statement: dict[tuple, int] = {}
    for operation in trace.operations:
        statement = _statement(operation.source)
        if statement is not None:
            last_of_statement[_occurrence(operation, statement)] = operation.id
    found: dict[int, str] = {}
    for operation in trace.operations:
        statement = _statement(operation.source)
        targets = statement.targets if statement is not None else ()
        ends = statement is not None and last_of_statement[_occurrence(operation, statement)] == operation.id
        for position, variable in enumerate(operation.results):
            if variable is None:
                continue
            if ends and len(targets) == len(operation.results) and targets[position]:
                found[variable] = targets[position]
            else:
                found[variable] = _fallback(operation)
    return found


def _fallback(operation: Operation) -> str:
    tail = operation.module_path.rsplit(".", 1)[-1]
    if tail and not tail.isdigit() and operation.module_type.startswith("torch.nn."):
        return tail
    called = function_call(operation.target)
    if called is not None:
        return called.function.__name__.removesuffix("Function").lower()
    return operation.base.split("::")[-1].rstrip("_")


class _Statement:
    def __init__(self, first: int, last: int, targets: tuple[str, ...]) -> None:
        self.first, self.last, self.targets = first, last, targets


def _occurrence(operation: Operation, statement: _Statement) -> tuple[str, int, str]:
    """Tells apart the times that the same statement ran, by the user's module that it ran in."""
    assert operation.source is not None
    return operation.source.file, statement.first, owner_of(operation)


def owner_of(operation: Operation) -> str:
    """The path of the user's module that an operation runs in, be it in a module of PyTorch's."""
    library = operation.module_type.startswith("torch.nn.")
    return operation.module_path.rpartition(".")[0] if library else operation.module_path


def _statement(source: Source | None) -> _Statement | None:
    if source is None:
        return None
    for statement in _statements(tree_of(source.file)):
        if statement.first <= source.line <= statement.last:
            return statement
    return None


@lru_cache(maxsize=64)
def _statements(tree: ast.Module) -> tuple[_Statement, ...]:
    """The assignments of a file, innermost lines first."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
            names = tuple(p.id if isinstance(p, ast.Name) else "" for p in parts)
            found.append(_Statement(node.lineno, node.end_lineno or node.lineno, names))
    return tuple(sorted(found, key=lambda s: s.last - s.first))
