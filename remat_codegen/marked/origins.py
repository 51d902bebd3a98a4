"""What the methods that a file has with marks were made from: digests of that text, by which a file notices that the model's
code is another by now. Without them, methods that were written out would silently do what the code did before."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Collection, Iterable, Iterator

from remat_codegen import parts
from remat_codegen.marked.library import method_in
from remat_codegen.marked.syntax import methods_in, syntax_of


def origins(text: str, methods: Iterable[str], *, with_names: bool) -> tuple[str, ...]:
    """The methods (`Block.forward`) of a file's classes, each with the digest of its text, `name:digest`; and, if `with_names`,
    the statements at the top of the file that they need by name, and those that these need."""
    syntax = syntax_of(text)
    assert syntax is not None
    lines, names = parts._code_lines(text), dict.fromkeys(methods)
    found = {name: node for name in names if (node := method_in(text, *_parted(name))) is not None}
    words = [f"{name}:{_digest(lines, node)}" for name, node in found.items()]
    needed = _needed(syntax.tree.body, list(found.values())) if with_names else ()
    return tuple(dict.fromkeys((*words, *(f"{name}:{_digest(lines, node)}" for name, node in needed))))


def callers(text: str, functions: Collection[str]) -> tuple[str, ...]:
    """The methods of a file's classes that name one of these functions at its top, or one that does, and so on."""
    syntax = syntax_of(text)
    assert syntax is not None
    at_top = {s.name: _read(s) for s in syntax.tree.body if isinstance(s, ast.FunctionDef)}
    names = set(functions)
    while more := {name for name, read in at_top.items() if name not in names and names.intersection(read)}:
        names |= more
    methods = methods_in(syntax.tree)
    return tuple(name for name, node in methods if names.intersection(_read(node)) and not name.endswith("__"))


def _parted(name: str) -> tuple[str, str]:
    kind, _, method = name.rpartition(".")
    return kind, method


def _digest(lines: list[str], node: ast.stmt) -> str:
    return next(digest for _, digest in parts._digests(lines, [node]))


def _needed(statements: list[ast.stmt], methods: Iterable[ast.stmt]) -> list[tuple[str, ast.stmt]]:
    """The statements that bind what methods read, and so on; each with the first of its names that is."""
    bound: dict[str, list[ast.stmt]] = {}
    for statement in statements:
        for name in _bound(statement):
            bound.setdefault(name, []).append(statement)
    found: dict[int, tuple[str, ast.stmt]] = {}
    reads = [name for method in methods for name in _read(method)]
    for name in reads:  # which grows
        for statement in bound.get(name, ()):
            if id(statement) not in found:
                found[id(statement)] = name, statement
                reads += _read(statement)
    return [found[id(s)] for s in statements if id(s) in found]


def _read(statement: ast.stmt) -> list[str]:
    """The names that a statement, or a method, reads of its file."""
    top = symtable.symtable(ast.unparse(ast.Module([statement], [])), "<statement>", "exec")
    found = [s.get_name() for s in top.get_symbols() if s.is_referenced()]
    tables = top.get_children()
    for table in tables:  # which grows
        found += [s.get_name() for s in table.get_symbols() if s.is_global()]
        tables += table.get_children()
    return sorted(set(found))


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a statement at the top of a file gives a meaning."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    else:
        for child in ast.iter_child_nodes(node):
            yield from _bound(child)
