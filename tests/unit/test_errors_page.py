"""docs/errors.md has each error that a user can meet: those that code raises are found in its syntax trees."""

from __future__ import annotations

import ast
import functools
import gc
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from conftest import ROOT

from remat_codegen import errors

PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
OURS = [n for n, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.RematError)]

# What makes an error of a text, and which of its arguments that is. Functions are found that have such a text, or its end, as
# an argument called like one of HANDED_ON.
HANDED_ON = ("what", "when")
MAKERS = dict.fromkeys(OURS, 0)
MAKERS |= dict.fromkeys(("ValueError", "TypeError", "RuntimeError", "AttributeError", "MemoryError", "ModuleNotFoundError"), 0)
MAKERS |= {"UsageError": 0, "BadParameter": 0, "_fail": 0}  # the command line's
MAKERS |= {"Problem": 1, "Unreadable": 1, "give_up": 0, "wrong": 1}  # what `explain` prints
MAKERS |= {"Stopped": 1, "NotAvailable": 0, "warn": 0}  # rows of `verify` and `compare`; warnings
MAKERS |= {"add_note": 0, "note": 0}  # what stands behind an error of PyTorch's; notes on what is made, which begin with NOTE
NOTE = "note: "

# Errors that no user can meet, by file and text, and why.
INTERNAL = {
    ("remat_codegen/emit/spell.py", "cannot print a"): "who asks says what cannot be written",
    ("remat_codegen/trace/vmaps.py", "something else than operations"): "the torch.vmap is refused in its place",
    ("remat_codegen/trace/vmaps.py", "a constant"): "the torch.vmap is refused in its place",
    ("remat_codegen/trace/vmaps.py", "a size"): "the torch.vmap is refused in its place",
    ("remat_codegen/run/planning.py", "planned … bytes, and … more for"): "a planner that breaks its promise",
    ("remat_codegen/planners/base/judge.py", "runs again before the loss"): "a planner that breaks its promise",
    (
        "remat_codegen/planners/base/rk_checkmate.py",
        "a value that several nodes write cannot be planned",
    ): "it is given no such graph",
    ("remat_codegen/planners/dtr.py", "is no heuristic of DTR; they are"): "no option names one",
}


@dataclass(frozen=True)
class Text:
    """The parts of a message that are the same whenever it comes, and where it is made."""

    file: str
    line: int
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return " … ".join(self.parts)

    def stands_in(self, message: str) -> bool:
        """Whether a message has all parts, in their order."""
        at = 0
        for part in self.parts:
            at = message.find(part, at) + len(part)
            if at < len(part):
                return False
        return True


# ---------------------------------------------------------------------------- texts in code


LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.arguments, ast.alias)  # nothing is looked for in them


@dataclass
class Module:
    """A file's syntax tree: calls with the functions around them, functions by name, assignments by function."""

    tree: ast.Module
    calls: list[tuple[ast.AST, ast.Call]] = field(default_factory=list)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    assigned: dict[tuple[ast.AST, str], list[ast.expr]] = field(default_factory=dict)
    returned: dict[ast.AST, list[ast.expr]] = field(default_factory=dict)
    strings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        ahead: list[tuple[ast.AST, ast.AST]] = [(self.tree, self.tree)]
        for node, scope in ahead:  # which grows
            inner = node if isinstance(node, ast.FunctionDef) else scope
            self.note(node, scope)
            for value in (getattr(node, name, None) for name in node._fields):
                children = value if isinstance(value, list) else [value]
                ahead += [(child, inner) for child in children if isinstance(child, ast.AST) and not isinstance(child, LEAVES)]
                self.strings += [c.value for c in children if isinstance(c, ast.Constant) and isinstance(c.value, str)]

    def note(self, node: ast.AST, scope: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef):
            self.functions[node.name] = node
        elif isinstance(node, ast.Call):
            self.calls.append((scope, node))
        elif isinstance(node, ast.Return) and node.value is not None:
            self.returned.setdefault(scope, []).append(node.value)
        elif isinstance(node, ast.Assign):
            for name, value in pairs(node):
                self.assigned.setdefault((scope, name), []).append(value)

    def constants(self, said: ast.AST | None, scope: ast.AST, deep: int = 0) -> Iterator[list[str]]:
        """For each text that an expression can be, the parts of it that are constant. A name is all that is assigned to it in
        its function, and a call of one of the file's functions all that this returns."""
        if isinstance(said, ast.Constant) and isinstance(said.value, str):
            yield [said.value]
        elif isinstance(said, ast.JoinedStr):
            yield [v.value for v in said.values if isinstance(v, ast.Constant)]
        elif isinstance(said, ast.IfExp):
            yield from self.constants(said.body, scope, deep)
            yield from self.constants(said.orelse, scope, deep)
        elif isinstance(said, ast.BinOp):
            yield from self.constants(said.left, scope, deep)
        elif isinstance(said, ast.Name) and deep < 3:
            for value in self.assigned.get((scope, said.id), []):
                yield from self.constants(value, scope, deep + 1)
        elif isinstance(said, ast.Call) and called(said) in self.functions and deep < 3:
            function = self.functions[called(said)]
            for value in self.returned.get(function, []):
                yield from self.constants(value, function, deep + 1)


def pairs(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Names, and what is assigned to them."""
    for target in node.targets:
        both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
        found = zip(target.elts, node.value.elts, strict=False) if both else [(target, node.value)]
        yield from ((t.id, value) for t, value in found if isinstance(t, ast.Name))


def called(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def argument(call: ast.Call, position: int) -> ast.expr | None:
    named = [k.value for k in call.keywords if k.arg in ("what", "text", "message")]
    return call.args[position] if position < len(call.args) else next(iter(named), None)


def makers(modules: dict[str, Module]) -> dict[str, int]:
    """MAKERS, and the functions that hand on an argument as the text of an error, or as it is within one."""
    found, before = dict(MAKERS), 0
    functions = [(s, c) for m in modules.values() for s, c in m.calls if isinstance(s, ast.FunctionDef)]
    calls = [(s, c) for s, c in functions if set(HANDED_ON) & set(names(s))]
    while len(found) != before:
        before = len(found)
        for scope, call in calls:
            said = argument(call, found[called(call)]) if called(call) in found else None
            parts = [getattr(v, "value", None) for v in said.values] if isinstance(said, ast.JoinedStr) else [said]
            for name in {part.id for part in parts if isinstance(part, ast.Name)} & set(HANDED_ON) & set(names(scope)):
                found.setdefault(scope.name, names(scope).index(name))
    return found


def names(function: ast.FunctionDef) -> list[str]:
    return [a.arg for a in function.args.args if a.arg not in ("self", "cls")]


def texts(modules: dict[str, Module]) -> list[Text]:
    """What is constant in each error's text."""
    known, found = makers(modules), dict[tuple[str, tuple[str, ...]], Text]()
    for file, module in modules.items():
        for scope, call in module.calls:
            said = argument(call, known[called(call)]) if called(call) in known else None
            for parts in module.constants(said, scope):
                there = tuple(part for part in map(bare, parts) if re.search("[a-z]{2}", part))
                if there and (called(call) != "note" or parts[0].startswith(NOTE)):
                    found.setdefault((file, there), Text(file, call.lineno, there))
    return list(found.values())


def bare(text: str) -> str:
    """With single spaces, and without what may stand around a name."""
    return " ".join(text.removeprefix(NOTE).replace("`", "").split()).strip(" .:;,()[]'")


@functools.cache
def read_code() -> dict[str, Module]:
    files = sorted((ROOT / "remat_codegen").rglob("*.py"))
    gc.disable()  # it would look through the trees again and again, for two thirds of the time
    try:
        return {f.relative_to(ROOT).as_posix(): Module(ast.parse(f.read_text(encoding="utf-8"))) for f in files}
    finally:
        gc.enable()


@functools.cache
def found_in_code() -> list[Text]:
    return texts(read_code())


# ---------------------------------------------------------------------------- texts of the page


def messages(page: str) -> list[str]:
    """What entries are of: the texts in backticks before their colon."""
    entries = re.findall(r"^- ((?:`[^`]+`(?:,\s+)?)+):", page, re.MULTILINE)
    return [" ".join(text.split()) for entry in entries for text in re.findall(r"`([^`]+)`", entry)]


def missing(found: list[Text], page: str) -> list[str]:
    """What to do about each text that the page has no entry for."""
    entries = messages(page)
    return [
        f"{text.file}:{text.line} may say `… {text} …`: give it an entry in docs/errors.md, with what it means and what to do"
        for text in found
        if (text.file, str(text)) not in INTERNAL and not any(map(text.stands_in, entries))
    ]


# ---------------------------------------------------------------------------- tests


def test_each_error_has_an_entry():
    assert not missing(found_in_code(), PAGE)


def test_what_is_left_out_is_still_there():
    assert INTERNAL.keys() <= {(text.file, str(text)) for text in found_in_code()}


def test_each_entry_is_of_a_message_that_there_is():
    """One that is found, or at least one whose longest part some string in the code has: a note, a reason, a row."""
    strings = "\n".join(" ".join(text.split()) for module in read_code().values() for text in module.strings)
    unknown = [m for m in messages(PAGE) if max(map(bare, re.split("[…;:]", m)), key=len) not in strings]
    assert [m for m in unknown if not any(text.stands_in(m) for text in found_in_code())] == []


@pytest.mark.parametrize(
    "entry",
    [
        "modules were added or taken away between forward and backward: do it after backward()",  # raised as it is
        "… cannot run again: … was changed in place: do it after backward()",  # a method adds the part's name
        "… in … takes no range",  # by a function that adds the option
        "the autograd.Function … has a backward of its own, which no trace shows",  # by one that adds the line
        "forward changes …, and computes with it: a trace would hold its value",  # of a variable, on a way of several
        "… of what?",  # with hardly a word
        "its schedule cannot be followed",  # what a function returns
        "--plan belongs to one file; give just that one",  # the command line's
        "inputs are larger than planned: expect an activation peak of about … MiB",  # a warning
    ],
)
def test_an_entry_that_is_taken_out_is_missed(entry):
    starts = [*(m.start() for m in re.finditer("^- ", PAGE, re.MULTILINE)), len(PAGE)]
    start, end = next((start, end) for start, end in pairwise(starts) if entry in messages(PAGE[start:end]))
    told = missing(found_in_code(), PAGE[:start] + PAGE[end:])
    assert [line for line in told if any(str(text) in line for text in found_in_code() if text.stands_in(entry))]


def test_a_new_error_is_missed_until_it_has_an_entry():
    code = """
def _error(what):
    return UnsupportedError(f"{what} in here", where="here")

def work(x):
    what = f"the thing {x} is of no use" if x else "there is no thing"
    if x:
        raise TargetError(what, hint="take another")
    raise _error("such a thing is not wanted")
"""
    found = texts({"some.py": Module(ast.parse(code))})
    wanted = ["in here", "such a thing is not wanted", "the thing … is of no use", "there is no thing"]
    assert sorted(map(str, found)) == wanted
    assert len(missing(found, PAGE)) == 4 and all(line.startswith("some.py:") for line in missing(found, PAGE))
    page = "- `the thing … is of no use`, `there is no thing`,\n  `such a thing is not\n  wanted in here`: what it means.\n"
    assert not missing(found, page)
    assert len(missing(found, page.replace("`: what", "` what"))) == 4  # no entry any more, but words in a text


def test_templates_raise_nothing_themselves():
    assert [f.name for f in (ROOT / "templates").glob("*.py.jinja") if re.search(r"\b(raise|warn)\b", f.read_text())] == []
