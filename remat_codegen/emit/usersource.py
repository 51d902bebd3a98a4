"""Carries the user's classes over into the generated file, with libcst: what the model's class needs, unchanged but
for its forward.

A file is carried over when what the class needs of it imports only torch and the standard library. Otherwise the generated
class wraps an instance of the original.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import libcst as cst

ALLOWED = frozenset({"torch", "__future__", *sys.stdlib_module_names})


@dataclass(frozen=True, slots=True)
class Carried:
    """The part of a user's file that a class needs. `names` are what it defines, `future` and `imports` are lines."""

    future: tuple[str, ...]
    imports: tuple[str, ...]
    code: str
    names: frozenset[str]


def carry(source: str, class_name: str, new_forward: str) -> Carried | None:
    """The statements that `class_name` needs, with `forward` renamed to `plain_forward` and `new_forward` beside it.

    None where the class is not defined at the top of the file, or something it needs comes from another package.
    """
    module, statements = _read(source)
    target = next((s for s in statements if isinstance(s.node, cst.ClassDef) and s.node.name.value == class_name), None)
    if target is None:
        return None
    needed = _needed(statements, class_name)
    if any(not _importable(s.node) for s in needed if s.is_import):
        return None
    names = frozenset(n for s in needed for n in s.defines)
    future = [s.node for s in needed if s.is_future]
    imports = [s.node for s in needed if s.is_import and not s.is_future]
    rest = [_with_forward(module, s.node, new_forward) if s is target else s.node for s in needed if not s.is_import]
    return Carried(_lines(future), _lines(imports), _code(module, rest), names)


def parameters_of(source: str, class_name: str) -> str | None:
    """The parameter list of a class's own forward, as it is written; None where it inherits its forward."""
    module, statements = _read(source)
    for statement in statements:
        if isinstance(statement.node, cst.ClassDef) and statement.node.name.value == class_name:
            forward = _method(statement.node, "forward")
            return None if forward is None else module.code_for_node(forward.params)
    return None


@lru_cache(maxsize=8)
def _read(source: str) -> tuple[cst.Module, list[_Statement]]:
    module = cst.parse_module(source)
    return module, [_Statement(s) for s in module.body]


class _Statement:
    """A statement at the top of a file: what it defines and what it mentions."""

    def __init__(self, node: cst.BaseStatement | cst.SimpleStatementLine) -> None:
        self.node = node
        self.is_import = _is_import(node)
        self.is_future = self.is_import and any(_module_name(i) == "__future__" for i in _imports(node))
        finder = _Names()
        node.visit(finder)
        self.defines, self.mentions = finder.defines, finder.mentions
        self.star = finder.star
        self.is_definition = isinstance(node, (cst.ClassDef, cst.FunctionDef))
        self.is_main_guard = isinstance(node, cst.If) and "__name__" in finder.mentions


class _Names(cst.CSTVisitor):
    def __init__(self) -> None:
        self.defines: set[str] = set()
        self.mentions: set[str] = set()
        self.star = False
        self.depth = 0

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._enter(node.name.value)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self.depth -= 1

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._enter(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self.depth -= 1

    def _enter(self, name: str) -> None:
        if self.depth == 0:
            self.defines.add(name)
        self.depth += 1

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.mentions.add(node.value)

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        self._assigned(node.target)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        self._assigned(node.target)

    def visit_For(self, node: cst.For) -> None:
        self._assigned(node.target)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self._assigned(node.target)

    def _assigned(self, target: cst.BaseExpression) -> None:
        if self.depth:
            return
        if isinstance(target, cst.Name):
            self.defines.add(target.value)
        if isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._assigned(element.value)

    def visit_ImportAlias(self, node: cst.ImportAlias) -> bool:
        if self.depth == 0:
            bound = node.evaluated_alias or node.evaluated_name.split(".")[0]
            self.defines.add(bound)
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        if isinstance(node.names, cst.ImportStar):
            self.star = True
        elif self.depth == 0:
            self.defines.update(a.evaluated_alias or a.evaluated_name for a in node.names)
        return False


def _needed(statements: Sequence[_Statement], class_name: str) -> list[_Statement]:
    """The statements that a class cannot do without, in order."""
    wanted: set[str] = {class_name}
    chosen: set[int] = set()
    while True:
        data = {
            n for i in chosen if not statements[i].is_definition and not statements[i].is_import for n in statements[i].defines
        }
        more = {i for i, s in enumerate(statements) if i not in chosen and _is_needed(s, wanted, data)}
        if not more:
            return [s for i, s in enumerate(statements) if i in chosen]
        chosen |= more
        for i in more:
            wanted |= statements[i].mentions


def _is_needed(statement: _Statement, wanted: set[str], data: set[str]) -> bool:
    if statement.is_main_guard:
        return False
    if statement.star or statement.is_future or statement.defines & wanted:
        return True
    changes = not statement.is_definition and not statement.is_import
    return changes and bool(statement.mentions & data)


def _imports(node: cst.CSTNode) -> list[cst.Import | cst.ImportFrom]:
    if not isinstance(node, cst.SimpleStatementLine):
        return []
    return [s for s in node.body if isinstance(s, (cst.Import, cst.ImportFrom))]


def _is_import(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleStatementLine) and len(_imports(node)) == len(node.body)


def _module_name(node: cst.Import | cst.ImportFrom) -> str:
    if isinstance(node, cst.Import):
        return node.names[0].evaluated_name
    return "" if node.module is None else cst.Module([]).code_for_node(node.module)


def _importable(node: cst.CSTNode) -> bool:
    for statement in _imports(node):
        if isinstance(statement, cst.ImportFrom) and statement.relative:
            return False
        names = [a.evaluated_name for a in statement.names] if isinstance(statement, cst.Import) else [_module_name(statement)]
        if any(n.split(".")[0] not in ALLOWED for n in names):
            return False
    return True


def _method(definition: cst.ClassDef, name: str) -> cst.FunctionDef | None:
    body = definition.body.body if isinstance(definition.body, cst.IndentedBlock) else ()
    return next((s for s in body if isinstance(s, cst.FunctionDef) and s.name.value == name), None)


def _with_forward(module: cst.Module, node: cst.BaseStatement, new_forward: str) -> cst.BaseStatement:
    """The class with its forward renamed and the new one after it."""
    assert isinstance(node, cst.ClassDef) and isinstance(node.body, cst.IndentedBlock)
    added = cst.parse_statement(new_forward, config=module.config_for_parsing)
    body: list[cst.BaseStatement] = []
    for statement in node.body.body:
        if isinstance(statement, cst.FunctionDef) and statement.name.value == "forward":
            body += [statement.with_changes(name=cst.Name("plain_forward")), added]
        else:
            body.append(statement)
    if added not in body:
        inherited = "def plain_forward(self, *args, **kwargs):\n    return super().forward(*args, **kwargs)\n"
        body += [cst.parse_statement(inherited, config=module.config_for_parsing), added]
    return node.with_changes(body=node.body.with_changes(body=body))


def _lines(nodes: Iterable[cst.BaseStatement]) -> tuple[str, ...]:
    """Import statements, one a line, without comments."""
    found = []
    for node in nodes:
        for statement in _imports(node):
            found.append(
                " ".join(cst.Module([]).code_for_node(statement.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)).split())
            )
    return tuple(found)


def _code(module: cst.Module, nodes: Iterable[cst.BaseStatement]) -> str:
    return module.with_changes(header=(), footer=(), body=tuple(nodes)).code
