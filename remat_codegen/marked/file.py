"""Puts a file of the second edition together: the user's classes with their marks, the table, the helpers.

Pure: the same model, rows and facts give the same bytes, in any process.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import ClassVar

import libcst as cst

from remat_codegen import parts
from remat_codegen.emit import usersource
from remat_codegen.emit.helpers import names_in
from remat_codegen.emit.imports import sections, within
from remat_codegen.emit.render import on_one_line
from remat_codegen.emit.template_views import Heading
from remat_codegen.emit.templates import MIB, View
from remat_codegen.header.heading import Facts, title
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.marked.demand import Again
from remat_codegen.marked.features import Features, settled
from remat_codegen.marked.library import Owner, Written, meanings, written
from remat_codegen.marked.marking import WIDTH
from remat_codegen.marked.table import COLUMNS, Entry, table

_CALLED = (
    *("training_step", "adopt", "fitting", "of_batch", "as_there"),
    *("PLANNED", "WRITTEN", "DEFAULTS", "LARGEST", "MADE_FROM", "NUMBERS", "HELD", "SHAPES", "COUNTED", "SHARED"),
    "SET_BY_FORWARD",
)
_BLANK = re.compile(r"\n{4,}")
FORMAT = "# fmt: off\n"
LATE = "B023", "a part holds on to what it reads"  # of ruff's rules, and why it is not for a file: a lambda in a loop
UNKNOWN = "F821", "names of the model's own file"


@dataclass(frozen=True, slots=True)
class Methods:
    """Methods of libraries with marks: whose they are, and the marked texts of their files, by module."""

    owners: tuple[Owner, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Given:
    """What a file is made from. `source` is the text of the user's file, where the class is carried, and `marked` the same with
    marks; they call the helper `parts` by that name, empty where there are none; `kinds` are the classes that have some,
    `methods` what has some in classes of libraries. `defaults` are arguments of training steps that need not be given.
    `described` are the inputs that were planned for, in words. `largest` is of the largest of them how many numbers it has, and
    their type, and how many modules of its own the model has; `numbers` the first, and the peak, for each of several batch
    sizes; `shapes` those of the inputs, where others are refused. `held_bytes` are planned to lie between forward and backward,
    where values decide how much does. `features` are what helpers have to know, `made_from` what methods with marks were made
    from, by module (`origins`). `counted` are the names of small buffers that forward changes in place, `set_by_forward` those
    of attributes that it sets, `shared` those of classes and things of the user's file that methods with marks ask for.
    """

    target: str
    class_name: str
    graph: str
    described: str
    largest: tuple[int, str, int] | None
    source: str | None
    held_bytes: int = 0
    marked: str | None = None
    parts: str = ""
    kinds: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    methods: Methods = field(default_factory=lambda: Methods())
    made_from: Mapping[str, Sequence[str]] = field(default_factory=dict)
    features: Features = field(default_factory=Features)
    numbers: tuple[tuple[int, int], ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    counted: tuple[str, ...] = ()
    set_by_forward: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _File(View):
    """A file with marks. `carried` is what it has of the user's file, None where that stays where it is; `library` are methods
    of other files. `plan` is the table's text, line by line, `plans` those of several, each with its key and what it takes, by
    budget, or by batch where `batches` has their numbers. `uses` are options of rows that a reader has to be told of, `numbers`
    those of the sections, `names` what helpers are called here. What follows are values of theirs.
    """

    template: ClassVar[str] = "marked.py.jinja"

    heading: str
    facts: Facts
    target: str
    class_name: str
    budgets: str
    carried: usersource.Carried | None
    marks: bool
    kinds: str
    library: Sequence[Written]
    imports: Sequence[Sequence[str]]
    plan: Sequence[str]
    plans: Sequence[tuple[int, str, Sequence[str]]]
    uses: Mapping[str, bool]
    numbers: Sequence[int]
    helpers: str
    names: Mapping[str, str]
    home: bool
    on_gpu: bool
    largest: tuple[int, str, int] | None
    shapes: str
    held: int
    counted: Sequence[str]
    set_by_forward: Sequence[str]
    shared: Sequence[str]
    batches: Mapping[int | None, tuple[int, int]]
    made_from: Mapping[str, Sequence[str]]
    defaults: Mapping[str, str]


def write(given: Given, tables: Sequence[Sequence[Entry]], facts: Facts) -> str:
    """The file's text. `tables` are the entries of each plan's, in the order of `facts`."""
    text = _BLANK.sub("\n\n\n", _file(given, tables, facts).text()).rstrip("\n") + "\n"
    unlike = [LATE] if reads_what_loops_set(text) else []
    unlike += [UNKNOWN] if given.features.home else []
    rules, why = ", ".join(rule for rule, _ in unlike), "; ".join(reason for _, reason in unlike)
    return text.replace(FORMAT, f"# ruff: noqa: {rules} ({why})\n{FORMAT}", 1) if unlike else text


def _file(given: Given, tables: Sequence[Sequence[Entry]], facts: Facts) -> _File:
    plans = facts.plan.all()
    carried = None if given.source is None else usersource.carry(given.source, given.class_name, None, given.marked)
    taken = frozenset() if carried is None else carried.names
    renamed = {name: _other(name, taken) for name in _helper_names() if name in taken}
    renamed |= {name: _other(name, taken) for name in _own_imports() if name != "torch" and _is_another(name, carried)}
    renamed |= {"parts": given.parts} if given.parts not in ("", "parts") else {}
    helpers = usersource.rename_names(helpers_of(given.features), renamed)
    own_imports = _imports_of_helpers(helpers, renamed)
    library = _library(given, carried, own_imports)
    target = on_one_line(given.target)
    return _File(
        heading=Heading(title(facts.version, target, facts.source_digest, given.graph), facts, given.described).text(),
        facts=facts,
        target=target,
        class_name=given.class_name,
        budgets=" or ".join(dict.fromkeys(f"{p.budget_bytes / MIB:,.1f}" for p in plans)) + " MiB",
        carried=carried,
        marks=bool(given.parts),
        kinds=", ".join(given.kinds),
        library=library,
        imports=imports_of([*own_imports, *(carried.imports if carried else ()), *(i for w in library for i in w.imports)]),
        plan=table(tables[0]),
        plans=_plans(tables, plans),
        uses={
            **_uses([entry for one in tables for entry in one]),
            "functions": given.features.functions,
            "given": given.features.given,
        },
        numbers=range(1 + (carried is not None), 5),
        helpers=helpers,
        names={name: renamed.get(name, name) for name in _CALLED},
        home=given.features.home,
        on_gpu=given.features.on_gpu,
        largest=given.largest,
        shapes=_row_of(given.shapes),
        held=given.held_bytes,
        counted=[*given.counted],
        set_by_forward=[*given.set_by_forward],
        shared=[*given.shared],
        batches=dict(zip([p.batch for p in plans], given.numbers, strict=True)) if given.numbers else {},
        made_from={module: _in_lines(words) for module, words in given.made_from.items() if words},
        defaults=given.defaults,
    )


def reads_what_loops_set(text: str) -> bool:
    """Whether a lambda within a loop reads what the loop sets, as B023 of ruff's defaults sees it. A part holds on to the value
    from when it was called."""
    for loop in (node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.For, ast.AsyncFor, ast.While))):
        changing = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for function in (node for node in ast.walk(loop) if isinstance(node, ast.Lambda)):
            own = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
            if changing.intersection(n.id for n in ast.walk(function.body) if isinstance(n, ast.Name)) - own:
                return True
    return False


def _row_of(shapes: Sequence[tuple[int, ...]]) -> str:
    """Shapes, one after another in one list."""
    return repr([*shapes]) if shapes else ""


def _in_lines(words: Sequence[str]) -> list[str]:
    """Words, in lines within the width of a file."""
    return textwrap.wrap(" ".join(words), WIDTH - 4, break_long_words=False, break_on_hyphens=False)


def _plans(tables: Sequence[Sequence[Entry]], plans: Sequence[SavedPlan]) -> list[tuple[int, str, list[str]]]:
    """Where there are several tables: the budget or batch of each, what it takes, and its lines. Empty for one."""
    if len(plans) == 1:
        return []
    takes = [f"{p.planned_peak_bytes / MIB:,.1f} MiB at {1 + p.overhead:.2f} x" for p in plans]
    keys = [p.budget_bytes if p.batch is None else p.batch for p in plans]
    return [(key, took, table(rows, COLUMNS - 4)) for key, took, rows in zip(keys, takes, tables, strict=True)]


def _uses(entries: Sequence[Entry]) -> Mapping[str, bool]:
    """Which of the options a reader has to be told of."""
    found = {"inside": any(e.keeps == "inside" for e in entries), "result": any(e.keeps == "result" for e in entries)}
    found |= {str(again): any(e.again is again for e in entries) for again in Again if again}
    found |= {"late": any(e.late for e in entries)}
    return found | {"numbered": any(e.number is not None for e in entries)}


def imports_of(lines: Sequence[str]) -> list[list[str]]:
    return [[part for line in section for part in within(line, WIDTH)] for section in sections(lines)]


def _imports_of_helpers(helpers: str, renamed: Mapping[str, str]) -> list[str]:
    """What helpers import, under the names that they have here."""
    used = _names_in(helpers) | {"torch"}
    names = [(name, renamed.get(name, name)) for name in _own_imports()]
    return [f"import {name}" if here == name else f"import {name} as {here}" for name, here in names if here in used]


@lru_cache(maxsize=16)
def _names_in(helpers: str) -> frozenset[str]:
    return names_in(helpers)


def _is_another(name: str, carried: usersource.Carried | None) -> bool:
    """Whether a module's name is that of something else in what a file has of the user's."""
    if carried is None or name not in carried.names:
        return False
    return meanings(carried.imports).get(name) != (name, "")


def _library(given: Given, carried: usersource.Carried | None, own_imports: Sequence[str]) -> tuple[Written, ...]:
    """The classes of libraries with marks. Nothing in the file has their names, nor those of what they need."""
    imported = meanings([*own_imports, *(carried.imports if carried is not None else ())])
    defined = {*_helper_names(), *(carried.names if carried is not None else ()), "PLAN", "PLANS", "rematerialize"}
    defined |= {"BUDGET_BYTES", "PLANNED_PEAK_BYTES", given.parts, given.class_name}
    return written(given.methods.owners, given.methods.texts, dict.fromkeys(defined - {""}) | imported)


@cache
def _module() -> cst.Module:
    return cst.parse_module(Path(parts.__file__).read_text(encoding="utf-8"))


@cache
def helpers_of(features: Features) -> str:
    """The helpers' code that a file needs, with what the module's docstring says as a comment."""
    statements = [s for s in settled(_module(), features).body if not _is_import(s)]
    docstring, *rest = statements
    assert isinstance(docstring, cst.SimpleStatementLine)
    told = ast.literal_eval(_module().code_for_node(docstring).strip())
    about = "\n".join(f"# {line}".rstrip() for line in told.split("\n\n", 1)[1].strip().split("\n"))
    code = cst.Module(body=rest).code.strip("\n")
    return f"{about}\n\n{_without_rulers(code)}\n"


def _without_rulers(code: str) -> str:
    """The code without the lines that divide the module, which are for its own readers."""
    return re.sub(r"\n# -{20,} [^\n]*\n", "\n", code)


@cache
def _own_imports() -> tuple[str, ...]:
    """The modules that helpers import."""
    lines = [_module().code_for_node(s).strip() for s in _module().body if _is_import(s)]
    return tuple(line.removeprefix("import ") for line in lines if "__future__" not in line)


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], (cst.Import, cst.ImportFrom))


@cache
def _helper_names() -> frozenset[str]:
    tree = ast.parse(Path(parts.__file__).read_text(encoding="utf-8"))
    defined = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    local = {t.id for n in ast.walk(tree) if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    top = [n for s in tree.body if isinstance(s, (ast.Assign, ast.AnnAssign)) for n in ast.walk(s) if isinstance(n, ast.Name)]
    return frozenset(defined | local | {n.id for n in top if isinstance(n.ctx, ast.Store)})


def _other(name: str, taken: frozenset[str]) -> str:
    """A name like this one that nobody has."""
    while name in taken:
        name += "_"
    return name
