"""Tidies the lines of a function: what is used once, right away, is written where it is used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

WIDEST = 110  # columns; an expression is not moved into a line that it would make longer than this


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a function body. `defines` are the names that it assigns."""

    depth: int
    text: str
    defines: tuple[str, ...] = ()

    def render(self) -> str:
        """The line as it stands in a function."""
        return "    " * (self.depth + 1) + self.text


def uses(name: str, text: str) -> int:
    """How often a name is used in a line of code."""
    return len(re.findall(rf"(?<![\w.\"']){re.escape(name)}(?![\w\"'=])(?!\s*=[^=])", text))


def prune(lines: Sequence[Line]) -> list[Line]:
    """Lines without `del x` right before the function ends."""
    kept = list(lines)
    while kept and kept[-1].text.startswith("del "):
        kept.pop()
    return kept


def inline(lines: Sequence[Line]) -> list[Line]:
    """Moves `x = f(y)` into the next line where that is the only one to use x, and nothing else would be evaluated earlier for it."""
    done: list[Line] = []
    for index, line in enumerate(lines):
        while done:
            merged = _merge(done[-1], line, lines[index + 1 :])
            if merged is None:
                break
            done.pop()
            line = merged
        done.append(line)
    return done


def _merge(first: Line, second: Line, rest: Sequence[Line]) -> Line | None:
    if len(first.defines) != 1 or first.depth != second.depth or " = kept." in first.text:
        return None
    name = first.defines[0]
    left, _, expression = first.text.partition(" = ")
    if left != name or second.text.startswith(("with", "del", "yield", "kept.")) or name in _targets_kept(second):
        return None
    start, body = ("", second.text) if not second.defines else (second.text.partition(" = ")[0] + " = ", second.text.partition(" = ")[2])
    if uses(name, body) != 1 or _used_later(name, second, rest):
        return None
    place = re.search(rf"(?<![\w.\"']){re.escape(name)}(?![\w\"'=])", body)
    if place is None or ")" in body[: place.start()]:
        return None
    text = start + body[: place.start()] + expression + body[place.end() :]
    text = _without_outer_brackets(text)
    return replace(second, text=text) if len(text) + 4 * second.depth <= WIDEST else None


def _targets_kept(line: Line) -> tuple[str, ...]:
    return ()


def _used_later(name: str, second: Line, rest: Sequence[Line]) -> bool:
    """Whether a name is read after a line, before it is assigned again."""
    if name in second.defines:
        return False
    for line in rest:
        if uses(name, line.text if not line.defines else line.text.partition(" = ")[2]):
            return True
        if name in line.defines:
            return False
    return False


def _without_outer_brackets(text: str) -> str:
    return text
