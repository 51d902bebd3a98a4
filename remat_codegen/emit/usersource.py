"""Carries the user's classes over into the generated file, with libcst: what the model's class needs, unchanged but
for its forward.

A file is carried over when what the class needs of it imports only torch and the standard library. Otherwise the generated
class wraps an instance of the original.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import io
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import libcst as cst

ALLOWED = frozenset({"torch", "__future__", *sys.stdlib_module_names})
RECURSION = 20_000

# What generated code calls what; a user's file in which one of these means something else is not carried over.
OURS = {
    **{name: f"builtins.{name}" for name in dir(builtins) if not name.startswith("_")},
    **{name: name for name in ("torch base64 math contextlib functools inspect sys types warnings weakref zlib".split())},
    **{"nn": "torch.nn", "F": "torch.nn.functional"},
}
OWN_NAMES = frozenset("rematerialize BUDGET_BYTES PLANNED_PEAK_BYTES EXPECTED FROZEN AUTOCAST MODES SIZES PLAIN_AT_ONE".split())
IN_FORWARD = frozenset(
    (
        "torch inspect check_call check_modes run_forward run_backward Step EXPECTED FROZEN AUTOCAST MODES SIZES "
        "PLANNED_PEAK_BYTES PLAIN_AT_ONE "
        "uncached_casts with_sizes is_one super"
    ).split()
)
PLACES = frozenset({"__file__", "__spec__", "__package__", "__path__", "__loader__", "globals", "eval", "exec"})

# Calls at the top of a file that change nothing a class needs: what they print, log or set is not carried over.
QUIET_FUNCTIONS = frozenset({"print", "pprint", "open", "input", "warnings", "logging", "sys", "torch", "os"})
QUIET_METHODS = frozenset("debug info warning warn error critical exception log write writelines flush close".split())


@dataclass(frozen=True, slots=True)
class Carried:
    """The part of a user's file that a class needs. `names` are what it defines, `future` and `imports` are lines."""

    future: tuple[str, ...]
    imports: tuple[str, ...]
    code: str
    names: frozenset[str]


def carry(source: str, class_name: str, new_forward: str) -> Carried | None:
    """The statements that `class_name` needs, with `forward` renamed to `plain_forward` and `new_forward` beside it.

    None where the class is not defined at the top of the file; where something it needs comes from another package, depends
    on the place of the file, looks names up at run time, or sets an instance's forward; and where a name in it would hide one
    that generated code uses.
    """
    with _deeper(), contextlib.suppress(RecursionError):
        return _carry(source, class_name, new_forward)
    return None


@contextlib.contextmanager
def _deeper() -> Iterator[None]:
    """Room for expressions of a thousand terms, however deep the caller already stands."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, RECURSION))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _carry(source: str, class_name: str, new_forward: str) -> Carried | None:
    found = _chosen(source, class_name)
    if found is None:
        return None
    module, target, needed, names = found
    future = [s.node for s in needed if s.is_future]
    imports = [s for s in needed if s.is_import and not s.is_future]
    rest = [_with_forward(module, s.node, new_forward) if s is target else s.bare() for s in needed if not s.is_import]
    lines = [line for s in imports for line in s.import_lines(_mentioned(needed))]
    return Carried(_lines(future), tuple(lines), _code(module, rest), names)


def parameters_of(source: str, class_name: str) -> str | None:
    """The parameter list of a class's own forward, as it is written; None where generated code cannot take it over: forward is
    inherited or decorated, its first parameter is not `self`, or another has a name that the generated forward uses."""
    found = _chosen(source, class_name)
    forward = None if found is None else _own_forward(found[1].node)
    if found is None or forward is None or forward.decorators:
        return None
    code = found[0].code_for_node(forward.params)
    try:
        given = ast.parse(f"def f({code}): pass").body[0].args  # type: ignore[attr-defined]
    except SyntaxError:
        return None
    first, *others = [a.arg for a in (*given.posonlyargs, *given.args)] or [""]
    others += [a.arg for a in (*given.kwonlyargs, given.vararg, given.kwarg) if a is not None]
    return None if first != "self" or IN_FORWARD & set(others) else code


def inherits_forward(source: str, class_name: str) -> bool:
    """Whether a class that is carried over has no forward of its own."""
    found = _chosen(source, class_name)
    return found is not None and _own_forward(found[1].node) is None


def rename_names(code: str, names: Mapping[str, str]) -> str:
    """Code, or a part of an expression, with names replaced; attributes, keywords' names and strings stay."""
    if not names:
        return code
    lines = code.split("\n")
    tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    for before, token, after in reversed(list(zip([None, *tokens], tokens, [*tokens[1:], None], strict=False))):
        if token.type != tokenize.NAME or token.string not in names or (before is not None and before.string == "."):
            continue
        if after is not None and after.string == "=" and before is not None and before.string in ("(", ","):
            continue
        (row, column), (_, end) = token.start, token.end
        lines[row - 1] = lines[row - 1][:column] + names[token.string] + lines[row - 1][end:]
    return "\n".join(lines)


@lru_cache(maxsize=8)
def _chosen(source: str, class_name: str) -> tuple[cst.Module, _Statement, list[_Statement], frozenset[str]] | None:
    """A file, the class's statement, all that it needs, and the names they define; None where it cannot be carried over."""
    with _deeper():
        return _choose(source, class_name)


def _choose(source: str, class_name: str) -> tuple[cst.Module, _Statement, list[_Statement], frozenset[str]] | None:
    if "plain_forward" in source:  # the name that we give the original
        return None
    try:
        module, statements = _read(source)
    except (cst.ParserSyntaxError, RecursionError):  # syntax that libcst does not know, or expressions of thousands of terms
        return None
    target = next((s for s in reversed(statements) if class_name in s.defines), None)
    if target is None or not isinstance(target.node, cst.ClassDef) or not _is_plain_class(target.node):
        return None
    needed = _needed(statements, class_name)
    mentioned = _mentioned(needed)
    bindings = [(n, what) for s in needed for n, what in s.bindings.items() if not s.star or n in mentioned]
    names = frozenset(n for n, _ in bindings)
    unfit = any(s.mentions & PLACES or not s.importable or s.sets_forward for s in needed)
    if unfit or names & OWN_NAMES or any(_hides(n, what) for n, what in bindings):
        return None
    return module, target, needed, names


def _mentioned(needed: Sequence[_Statement]) -> frozenset[str]:
    return frozenset(n for s in needed for n in s.mentions)


def _hides(name: str, what: str) -> bool:
    """Whether a name of a user's file means something else than in generated code; `what` is the full name of an import."""
    return OURS.get(name, what) != what


def _is_plain_class(node: cst.ClassDef) -> bool:
    """Whether a class's forward is a method of its own or inherited: nothing else in its body binds or reads that name."""
    finder = _Names()
    for statement in _class_body(node):
        if isinstance(statement, cst.ClassDef):
            finder.bindings[statement.name.value] = ""
        elif not isinstance(statement, cst.FunctionDef):
            statement.visit(finder)
    return not {"forward", "forward()"} & (finder.mentions | finder.changes | set(finder.bindings))


def _class_body(node: cst.ClassDef) -> Sequence[cst.BaseStatement | cst.BaseSmallStatement]:
    return node.body.body


def _own_forward(node: cst.BaseStatement | cst.SimpleStatementLine) -> cst.FunctionDef | None:
    """The forward that a class ends up with, of those in its own body."""
    assert isinstance(node, cst.ClassDef)
    methods = [s for s in _class_body(node) if isinstance(s, cst.FunctionDef) and s.name.value == "forward"]
    return methods[-1] if methods else None


@lru_cache(maxsize=8)
def _read(source: str) -> tuple[cst.Module, list[_Statement]]:
    module = cst.parse_module(source)
    return module, [_Statement(s) for s in module.body]


class _Statement:
    """A statement at the top of a file: what it defines, what it mentions, and what it may change.

    `bindings` are the names that it binds, with the full name of what an import binds (empty for anything else).
    """

    def __init__(self, node: cst.BaseStatement | cst.SimpleStatementLine) -> None:
        self.node = node
        self.is_import = _is_import(node)
        self.is_future = self.is_import and any(_module_name(i) == "__future__" for i in _imports(node))
        finder = _Names()
        node.visit(finder)
        self.mentions, self.star, self.changes = finder.mentions, finder.star, finder.changes
        self.is_definition = isinstance(node, (cst.ClassDef, cst.FunctionDef))
        self.is_main_guard = isinstance(node, cst.If) and "__name__" in finder.mentions
        self.is_constant = _is_constant(node)
        self.bindings = finder.bindings | {n: f"{m}.{n}" for m in self.stars() for n in _exported(m)}
        self.defines = set(self.bindings)
        self.sets_forward = finder.sets_forward
        self.importable = not finder.foreign and (self.is_import or not self.star)

    def stars(self) -> list[str]:
        """The modules that this line imports everything of."""
        found = [i for i in _imports(self.node) if isinstance(i, cst.ImportFrom) and isinstance(i.names, cst.ImportStar)]
        return [_module_name(i) for i in found if _may_import(i)]

    def import_lines(self, mentioned: frozenset[str]) -> tuple[str, ...]:
        """Import statements, one a line; of everything, what is mentioned."""
        lines = []
        for line in _lines([self.node]):
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


@lru_cache(maxsize=32)
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
    function = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    return function in QUIET_METHODS or (_root(call.func) in QUIET_FUNCTIONS and not function.endswith("_"))


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


class _Names(cst.CSTVisitor):
    """What some code binds outside functions and classes, what it mentions, what it may change, and what it imports."""

    def __init__(self) -> None:
        self.bindings: dict[str, str] = {}
        self.mentions: set[str] = set()
        self.changes: set[str] = set()
        self.star = self.foreign = self.sets_forward = False
        self.depth = self.guarded = 0

    def _bind(self, name: str, what: str = "") -> None:
        if self.depth == 0:
            self.bindings[name] = what

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._enter(node.name.value)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self.depth -= 1

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._enter(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self.depth -= 1

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
        """A method may change its object, a function what it is given."""
        if self.depth == 0:
            self.changes.add(_root(node.func) if isinstance(node.func, cst.Attribute) else "")
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

    def _assigned(self, target: cst.BaseExpression) -> None:
        if self.depth:
            return
        if isinstance(target, cst.Name):
            self._bind(target.value)
        elif isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._assigned(element.value)
        else:
            self._changed(target)

    def _changed(self, target: cst.BaseExpression) -> None:
        if self.depth == 0:
            self.changes.add(_root(target))

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


def _needed(statements: Sequence[_Statement], class_name: str) -> list[_Statement]:
    """The statements that a class cannot do without, in order."""
    wanted: set[str] = {class_name}
    chosen: set[int] = set()
    while True:
        data = [statements[i] for i in chosen if not statements[i].is_definition and not statements[i].is_import]
        named = {n for s in data for n in s.defines}
        given = {f"{n}()" for s in data if not s.is_constant for n in s.defines}
        more = {i for i, s in enumerate(statements) if i not in chosen and _is_needed(s, wanted, named | given)}
        if not more:
            return [s for i, s in enumerate(statements) if i in chosen]
        chosen |= more
        for i in more:
            wanted |= statements[i].mentions


def _is_needed(statement: _Statement, wanted: set[str], data: set[str]) -> bool:
    if statement.is_main_guard:
        return False
    if statement.is_future or statement.defines & wanted or (statement.star and not statement.stars()):
        return True
    return not statement.is_definition and not statement.is_import and bool(statement.changes & data)


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


def _may_import(node: cst.Import | cst.ImportFrom) -> bool:
    """Whether an import statement needs only torch and the standard library."""
    if isinstance(node, cst.ImportFrom) and node.relative:
        return False
    names = [a.evaluated_name for a in node.names] if isinstance(node, cst.Import) else [_module_name(node)]
    return all(n.split(".")[0] in ALLOWED for n in names)


def _with_forward(module: cst.Module, node: cst.BaseStatement, new_forward: str) -> cst.BaseStatement:
    """The class with its forward renamed and the new one after it."""
    assert isinstance(node, cst.ClassDef)
    added = cst.parse_statement(new_forward, config=module.config_for_parsing)
    own, body = _own_forward(node), list[cst.BaseStatement]()
    for statement in _lines_of(node):
        if isinstance(statement, cst.FunctionDef) and statement.name.value == "forward":
            body.append(statement.with_changes(name=cst.Name("plain_forward")))
            body += [added] if statement is own else []
        else:
            body.append(statement)
    if own is None:
        inherited = "def plain_forward(self, *args, **kwargs):\n    return super().forward(*args, **kwargs)\n"
        body += [cst.parse_statement(inherited, config=module.config_for_parsing), added]
    block = node.body if isinstance(node.body, cst.IndentedBlock) else cst.IndentedBlock([])
    return node.with_changes(body=block.with_changes(body=body))


def _lines_of(node: cst.ClassDef) -> list[cst.BaseStatement]:
    """A class's statements; those after `class A(B):` on the same line, too."""
    if isinstance(node.body, cst.IndentedBlock):
        return list(node.body.body)
    small = [
        s.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for s in node.body.body if isinstance(s, cst.BaseSmallStatement)
    ]
    return [cst.SimpleStatementLine([s]) for s in small]


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
