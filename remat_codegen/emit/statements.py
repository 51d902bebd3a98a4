"""The statements at the top of a user's file: what each defines and mentions."""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from remat_codegen.emit.effects import is_quiet
from remat_codegen.emit.others import OURS, is_installed

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class Statement:
    """A statement at the top of a file: what it defines, and what it mentions.

    `bindings` are the names that it binds, with the full name of what an import binds (empty for anything else); `parts` is the
    same as Python's own syntax tree.
    """

    def __init__(self, node: cst.BaseStatement | cst.SimpleStatementLine) -> None:
        self.node = node
        code = cst.Module([]).code_for_node(node).lstrip("\f")
        tree = ast.parse(code)
        self.parts = tree.body
        self.is_import = _is_import(node)
        self.is_future = self.is_import and any(_module_name(i) == "__future__" for i in imports_in(node))
        finder = Names(alone=self.is_import)
        node.visit(finder)
        self.mentions, self.star = finder.mentions, finder.star
        self.is_main_guard = _is_main_guard(self.parts[0]) if self.parts else False
        bound = list(bound_in(tree))
        given = {name for name, imported in bound if not imported}  # import numpy, or numpy = None: nobody knows
        self.bindings = {name: "" if name in given else finder.imports.get(name, "") for name, _ in bound}
        self.bindings |= {n: f"{m}.{n}" for m in self.stars() for n in _exported(m)}
        self.defines = set(self.bindings)
        self.sets_forward = finder.sets_forward
        self.importable = not finder.foreign and (self.is_import or not self.star)

    def stars(self) -> list[str]:
        """The modules that this line imports everything of."""
        found = [i for i in imports_in(self.node) if isinstance(i, cst.ImportFrom) and isinstance(i.names, cst.ImportStar)]
        return [_module_name(i) for i in found if _may_import(i)]

    def import_lines(self, mentioned: frozenset[str]) -> tuple[str, ...]:
        """Import statements, one a line; of everything, what is mentioned."""
        lines = []
        for line in import_lines_of([self.node]):
            names = sorted(mentioned & _exported(line.split()[1])) if line.endswith("import *") else []
            lines += [line.replace("*", ", ".join(names))] if names else [] if line.endswith("import *") else [line]
        return tuple(lines)

    def bare(self) -> cst.BaseStatement:
        """The statement without what it only prints."""
        if isinstance(self.node, (cst.ClassDef, cst.FunctionDef)):
            return self.node
        found = self.node.visit(_Quiet())
        assert isinstance(found, cst.BaseStatement)
        return found


@functools.lru_cache(maxsize=32)
def _exported(module: str) -> frozenset[str]:
    """What `from module import *` brings."""
    try:
        found = importlib.import_module(module)
    except ImportError:  # of another Python or another PyTorch
        return frozenset()
    names = getattr(found, "__all__", None)
    return frozenset(n for n in vars(found) if not n.startswith("_")) if names is None else frozenset(names)


def _is_main_guard(node: ast.stmt) -> bool:
    """Whether a statement is `if __name__ == "__main__"`, which does not run when the file is imported."""
    if not isinstance(node, ast.If) or node.orelse:
        return False
    first = node.test.values[0] if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And) else node.test
    if not isinstance(first, ast.Compare) or not isinstance(first.ops[0], ast.Eq) or len(first.ops) > 1:
        return False
    return {ast.unparse(first.left), ast.unparse(first.comparators[0])} == {"__name__", "'__main__'"}


def _is_quiet(statement: cst.BaseSmallStatement) -> bool:
    """Whether a statement only prints, logs, asserts, or is a string."""
    if not isinstance(statement, (cst.Expr, cst.Assert)):
        return False
    bare = statement.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
    return is_quiet(ast.parse(cst.Module([]).code_for_node(bare)).body[0])


class _Quiet(cst.CSTTransformer):
    """Takes out of a statement at the top of a file what only prints."""

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return False

    def visit_Try(self, node: cst.Try) -> bool:
        """An assertion, or a name, that stands alone there decides by failing."""
        return False

    def visit_With(self, node: cst.With) -> bool:
        """The same: with suppress(AssertionError)."""
        return False

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        return updated_node.with_changes(body=_loud(updated_node.body))

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.SimpleStatementSuite:
        return updated_node.with_changes(body=_loud(updated_node.body))


def _loud(body: Sequence[cst.BaseSmallStatement]) -> list[cst.BaseSmallStatement]:
    kept = [s for s in body if not _is_quiet(s)]
    return body if len(kept) == len(body) else kept or [cst.Pass()]  # type: ignore[return-value]


def bound_in(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """The names that code binds where it stands, outside of functions and classes in it, each with whether an import does.

    Python's own scope analysis (`symtable`) takes the variables of comprehensions for those around them since 3.12, and
    libcst's needs all of a file at once, and a copy of that: twelve times the time.
    """
    ahead: list[ast.AST] = [tree]
    for node in ahead:  # which grows
        if isinstance(node, SCOPES):
            yield from [] if isinstance(node, ast.Lambda) else [(node.name, False)]
            continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id, False
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name is not None:
            yield node.name, False
        elif isinstance(node, ast.MatchMapping) and node.rest is not None:
            yield node.rest, False
        elif isinstance(node, ast.alias) and node.name != "*":
            yield node.asname or node.name.partition(".")[0], True
        own = [node.iter, *node.ifs] if isinstance(node, ast.comprehension) else ast.iter_child_nodes(node)
        ahead += own


class Names(cst.CSTVisitor):
    """What some code mentions, and what it imports: `imports` are full names, by the name that each gets. An import that stands
    `alone` may be of other packages."""

    def __init__(self, alone: bool = False) -> None:
        self.alone = alone
        self.imports: dict[str, str] = {}
        self.mentions: set[str] = set()
        self.star = self.foreign = self.sets_forward = False
        self.depth = self.guarded = self.caught = 0

    def _import(self, name: str, what: str) -> None:
        if self.depth == 0:
            self.imports[name] = what

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.depth += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self.depth -= 1

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self.depth += 1

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self.depth -= 1

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.mentions.add(node.value)

    def visit_Call(self, node: cst.Call) -> bool:
        """What a logger is called after changes nothing: `__name__` is another in another file."""
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "getLogger":
            node.func.visit(self)
            return False
        return True

    def visit_Expr(self, node: cst.Expr) -> bool:
        return self.depth > 0 or self.caught > 0 or not _is_quiet(node)

    def visit_Assert(self, node: cst.Assert) -> bool:
        return self.depth > 0 or self.caught > 0 or not _is_quiet(node)

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        self.sets_forward |= isinstance(node.target, cst.Attribute) and node.target.attr.value == "forward"

    def visit_Try(self, node: cst.Try) -> None:
        self.guarded += 1
        self.caught += 1

    def leave_Try(self, original_node: cst.Try) -> None:
        self.guarded -= 1
        self.caught -= 1

    def visit_With(self, node: cst.With) -> None:
        self.caught += 1

    def leave_With(self, original_node: cst.With) -> None:
        self.caught -= 1

    def visit_If(self, node: cst.If) -> None:
        self.guarded += _is_type_checking(node)

    def leave_If(self, original_node: cst.If) -> None:
        self.guarded -= _is_type_checking(original_node)

    def visit_Import(self, node: cst.Import) -> bool:
        self.foreign |= not _may_import(node, self.alone) and not self.guarded
        for alias in node.names:
            whole = alias.evaluated_name
            self._import(alias.evaluated_alias or whole.split(".")[0], whole if alias.evaluated_alias else whole.split(".")[0])
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        self.foreign |= bool(node.relative) or (not _may_import(node, self.alone) and not self.guarded)
        if isinstance(node.names, cst.ImportStar):
            self.star = True
        else:
            for alias in node.names:
                self._import(alias.evaluated_alias or alias.evaluated_name, f"{_module_name(node)}.{alias.evaluated_name}")
        return False


def _is_type_checking(node: cst.If) -> bool:
    """Whether a statement is `if TYPE_CHECKING`, which never runs."""
    name = node.test.attr if isinstance(node.test, cst.Attribute) else node.test
    return isinstance(name, cst.Name) and name.value == "TYPE_CHECKING"


def imports_in(node: cst.CSTNode) -> list[cst.Import | cst.ImportFrom]:
    if not isinstance(node, cst.SimpleStatementLine):
        return []
    return [s for s in node.body if isinstance(s, (cst.Import, cst.ImportFrom))]


def _is_import(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleStatementLine) and len(imports_in(node)) == len(node.body)


def _module_name(node: cst.Import | cst.ImportFrom) -> str:
    if isinstance(node, cst.Import):
        return node.names[0].evaluated_name
    return "" if node.module is None else cst.Module([]).code_for_node(node.module)


def _may_import(node: cst.Import | cst.ImportFrom, installed: bool = False) -> bool:
    """Whether an import statement needs only torch and the standard library, and maybe packages that are installed."""
    if isinstance(node, cst.ImportFrom) and node.relative:
        return False
    names = [a.evaluated_name for a in node.names] if isinstance(node, cst.Import) else [_module_name(node)]
    return all(n.split(".")[0] in OURS or (installed and is_installed(n.split(".")[0])) for n in names)


def import_lines_of(nodes: Iterable[cst.BaseStatement]) -> tuple[str, ...]:
    """Import statements, one a line, one module each, without comments."""
    alone = {"semicolon": cst.MaybeSentinel.DEFAULT}
    found = []
    for statement in (s for node in nodes for s in imports_in(node)):
        aliases = statement.names if isinstance(statement, cst.Import) else ()
        parts = [a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in aliases]
        single = [statement.with_changes(names=[part], **alone) for part in parts] or [statement.with_changes(**alone)]
        found += [ast.unparse(ast.parse(cst.Module([]).code_for_node(s))) for s in single]
    return tuple(found)
