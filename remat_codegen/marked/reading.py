"""What a marked file says, read from its text alone: the entries of its table, and where its marks stand in the user's source.

A mark is found by walking through the file's classes and the user's side by side. Where a call of `.part` stands instead of an
expression, that expression is what it marks; all else has to be the same.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from remat_codegen import parts
from remat_codegen.marked.demand import Again, Keeps
from remat_codegen.marked.imported import Alike, Imported
from remat_codegen.marked.library import WITHIN_FUNCTION, Owner, free_names, is_decorated, method_in
from remat_codegen.marked.markable import IN_PLACE, is_only_in
from remat_codegen.marked.marking import GIVEN
from remat_codegen.marked.syntax import functions_in, span_of, value_of
from remat_codegen.readback.values import Problem, told_apart
from remat_codegen.trace.places import Span

PART = "part"
_ENTRY = re.compile(r"(?P<name>[^#/\s]+)(#(?P<number>\d+)(\.\.(?P<last>\d+))?)?(?P<options>(/\w+)*)")
_LAYERS = re.compile(
    r"\{f'(?P<path>(\w+\.)*)\{(?P<i>\w+)\}': .* for (?P=i) in range\(((?P<first>\d+), )?(?P<end>\d+)\)\}", re.DOTALL
)
OPERATORS = ast.operator, ast.unaryop, ast.boolop, ast.cmpop
_TABLE = re.compile("(WRITTEN|as_there)_*")
_WRITTEN = re.compile(r"WRITTEN_*\['(?P<module>[\w.]*)', '(?P<kind>[\w.<>]+)'\] = (?P<name>\w+)")
_DECORATED = re.compile(r"as_there_*\('(?P<module>[\w.]+)', '(?P<kind>\w+)', (?P<name>\w+)\)")
# What lambdas call what they are given, each with the names around the lambda, and with where that is noted.
MOST_TIMES = 100_000  # that a part is evaluated in a step
_Names = Mapping[str, tuple[ast.expr, Any, list[Span]]]


@dataclass(frozen=True, slots=True)
class Said:
    """An entry of the table, as the helpers read it: `name` is the whole path, `number` which of its evaluations it is."""

    name: str
    number: int | None  # None for all
    keeps: Keeps
    again: Again
    late: bool
    line: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark in the file: in which function, under which name, and the expression of the user's source, or of a library's,
    that it stands for. `outside` are the expressions in that one that are evaluated before and handed in."""

    file: str
    function: str
    name: str
    span: Span
    line: int
    outside: tuple[Span, ...] = ()


@dataclass(slots=True)
class Reading:
    """What was read, and what is wrong with it. `said` is the table, `others` are those for larger budgets, where there are
    several. `given` are the expressions that `with_marks` gives another function for, each with its file, and the line of that.
    """

    said: list[Said] = field(default_factory=list)
    others: list[list[Said]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    given: list[tuple[str, Span, int]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def tables(self) -> list[list[Said]]:
        """All tables."""
        return [self.said, *self.others]

    def wrong(self, node: Any, text: str) -> None:
        """Notes a problem in the line of a node."""
        self.problems.append(Problem(getattr(node, "lineno", 1), text))


def read(text: str, sources: Mapping[str, str], file_of: Callable[[str], str] = lambda module: "") -> Reading:
    """The table and the marks of a file. `sources` are the user's files whose classes the generated one carries, with their
    texts; `file_of` knows in which file a library's module is."""
    found = Reading()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        found.problems.append(Problem(getattr(error, "lineno", None) or 1, f"is not Python: {error}"))
        return found
    _read_table(tree, found)
    written = _written(tree, found)
    ours = ast.Module([s for s in _but_for_helpers(tree) if getattr(s, "name", None) not in written], [])
    for file, source in sources.items():
        _read_marks(file, dict(functions_in(ours)), dict(functions_in(ast.parse(source))), found)
    for name, (module, kind) in written.items():
        _read_written(tree, name, (module, kind, file_of(module)), Imported(tree, written), found)
    return found


def _but_for_helpers(tree: ast.Module) -> list[ast.stmt]:
    """The statements of a file but for the helpers, which stand behind the table: what the user's file has by the same name,
    and the new one does not need, is something else."""
    table = next((i for i, s in enumerate(tree.body) if _is_table(s)), len(tree.body))
    helpers = {name for name, value in vars(parts).items() if getattr(value, "__module__", None) == parts.__name__}
    return [s for i, s in enumerate(tree.body) if i < table or getattr(s, "name", None) not in helpers]


# ---------------------------------------------------------------------------------------------- the table


def _is_table(statement: ast.stmt) -> TypeGuard[ast.Assign]:
    return isinstance(statement, ast.Assign) and [*map(ast.unparse, statement.targets)] in (["PLAN"], ["PLANS"])


def _read_table(tree: ast.Module, found: Reading) -> None:
    tables = [s for s in tree.body if _is_table(s)]
    if len(tables) != 1:
        found.wrong(tables[1] if tables else None, "has no table PLAN" if not tables else "has a second table PLAN")
        return
    value = tables[0].value
    if ast.unparse(tables[0].targets[0]) == "PLANS" and isinstance(value, ast.Dict) and value.values:
        found.said, *found.others = (_rows_of(table, found) for table in value.values)
    else:
        found.said = _rows_of(value, found)


def _rows_of(value: ast.expr, found: Reading) -> list[Said]:
    """What the rows of one table say."""
    said: list[Said] = []
    if not isinstance(value, ast.Dict):
        found.wrong(value, "PLAN is no table of rows")
        return said
    seen = set()
    for key, row in (pair for both in zip(value.keys, value.values, strict=True) for pair in _layers(*both)):
        if not (_is_text(key) and _is_text(row)):
            found.wrong(row, "a row of PLAN is not two texts")
        elif key.value in seen:  # type: ignore[union-attr]
            found.wrong(key, f"PLAN has two rows for {key.value!r}, of which the first is not read")  # type: ignore[union-attr]
        else:
            seen.add(key.value)  # type: ignore[union-attr]
            said += _entries(key, row, found)
    return said


def _layers(key: ast.expr | None, row: ast.expr) -> Iterator[tuple[ast.expr | None, ast.expr]]:
    """A row; if it is `**{f"h.{i}": "..." for i in range(1, 12)}`, one for each layer."""
    layers = _LAYERS.fullmatch(ast.unparse(row)) if key is None and isinstance(row, ast.DictComp) else None
    if layers is None or not isinstance(row, ast.DictComp):
        yield key, row
        return
    for number in range(int(layers["first"] or 0), int(layers["end"])):
        yield ast.copy_location(ast.Constant(f"{layers['path']}{number}"), row), row.value


def _is_text(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _entries(key: Any, row: Any, found: Reading) -> Iterator[Said]:
    for word in row.value.split():
        entry = _ENTRY.fullmatch(word)
        options = entry["options"].split("/")[1:] if entry else []
        keeps = [o for o in options if o in ("inside", "result")]
        again = [o for o in options if o in [*Again]]
        if entry is None or len(keeps) > 1 or len(again) > 1 or set(options) - {*keeps, *again, "late"}:
            found.wrong(row, f"{word} is no entry of a plan")
            continue
        name = f"{key.value}.{entry['name']}".strip(".")
        first = None if entry["number"] is None else int(entry["number"])
        numbers = [first] if first is None else range(first, int(entry["last"] or first) + 1)
        if not numbers or len(numbers) > MOST_TIMES:
            found.wrong(row, f"{word} names {len(numbers)} evaluations")
            continue
        kept = Keeps(keeps[0]) if keeps else Keeps.NOTHING
        once_more = Again(again[0]) if again else Again.ONCE
        yield from (Said(name, number, kept, once_more, "late" in options, row.lineno) for number in numbers)


# ---------------------------------------------------------------------------------------------- the marks


def _read_marks(
    file: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], found: Reading, alike: Alike | None = None
) -> None:
    """`alike` are names that may be others in theirs."""
    for name, function in ours.items():
        if name in theirs:
            _Walk(file, name, found, alike or {}).bodies(theirs[name], function)


def _written(tree: ast.Module, found: Reading) -> dict[str, tuple[str, str]]:
    """The classes that have methods of others, by their names: the module of that other one, and its name there."""
    classes: dict[str, tuple[str, str]] = {}
    for statement in tree.body:
        if isinstance(statement, (ast.AnnAssign, ast.FunctionDef, ast.ClassDef)):
            continue  # where it is defined, and the helpers that read it
        if not any(isinstance(n, ast.Name) and _TABLE.fullmatch(n.id) for n in ast.walk(statement)):
            continue
        line = ast.unparse(statement)
        plain, decorated = _WRITTEN.fullmatch(line), _DECORATED.fullmatch(line)
        said = plain or decorated
        of = (said["module"], said["kind"]) if said is not None else None
        if said is None or of is None or said["name"] in classes or of in classes.values():
            found.wrong(statement, f"{line} does not say for the first time which class has methods of which")
        elif (decorated is not None) != is_decorated(Owner(said["module"], "", said["kind"])):
            not_so = "not " if decorated is not None else ""
            found.wrong(statement, f"{line} does not fit {said['kind']}, which is {not_so}decorated in {said['module']}")
        else:
            classes[said["name"]] = of
    return classes


def _read_written(tree: ast.Module, name: str, of: tuple[str, str, str], imported: Imported, found: Reading) -> None:
    """Walks through a class with methods of another one, or a function: of a module, under a name, in a file."""
    module, kind, file = of
    bound = [s for s in tree.body if isinstance(s, (ast.ClassDef, ast.FunctionDef)) and s.name == name]
    source = "".join(linecache.getlines(file))
    if len(bound) != 1 or not source:
        return found.wrong(bound[0] if bound else None, f"{name} is not the one class of that name, or {kind} is not known")
    ours: dict[str, Any]
    theirs: dict[str, Any]
    if kind.endswith(WITHIN_FUNCTION):
        methods = _closures_in(bound[0], file, kind)
        ours = {f"{kind}.{getattr(f, 'name', '')}": f for f in methods}
        theirs = {n: f for n in ours if (f := method_in(source, *n.rsplit(".", 1))) is not None}
    else:
        methods = bound[0].body if isinstance(bound[0], ast.ClassDef) else [*bound]
        ours = {n.replace(name, kind, 1): f for n, f in functions_in(ast.Module([*bound], []))}
        theirs = dict(functions_in(ast.parse(source)))
    if wrong := [n for n in methods if not isinstance(n, ast.FunctionDef) or n.decorator_list]:
        return found.wrong(wrong[0], f"{name} has more than methods of {kind}")
    if missing := [n for n in ours if n not in theirs]:
        return found.wrong(ours[missing[0]], f"{missing[0]} is not in {file}")
    alike = imported.alike(module, file, ours) if module else {}  # of the model's own file, it has the names
    for node, text in imported.wrong(alike, file, ours) if module else ():
        found.wrong(node, text)
    _read_marks(file, _undocumented(ours), _undocumented(theirs), found, alike)


def _undocumented(functions: Mapping[str, Any]) -> dict[str, Any]:
    """Functions without their docstrings, which copies have not."""
    found = {name: copy(function) for name, function in functions.items()}
    for function in found.values():
        if ast.get_docstring(function, clean=False) is not None:
            function.body = function.body[1:]
    return found


def _closures_in(outer: ast.stmt, file: str, kind: str) -> list[ast.stmt]:
    """The statements of a function that has copies of what is defined in another one there: as it has to be, those are all,
    it is given what they have of that one, and gives them."""
    assert isinstance(outer, ast.FunctionDef)
    *inner, last = outer.body
    names = [n.name for n in inner if isinstance(n, ast.FunctionDef)]
    free = sorted({n for name in names for n in free_names(file, kind, name)})
    same = ast.unparse(outer.args) == ", ".join(free) and ast.unparse(last) == f"return {', '.join(names)}"
    return inner if same and not outer.decorator_list else [*inner, last]


class _Walk:
    """Through one function of the user's and the file's."""

    def __init__(self, file: str, function: str, found: Reading, alike: Alike) -> None:
        self.file, self.function, self.found, self.alike = file, function, found, alike
        self.holders: set[str] = set()
        self.met: set[ast.expr] = set()  # what parts are given, and read
        self.home: ast.AST = ast.Module([], [])

    def bodies(self, theirs: Any, ours: Any) -> None:
        """Both functions, less the statement by which ours takes hold of its parts."""
        body, self.home = list(ours.body), theirs
        begun = next((i for i, s in enumerate(body) if self._holds(s)), None)
        if begun is not None and len(body) == len(theirs.body) + 1:
            self.holders.add(body.pop(begun).targets[0].id)
        self.walk(theirs.args, ours.args, {})
        self.walk(theirs.body, body, {})

    def _holds(self, statement: ast.stmt) -> bool:
        """Whether a statement is `kept = parts(self)`; in a function, `kept = parts()`."""
        if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)):
            return False
        call = statement.value
        return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and self._is_given(call)

    def _is_given(self, call: ast.Call) -> bool:
        """Whether a call is given what parts are asked for by here: self, and nothing in a function."""
        return not call.keywords and [*map(ast.unparse, call.args)] == (["self"] if "." in self.function else [])

    def walk(self, theirs: Any, ours: Any, names: _Names) -> None:
        """Compares two trees; `names` are what lambdas of marks call what they are given."""
        if isinstance(ours, ast.Name) and ours.id in names:
            given, around, outside = names[ours.id]
            if isinstance(given, ast.NamedExpr):  # handed in under the name that it gets, by which it may be read again
                if ours.id != given.target.id or not (given in self.met or isinstance(theirs, ast.NamedExpr)):
                    return self.not_the_same(theirs, ours)
                if given in self.met and getattr(theirs, "id", None) == ours.id:
                    return None
            self.met.add(given)
            if isinstance(theirs, ast.expr) and not isinstance(theirs, ast.Name):
                outside.append(span_of(value_of(theirs)))
            return self.walk(theirs, given, around)
        if isinstance(ours, ast.Name) and isinstance(theirs, ast.Name) and theirs.id in self.alike.get(ours.id, ()):
            return None
        if self._is_mark(theirs, ours):
            return self._marked(theirs, ours, names)
        if _gives(ours) and not _gives(theirs):
            self.found.given.append((self.file, span_of(theirs), ours.lineno))
            return self.walk(theirs, ours.args[0], names)
        if isinstance(theirs, ast.AugAssign) and isinstance(ours, ast.Assign) and self._is_mark(theirs, ours.value):
            return self._in_place(theirs, ours, names)
        if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
            for a, b in zip(theirs, ours, strict=True):
                self.walk(a, b, names)
        elif isinstance(theirs, ast.AST) and type(theirs) is type(ours):
            if _differ_by_themselves(theirs, ours):
                return self.not_the_same(theirs, ours)
            for name in theirs._fields:
                self.walk(getattr(theirs, name, None), getattr(ours, name, None), names)
        elif isinstance(theirs, OPERATORS) and isinstance(ours, OPERATORS):
            return None
        elif isinstance(theirs, (ast.AST, list)) or isinstance(ours, (ast.AST, list)) or theirs != ours:
            self.not_the_same(theirs, ours)

    def not_the_same(self, theirs: Any, ours: Any) -> None:
        """Notes that something else stands here than in the model."""
        one, other = told_apart(_shown(ours), _shown(theirs))
        at = ours[0] if isinstance(ours, list) and ours else ours
        self.found.wrong(at, f"{self.function} is not the model's: `{one}` stands for `{other}`")

    def _is_mark(self, theirs: Any, ours: Any) -> bool:
        if not (isinstance(ours, ast.Call) and isinstance(ours.func, ast.Attribute) and ours.func.attr == PART):
            return False
        holder = ours.func.value
        known = isinstance(holder, ast.Name) and holder.id in self.holders
        own = isinstance(theirs, ast.Call) and isinstance(theirs.func, ast.Attribute) and theirs.func.attr == PART
        calls = isinstance(holder, ast.Call) and self._is_given(holder)
        return (known or (calls and not own)) and len(ours.args) > 1 and _is_text(ours.args[0])

    def _in_place(self, theirs: ast.AugAssign, ours: Any, names: _Names) -> None:
        """`y = kept.part("y", lambda y, x: y.add_(x), y, x)` for `y += x`."""
        name, run, *given = ours.value.args
        target, change = ast.unparse(theirs.target), IN_PLACE.get(type(theirs.op))
        taken = [a.arg for a in run.args.args] if isinstance(run, ast.Lambda) else []
        said = len(taken) == len(given) == 2 and ast.unparse(run.body) == f"{taken[0]}.{change}({taken[1]})"
        if not said or [target, target] != [ast.unparse(ours.targets[0]), ast.unparse(given[0])] or len(ours.targets) > 1:
            return self.not_the_same(theirs, ours)
        self.walk(theirs.value, given[1], names)
        outside = () if isinstance(theirs.value, ast.Name) else (span_of(theirs.value),)
        self.found.marks.append(Mark(self.file, self.function, str(name.value), span_of(theirs), ours.lineno, outside))

    def _marked(self, theirs: Any, ours: ast.Call, names: _Names) -> None:
        name, run, *given = ours.args
        word = str(name.value)  # type: ignore[attr-defined]
        outside: list[Span] = []
        if isinstance(run, ast.Lambda):
            taken = [a.arg for a in run.args.args]
            if len(taken) != len(given):
                return self.found.wrong(ours, f"{word} takes {len(taken)} inputs and is given {len(given)}")
            inner = {taking: (g, names, outside) for taking, g in zip(taken, given, strict=True)}
            self.walk(theirs, run.body, {**names, **inner})
            if any(g not in self.met for g in given):
                return self.found.wrong(ours, f"{word} is given what it does not read")
            bound = {n.target.id for n in ast.walk(run.body) if isinstance(n, ast.NamedExpr)}
            if any(not is_only_in(self.home, theirs, n) for n in bound):
                return self.found.wrong(ours, f"{word} keeps to itself a name that {self.function} reads elsewhere")
        else:
            call = ast.Call(func=run, args=given, keywords=[])
            self.walk(theirs, ast.copy_location(call, ours), names)
            outside += [span_of(value_of(a)) for a in getattr(theirs, "args", ()) if not isinstance(a, ast.Name)]
        self.found.marks.append(Mark(self.file, self.function, word, span_of(theirs), ours.lineno, tuple(outside)))


def _gives(node: Any) -> bool:
    """Whether an expression is `with_marks(function)`."""
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == GIVEN
    return named and len(node.args) == 1 and not node.keywords


def _differ_by_themselves(theirs: ast.AST, ours: ast.AST) -> bool:
    """Whether nodes of one type differ in what has no line of its own: operators, names and values, how many there are, and the
    number after a sign."""
    if isinstance(theirs, ast.UnaryOp) and isinstance(ours, ast.UnaryOp):
        ends = theirs.operand, ours.operand
        if all(isinstance(end, ast.Constant) for end in ends) and ast.dump(ends[0]) != ast.dump(ends[1]):
            return True
    return [*map(_own, ast.iter_fields(theirs))] != [*map(_own, ast.iter_fields(ours))]


def _own(field: tuple[str, Any]) -> Any:
    name, value = field
    if name in ("ctx", "type_comment", "kind"):
        return None
    if isinstance(value, list):
        return [type(item) if isinstance(item, OPERATORS) else None for item in value]
    return type(value) if isinstance(value, OPERATORS) else None if isinstance(value, ast.AST) else value


def _shown(node: Any) -> str:
    if isinstance(node, list):
        return f"{len(node)} statements" if node and isinstance(node[0], ast.stmt) else f"{len(node)} of them"
    return ast.unparse(node) if isinstance(node, ast.AST) else repr(node)
