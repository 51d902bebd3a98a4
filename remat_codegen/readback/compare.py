"""Where the code of a generated file is not what the generator writes for its schedule. Comments and layout do not count."""

from __future__ import annotations

import ast
import copy
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remat_codegen.readback.values import Problem, cut, told_apart

OF_THE_PLAN = ("BUDGET_BYTES", "PLANNED_PEAK_BYTES")  # constants that say what was planned, not what is done


@dataclass(frozen=True, slots=True)
class _Row:
    """A statement, or what a compound statement begins with. `place` is the function or class that it stands in."""

    line: int
    text: str
    depth: int
    place: str

    def key(self) -> tuple[int, str]:
        return self.depth, self.text


def differences(text: str, expected: str) -> list[Problem]:
    """The statements that are not as they should be, in the order of the file. Both texts are Python."""
    have, want = list(_rows(ast.parse(text))), list(_rows(ast.parse(expected)))
    matcher = difflib.SequenceMatcher(None, [r.key() for r in have], [r.key() for r in want], autojunk=False)
    found: list[Problem] = []
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag != "equal":
            found += _described(have, have[a:b], want[c:d], a)
    return found


def _described(have: Sequence[_Row], wrong: Sequence[_Row], right: Sequence[_Row], at: int) -> list[Problem]:
    """One stretch of statements that differs: first what stands in the place of something else, then what is left over."""
    both = min(len(wrong), len(right))
    pairs = [(w, *told_apart(w.text, r.text)) for w, r in zip(wrong[:both], right[:both], strict=True)]
    found = [Problem(w.line, f"has `{have_}` where `{want}` is expected{_in(w)}") for w, have_, want in pairs]
    found += [Problem(w.line, f"has `{cut(w.text)}`, which does not belong here{_in(w)}") for w in wrong[both:]]
    return [*found, *_missing(right[both:], have[min(at + len(wrong), len(have) - 1)].line if have else 1)]


def _missing(rows: Sequence[_Row], line: int) -> list[Problem]:
    if not rows:
        return []
    more = "" if len(rows) == 1 else f", and {len(rows) - 1} more after it,"
    be = "is" if len(rows) == 1 else "are"
    return [Problem(line, f"`{cut(rows[0].text)}`{more} {be} missing before this line{_in(rows[0])}")]


def _in(row: _Row) -> str:
    return f" (in {row.place})" if row.place else ""


def _rows(tree: ast.Module) -> Iterator[_Row]:
    for position, statement in enumerate(tree.body):
        if position == 0 and _is_text(statement):
            continue
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) in OF_THE_PLAN:
            continue
        yield from _flat(statement, 0, "")


def _flat(statement: ast.stmt, depth: int, place: str) -> Iterator[_Row]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        place = f"{place}.{statement.name}" if place else statement.name
    head = _head(statement)
    yield _Row(statement.lineno, ast.unparse(statement) if head is None else head, depth, place)
    if head is not None:
        for part in statement.body:  # type: ignore[attr-defined]
            if not _is_text(part):
                yield from _flat(part, depth + 1, place)


def _head(statement: ast.stmt) -> str | None:
    """What stands before a statement's body; None for what is compared as a whole."""
    body, alternative = getattr(statement, "body", None), getattr(statement, "orelse", None)
    if not isinstance(body, list) or alternative or isinstance(statement, (ast.Try, ast.Match)):
        return None
    bodiless = copy.copy(statement)
    bodiless.body = [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(bodiless).removesuffix("pass").rstrip()


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
