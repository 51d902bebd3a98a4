"""The statements at the top of a user's file: what each defines, mentions and may change, and which a class needs."""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from collections.abc import Iterable, Sequence

import libcst as cst

ALLOWED = frozenset({"torch", "__future__", *sys.stdlib_module_names})  # what a generated file may import from

# Calls at the top of a file that change nothing a class needs: what they print, log or set is not carried over.
TORCH = frozenset({"torch", "nn", "F"})
QUIET_FUNCTIONS = frozenset({"print", "pprint", "open", "input", "warnings", "logging", "sys", "torch", "os"})
QUIET_METHODS = frozenset("debug info warning warn error critical exception log write writelines flush close".split())


class Statement:
    """A statement at the top of a file: what it defines, what it mentions, and what it may change.

    `bindings` are the names that it binds, with the full name of what an import binds (empty for anything else). `changes` are
    the names whose values it may change itself (`name()` where it hands the value to a function), `calls` the functions that it
    calls, `writes` what those that it defines may change when they are called, and `sets` the names of whose values it sets
    attributes: `Net.scale = 2`, `torch.backends.cudnn.benchmark = True`; "torch" for torch.set_default_dtype(...), too.
    """

    def __init__(self, node: cst.BaseStatement | cst.SimpleStatementLine) -> None:
        self.node = node
        self.is_import = _is_import(node)
        self.is_future = self.is_import and any(_module_name(i) == "__future__" for i in imports_in(node))
        finder = Names()
        node.visit(finder)
        self.mentions, self.star, self.changes = finder.mentions, finder.star, finder.changes
        self.calls, self.writes, self.sets = finder.calls, finder.writes, finder.sets
        self.is_definition = isinstance(node, (cst.ClassDef, cst.FunctionDef))
        self.is_main_guard = isinstance(node, cst.If) and "__name__" in finder.mentions
        self.is_constant = _is_constant(node)
        self.bindings = finder.bindings | {n: f"{m}.{n}" for m in self.stars() for n in _exported(m)}
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
        if self.is_definition:
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


def _is_constant(node: cst.CSTNode) -> bool:
    """Whether a statement binds names to numbers or strings, which nothing can change."""
    if not isinstance(node, cst.SimpleStatementLine):
        return False
    values = [s.value for s in node.body if isinstance(s, (cst.Assign, cst.AnnAssign))]
    if len(values) != len(node.body) or None in values:
        return False
    try:
        found = [ast.literal_eval(cst.Module([]).code_for_node(v)) for v in values if v is not None]
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return False
    return all(isinstance(v, (int, float, complex, str, bytes, type(None))) for v in found)


def _is_quiet(statement: cst.BaseSmallStatement) -> bool:
    """Whether a statement changes nothing that a class may need: it prints, logs, asserts, or is a string."""
    if isinstance(statement, cst.Assert):
        return True
    if not isinstance(statement, cst.Expr):
        return False
    call = statement.value
    if not isinstance(call, cst.Call):
        return isinstance(call, (cst.SimpleString, cst.ConcatenatedString, cst.FormattedString, cst.Name, cst.Attribute))
    if _is_setting(call) or _is_setattr(call):
        return False
    function = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    return function in QUIET_METHODS or (_root(call.func) in QUIET_FUNCTIONS and not function.endswith("_"))


def _is_setting(call: cst.Call) -> bool:
    """Whether a call makes torch compute in another way: torch.set_default_dtype(torch.float64)."""
    function = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    sets = function.startswith(("set_default_", "set_float32_", "set_flush_", "use_deterministic_", "enable_"))
    return sets and _root(call.func) in TORCH


def _is_setattr(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Name) and call.func.value in ("setattr", "delattr") and len(call.args) > 1


def _root(node: cst.BaseExpression) -> str:
    """The name that an expression begins with: TABLE of TABLE.update, print of print."""
    while isinstance(node, (cst.Attribute, cst.Subscript, cst.Call)):
        node = node.func if isinstance(node, cst.Call) else node.value
    return node.value if isinstance(node, cst.Name) else ""


class _Quiet(cst.CSTTransformer):
    """Takes out of a statement at the top of a file what only prints."""

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
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


class Names(cst.CSTVisitor):
    """What some code binds outside functions and classes, what it mentions, what it may change, and what it imports."""

    def __init__(self) -> None:
        self.bindings: dict[str, str] = {}
        self.mentions: set[str] = set()
        self.changes: set[str] = set()
        self.calls: set[str] = set()
        self.writes: set[str] = set()
        self.sets: set[str] = set()
        self.star = self.foreign = self.sets_forward = False
        self.depth = self.guarded = 0

    def _bind(self, name: str, what: str = "") -> None:
        if self.depth == 0:
            self.bindings[name] = what

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._decorated(node)
        self._enter(node.name.value)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self.depth -= 1

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._decorated(node)
        for argument in (*node.bases, *node.keywords):  # a metaclass may do the same, that of a base, too
            self._called(argument.value)
        self._enter(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self.depth -= 1

    def _decorated(self, node: cst.FunctionDef | cst.ClassDef) -> None:
        """A decorator may put what it decorates into a table."""
        for decorator in node.decorators:
            self._called(decorator.decorator.func if isinstance(decorator.decorator, cst.Call) else decorator.decorator)

    def _called(self, function: cst.BaseExpression) -> None:
        """A method may change its object, a function what its code names."""
        name = _root(function)
        if self.depth:
            self.writes |= {name} if isinstance(function, cst.Attribute) else set()
            return
        self.calls.add(name)
        self.changes |= {name} if isinstance(function, cst.Attribute) else set()

    def _enter(self, name: str) -> None:
        self._bind(name)
        self.depth += 1

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.mentions.add(node.value)

    def visit_Call(self, node: cst.Call) -> None:
        """A call may change what it is given, too."""
        self._called(node.func)
        if self.depth == 0:
            self.sets |= {"torch"} if _is_setting(node) else {_root(node.args[0].value)} if _is_setattr(node) else set()
            given = {_root(a.value) for a in node.args}
            self.changes |= {f"{n}()" for n in given if n}

    def visit_Expr(self, node: cst.Expr) -> bool:
        return self.depth > 0 or not _is_quiet(node)

    def visit_Assert(self, node: cst.Assert) -> bool:
        return self.depth > 0

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        self.sets_forward |= isinstance(node.target, cst.Attribute) and node.target.attr.value == "forward"
        self._assigned(node.target)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        self._assigned(node.target)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self._changed(node.target)

    def visit_Del(self, node: cst.Del) -> None:
        self._changed(node.target)

    def visit_For(self, node: cst.For) -> None:
        self._assigned(node.target)

    def visit_AsName(self, node: cst.AsName) -> None:
        self._assigned(node.name)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self._assigned(node.target)

    def visit_MatchAs(self, node: cst.MatchAs) -> None:
        if node.name is not None:
            self._assigned(node.name)

    def visit_Global(self, node: cst.Global) -> None:
        self.writes |= {item.name.value for item in node.names}

    def _assigned(self, target: cst.BaseExpression) -> None:
        if isinstance(target, cst.Name):
            self._bind(target.value)
        elif isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._assigned(element.value)
        else:
            self._changed(target)

    def _changed(self, target: cst.BaseExpression) -> None:
        (self.writes if self.depth else self.changes).add(_root(target))
        self.sets |= {_root(target)} if isinstance(target, (cst.Attribute, cst.Subscript)) and not self.depth else set()

    def visit_Try(self, node: cst.Try) -> None:
        self.guarded += 1

    def leave_Try(self, original_node: cst.Try) -> None:
        self.guarded -= 1

    def visit_If(self, node: cst.If) -> None:
        self.guarded += _is_type_checking(node)

    def leave_If(self, original_node: cst.If) -> None:
        self.guarded -= _is_type_checking(original_node)

    def visit_Import(self, node: cst.Import) -> bool:
        self.foreign |= not _may_import(node) and not self.guarded
        for alias in node.names:
            whole = alias.evaluated_name
            self._bind(alias.evaluated_alias or whole.split(".")[0], whole if alias.evaluated_alias else whole.split(".")[0])
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        self.foreign |= bool(node.relative) or (not _may_import(node) and not self.guarded)
        if isinstance(node.names, cst.ImportStar):
            self.star = True
        else:
            for alias in node.names:
                self._bind(alias.evaluated_alias or alias.evaluated_name, f"{_module_name(node)}.{alias.evaluated_name}")
        return False


def _is_type_checking(node: cst.If) -> bool:
    """Whether a statement is `if TYPE_CHECKING`, which never runs."""
    name = node.test.attr if isinstance(node.test, cst.Attribute) else node.test
    return isinstance(name, cst.Name) and name.value == "TYPE_CHECKING"


def needed_for(statements: Sequence[Statement], class_name: str) -> list[Statement]:
    """The statements that a class cannot do without, in order: those that define what it mentions, and those that change that
    as the file is loaded, such as a class whose decorator puts it into a table."""
    written = _written(statements)
    wanted: set[str] = {class_name}
    chosen: set[int] = set()
    while True:
        data = [statements[i] for i in chosen if not statements[i].is_definition and not statements[i].is_import]
        named = {n for s in data for n in s.defines}
        given = {f"{n}()" for s in data if not s.is_constant for n in s.defines}
        defined = {n for i in chosen if statements[i].is_definition for n in statements[i].defines}
        needed = functools.partial(_is_needed, wanted=wanted, data=named | given, defined=defined)
        more = {i for i, s in enumerate(statements) if i not in chosen and needed(s, written[i])}
        if not more:
            return [s for i, s in enumerate(statements) if i in chosen]
        chosen |= more
        for i in more:
            wanted |= statements[i].mentions


def _written(statements: Sequence[Statement]) -> list[frozenset[str]]:
    """By statement: what the functions and classes of the file that it calls may change, with those that they mention."""
    definitions = [s for s in statements if s.is_definition]

    def reached(names: set[str]) -> frozenset[str]:
        found, seen = set[str](), set[str]()
        while new := names - seen:
            seen |= new
            own = [s for s in definitions if s.defines & new]
            found |= {n for s in own for n in s.writes}
            names = {n for s in own for n in s.mentions}
        return frozenset(found)

    return [reached(set(s.calls)) for s in statements]


def _is_needed(statement: Statement, written: frozenset[str], wanted: set[str], data: set[str], defined: set[str]) -> bool:
    if statement.is_main_guard:
        return False
    if statement.sets & (defined | TORCH):
        return True
    if statement.is_future or statement.defines & wanted or (statement.star and not statement.stars()):
        return True
    return not statement.is_import and bool((statement.changes | statement.calls | written) & data)


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


def _may_import(node: cst.Import | cst.ImportFrom) -> bool:
    """Whether an import statement needs only torch and the standard library."""
    if isinstance(node, cst.ImportFrom) and node.relative:
        return False
    names = [a.evaluated_name for a in node.names] if isinstance(node, cst.Import) else [_module_name(node)]
    return all(n.split(".")[0] in ALLOWED for n in names)


def import_lines_of(nodes: Iterable[cst.BaseStatement]) -> tuple[str, ...]:
    """Import statements, one a line, one module each, without comments."""
    alone = {"semicolon": cst.MaybeSentinel.DEFAULT}
    found = []
    for statement in (s for node in nodes for s in imports_in(node)):
        aliases = statement.names if isinstance(statement, cst.Import) else ()
        parts = [a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in aliases]
        single = [statement.with_changes(names=[part], **alone) for part in parts] or [statement.with_changes(**alone)]
        found += [" ".join(cst.Module([]).code_for_node(s).split()) for s in single]
    return tuple(found)
