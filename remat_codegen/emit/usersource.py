"""Carries the user's classes over into the generated file, with libcst: what the model's class needs, unchanged but
for its forward.

A file is carried over when what the class needs of it imports only torch, the standard library and packages that are installed,
and when a copy of that is the same as the original, also beside it. Otherwise the generated class wraps an instance of the
original.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import libcst as cst

from remat_codegen.emit import outside
from remat_codegen.emit.needed import needed_for
from remat_codegen.emit.statements import Names, Statement, bound_in, import_lines_of
from remat_codegen.emit.userfile import File

RECURSION = 20_000
_F_STRING = re.compile("(f|rf|fr)['\"]", re.IGNORECASE)
_BRACES = re.compile(r"\{+")  # two are one in the text

# What generated code calls what; a user's file in which one of these means something else is not carried over.
OURS = {
    **{name: f"builtins.{name}" for name in dir(builtins) if not name.startswith("_")},
    **{name: name for name in "torch base64 math contextlib functools inspect re sys types warnings weakref zlib".split()},
    **{"nn": "torch.nn", "F": "torch.nn.functional"},
}
TAKEN = ("plain_forward", "__init_subclass__")  # our name for the original forward; and rematerialize() makes a subclass
OWN_NAMES = frozenset(
    "rematerialize BUDGET_BYTES PLANNED_PEAK_BYTES STRUCTURE OBJECTS EXPECTED FROZEN AUTOCAST MODES SIZES PLAIN_AT_ONE "
    "SMALLER TOLD".split()
)
IN_FORWARD = frozenset(
    (
        "torch inspect check_arguments check_call check_decisions check_dtypes check_layouts check_modes check_objects "
        "tell_hooks run_forward run_backward Step STRUCTURE OBJECTS EXPECTED FROZEN AUTOCAST MODES SIZES "
        "PLANNED_PEAK_BYTES PLAIN_AT_ONE SMALLER UncachedStep with_sizes is_one smaller_call super TOLD"
    ).split()
)
PLACES = frozenset(
    "__file__ __name__ __doc__ __spec__ __package__ __path__ __loader__ __builtins__ __annotations__ globals eval exec".split()
)


@dataclass(frozen=True, slots=True)
class Carried:
    """The part of a user's file that a class needs. `names` are what it defines, `future` and `imports` are lines."""

    future: tuple[str, ...]
    imports: tuple[str, ...]
    code: str
    names: frozenset[str]


def carry(source: str, class_name: str, new_forward: str | None, marked: str | None = None) -> Carried | None:
    """The statements that `class_name` needs, with `forward` renamed to `plain_forward` and `new_forward` beside it; None for
    `new_forward` leaves them as they are. `marked` is the same file with marks in some of its statements: those are taken then,
    for what a file needs is decided by its own text.

    None where the class is not defined at the top of the file; where something it needs comes from another package, depends
    on the place of the file, looks names up at run time, or sets a forward; where loading the file does what must not be done
    twice; and where a name in it would hide one that generated code uses.
    """
    with _deeper(), contextlib.suppress(RecursionError):
        return _carry(source, class_name, new_forward, marked)
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


def _carry(source: str, class_name: str, new_forward: str | None, marked: str | None) -> Carried | None:
    found = _chosen(source, class_name)
    if found is None:
        return None
    module, target, needed, names, places = found
    if marked is not None:
        there = _read(marked)[1]
        needed = [there[place] for place in places]
    future = [s.node for s in needed if s.is_future]
    imports = [s for s in needed if s.is_import and not s.is_future]
    rest = [
        _with_forward(module, s.node, new_forward) if s is target and new_forward is not None else s.bare()
        for s in needed
        if not s.is_import
    ]
    lines = [line for s in imports for line in s.import_lines(_mentioned(needed))]
    return Carried(import_lines_of(future), tuple(lines), _code(module, rest), names)


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


def rename_names(code: str, names: Mapping[str, str]) -> str:
    """Code, or a part of an expression, with names replaced; attributes, keywords' names and strings stay."""
    if not names:
        return code
    lines = code.split("\n")
    silent = (tokenize.NL, tokenize.COMMENT)
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(code).readline) if t.type not in silent]
    within = accumulate((t.string in "([{") - (t.string in ")]}") if t.type == tokenize.OP else 0 for t in tokens)
    rows = zip([None, *tokens], tokens, [*tokens[1:], None], within, strict=False)
    for before, token, after, brackets in reversed(list(rows)):
        is_attribute = before is not None and before.string == "."
        named = before is not None and before.string in ("(", ",") and after is not None and after.string == "="
        if token.type == tokenize.STRING:
            new = _renamed_in_fields(token.string, names)
        elif token.type == tokenize.NAME and not (is_attribute or (brackets and named)):
            new = names.get(token.string, token.string)
        else:
            continue
        (row, column), (last, end) = token.start, token.end
        lines[row - 1 : last] = [lines[row - 1][:column] + new + lines[last - 1][end:]]
    return "\n".join(lines)


def _renamed_in_fields(literal: str, names: Mapping[str, str]) -> str:
    """A literal with names replaced in the fields of an f-string, which is one token before Python 3.12."""
    if not _F_STRING.match(literal):
        return literal
    found, ahead = "", literal
    while (braces := _BRACES.search(ahead)) is not None:
        begin, is_field = braces.end(), len(braces.group()) % 2
        end = _end_of_expression(ahead, begin) if is_field else begin
        found += ahead[:begin] + rename_names(f"({ahead[begin:end]})", names)[1:-1]
        ahead = ahead[end:]
    return found + ahead


def _end_of_expression(text: str, begin: int) -> int:
    """Where the expression of an f-string's field ends that begins there: at its conversion, its format, or its brace."""
    depth, quoted = 0, ""
    for place in range(begin, len(text)):
        character = text[place]
        if quoted:
            quoted = "" if character == quoted else quoted
        elif character in "\"'":
            quoted = character
        elif not depth and (character in ":}" or (character == "!" and text[place + 1] != "=")):
            return place
        else:
            depth += (character in "([{") - (character in ")]}")
    return len(text)


Chosen = tuple[cst.Module, Statement, list[Statement], frozenset[str], tuple[int, ...]]


@lru_cache(maxsize=8)
def _chosen(source: str, class_name: str) -> Chosen | None:
    """A file, the class's statement, all that it needs, the names they define, and their places among the file's; None where it
    cannot be carried over."""
    with _deeper():
        return _choose(source, class_name)


def _choose(source: str, class_name: str) -> Chosen | None:
    if any(name in source for name in TAKEN):
        return None
    try:
        module, statements = _read(source)
    except (cst.ParserSyntaxError, SyntaxError, RecursionError, MemoryError):  # of another Python, or thousands of terms
        return None
    target = next((s for s in reversed(statements) if class_name in s.defines), None)
    if target is None or not isinstance(target.node, cst.ClassDef) or not _is_plain_class(target.node):
        return None
    file = File(statements)
    needed = needed_for(file, class_name)
    mentioned = _mentioned(needed)
    bindings = [(n, what) for s in needed for n, what in s.bindings.items() if not s.star or n in mentioned]
    names = frozenset(n for n, _ in bindings)
    unfit = any(s.mentions & PLACES or not s.importable or s.sets_forward for s in needed)
    if unfit or names & OWN_NAMES or any(_hides(n, what) for n, what in bindings) or _rebinds_imports(needed, mentioned):
        return None
    if not outside.may_be_carried(file, needed) or _may_replace_forward(file, needed):
        return None
    return module, target, needed, names, tuple(map(statements.index, needed))


def _mentioned(needed: Sequence[Statement]) -> frozenset[str]:
    return frozenset(n for s in needed for n in s.mentions)


def _rebinds_imports(needed: Sequence[Statement], mentioned: frozenset[str]) -> bool:
    """Whether an import gives a new meaning to a name, or gets one itself: in the generated file all imports come first."""
    meanings: dict[str, set[str]] = {}
    for statement in needed:
        for name, what in statement.bindings.items():
            if not statement.star or name in mentioned:
                meanings.setdefault(name, set()).add(what if statement.is_import else "")
    return any(len(found) > 1 for found in meanings.values())


def _may_replace_forward(file: File, needed: Sequence[Statement]) -> bool:
    """Whether loading the file may give a class another forward by a name that no one can read, or takes it from there."""
    for statement in needed:
        loaded = file.loaded[statement]
        run = [loaded, *file.reaches[statement].effects]
        if any(e.sets_any_name or "forward" in e.texts for e in run) or any(n.endswith(".forward") for n in loaded.dotted):
            return True
    return False


def _hides(name: str, what: str) -> bool:
    """Whether a name of a user's file means something else than in generated code; `what` is the full name of an import."""
    return OURS.get(name, what) != what


def _is_plain_class(node: cst.ClassDef) -> bool:
    """Whether a class's forward is a method of its own or inherited: nothing else in its body binds or reads that name."""
    finder, bound = Names(), set[str]()
    for statement in _class_body(node):
        if not isinstance(statement, cst.FunctionDef):
            bound |= {name for name, _ in bound_in(ast.parse(cst.Module([]).code_for_node(statement)))}
            if not isinstance(statement, cst.ClassDef):
                statement.visit(finder)
    return "forward" not in finder.mentions | bound


def _class_body(node: cst.ClassDef) -> Sequence[cst.BaseStatement | cst.BaseSmallStatement]:
    return node.body.body


def _own_forward(node: cst.BaseStatement | cst.SimpleStatementLine) -> cst.FunctionDef | None:
    """The forward that a class ends up with, of those in its own body."""
    assert isinstance(node, cst.ClassDef)
    methods = [s for s in _class_body(node) if isinstance(s, cst.FunctionDef) and s.name.value == "forward"]
    return methods[-1] if methods else None


@lru_cache(maxsize=8)
def _read(source: str) -> tuple[cst.Module, list[Statement]]:
    module = cst.parse_module(source)
    return module, [Statement(s) for line in module.body for s in _one_by_one(line)]


def _one_by_one(line: cst.BaseStatement | cst.SimpleStatementLine) -> list[cst.BaseStatement | cst.SimpleStatementLine]:
    """The imports of `import torch, numpy` as statements of their own: a class may need one of them alone."""
    imports = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
    if not isinstance(imports, cst.Import) or len(imports.names) == 1:
        return [line]
    alone = [name.with_changes(comma=cst.MaybeSentinel.DEFAULT) for name in imports.names]
    return [line.with_changes(body=[imports.with_changes(names=[name])]) for name in alone]


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
        inherited = "@property\ndef plain_forward(self):\n    return super().forward\n"
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


def _code(module: cst.Module, nodes: Iterable[cst.BaseStatement]) -> str:
    return module.with_changes(header=(), footer=(), body=tuple(nodes)).code
