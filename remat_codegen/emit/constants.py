"""Names at the top of a user's file that stand for numbers, strings and the like, which nothing can change."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

FUNCTIONS = frozenset("abs bool float int len max min pow repr round str".split())
LIBRARY = "math. os.environ.get os.getenv os.path. torch.device torch.cuda. torch.get_default_ torch.finfo".split()


def constants_in(statements: Iterable[ast.stmt], imports: Mapping[str, str]) -> set[str]:
    """Those that every statement which binds them binds to something that cannot be changed."""
    values: dict[str, list[ast.expr | None]] = {}
    for name, value in (b for s in statements for b in _bindings(s)):
        values.setdefault(name, []).append(value)
    found = set(values)
    while worse := {n for n in found if not all(_is_fixed(v, found, imports) for v in values[n])}:
        found -= worse
    return found


def _bindings(node: ast.stmt) -> list[tuple[str, ast.expr | None]]:
    """The names that a statement binds, each with its value; None for what cannot be said."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [(node.name, None)]
    found: list[tuple[str, ast.expr | None]] = []
    for part in ast.walk(node):
        if isinstance(part, ast.Assign):
            for target in part.targets:
                plain = isinstance(target, ast.Name)
                found += [(name, part.value if plain else None) for name in _stored(target)]
        elif isinstance(part, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
            found += [(name, part.value) for name in _stored(part.target)]
        elif isinstance(part, (ast.For, ast.comprehension)):
            found += [(name, None) for name in _stored(part.target)]
        elif isinstance(part, ast.withitem) and part.optional_vars is not None:
            found += [(name, None) for name in _stored(part.optional_vars)]
        elif isinstance(part, (ast.FunctionDef, ast.ClassDef)):
            found.append((part.name, None))
    return found


def _stored(node: ast.expr) -> list[str]:
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def _is_fixed(node: ast.expr | None, fixed: set[str], imports: Mapping[str, str]) -> bool:
    """Whether a value is one that nothing can change."""
    if node is None:
        return False
    if isinstance(node, (ast.Constant, ast.JoinedStr, ast.Compare)):
        return True
    if isinstance(node, ast.Name):
        return node.id in fixed
    if isinstance(node, ast.Attribute):
        return full_name(node, imports).startswith(("math.", "torch.float", "torch.bfloat", "torch.int", "torch.bool"))
    if isinstance(node, ast.Call):
        name = full_name(node.func, imports)
        return name in FUNCTIONS or name.startswith(tuple(LIBRARY))
    if isinstance(node, (ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.IfExp, ast.Tuple)):
        tests = {node.test} if isinstance(node, ast.IfExp) else set()
        children = [c for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr) and c not in tests]
        return all(_is_fixed(c, fixed, imports) for c in children)
    return False


def full_name(node: ast.expr, imports: Mapping[str, str]) -> str:
    """torch.nn.init for `init` where that was imported from torch.nn; empty for what is no name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([imports.get(node.id, node.id), *reversed(parts)]) if isinstance(node, ast.Name) else ""
