"""Runs of equal statements whose numbers change evenly, as loops, and loops in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_PERIOD = 64  # statements in the body of a loop
Number = tuple[int, ...]  # where every loop around begins, and by how much it grows with each of them


@dataclass(frozen=True, slots=True)
class Statement:
    """A line, parted at its numbers."""

    texts: tuple[str, ...]  # one more than there are numbers
    numbers: tuple[Number, ...]

    def render(self, variables: Sequence[str]) -> str:
        """The line, with numbers in terms of the loops' variables."""
        written = [affine(n, variables) for n in self.numbers]
        return "".join(part for pair in zip(self.texts, [*written, ""], strict=True) for part in pair)

    def follows(self, other: Statement) -> tuple[int, ...] | None:
        """By how much its numbers are above those of another one; None if it differs in more."""
        if self.texts != other.texts or any(a[1:] != b[1:] for a, b in zip(self.numbers, other.numbers, strict=True)):
            return None
        return tuple(a[0] - b[0] for a, b in zip(self.numbers, other.numbers, strict=True))

    def looped(self, steps: Sequence[int]) -> Statement:
        """The same in a loop that changes its numbers by `steps`."""
        return Statement(self.texts, tuple((*n, s) for n, s in zip(self.numbers, steps, strict=True)))


def number(value: int) -> str:
    """A number that may become an expression in a loop's variable."""
    return f"\x00{value}\x00"


def mark(text: str) -> str:
    """Marks the indices in a module's expression."""
    return re.sub(r"\[(\d+)\]", lambda found: f"[{number(int(found[1]))}]", text)


def compress(lines: Sequence[str], variables: Sequence[str]) -> list[str]:
    """The lines, with repetitions whose numbers change evenly written as loops. `variables` are for loops in loops, outermost
    first: no more are written than there are."""
    split = [re.split("\x00", line) for line in lines]
    statements = [Statement(tuple(s[::2]), tuple((int(n),) for n in s[1::2])) for s in split]
    return _compress(statements, variables, 0)


def _compress(statements: Sequence[Statement], variables: Sequence[str], depth: int) -> list[str]:
    indent, done, at = "    " * depth, list[str](), 0
    loops = _fewest_lines(statements) if depth < len(variables) else [(1, 1)] * len(statements)
    while at < len(statements):
        period, count = loops[at]
        if count == 1:
            done.append(indent + statements[at].render(variables))
        else:
            done.append(f"{indent}for {variables[depth]} in range({count}):")
            first, second = statements[at : at + period], statements[at + period : at + 2 * period]
            body = [a.looped(b.follows(a) or ()) for a, b in zip(first, second, strict=True)]
            done += _compress(body, variables, depth + 1)
        at += period * count
    return done


def _fewest_lines(statements: Sequence[Statement]) -> list[tuple[int, int]]:
    """For each place, the period and the count of the loop that begins there, so that the fewest lines are left; (1, 1) for
    none. Of equal ones, the shortest period."""
    best = [(1, 1)] * len(statements)
    left = [0] * (len(statements) + 1)  # lines from a place on
    counts = {p: _counts(statements, p) for p in range(1, min(LONGEST_PERIOD, len(statements) // 2) + 1)}
    for at in reversed(range(len(statements))):
        left[at] = 1 + left[at + 1]
        for period, most in counts.items():
            for count in range(most[at], 1, -1):
                lines = 1 + period + left[at + period * count]
                if lines < left[at]:
                    left[at], best[at] = lines, (period, count)
    return best


def _counts(statements: Sequence[Statement], period: int) -> list[int]:
    """For each place, how many times the next `period` statements follow each other with evenly changing numbers."""
    steps = [b.follows(a) for a, b in zip(statements, statements[period:], strict=False)] + [None] * period
    similar = evenly = 0  # statements from a place on that are so one period later; whose steps are, too
    counts = [1] * len(statements)
    for at in reversed(range(len(statements))):
        similar = 0 if steps[at] is None else similar + 1
        evenly = evenly + 1 if similar and at + period < len(steps) and steps[at] == steps[at + period] else 0
        counts[at] = 2 + evenly // period if similar >= period else 1
    return counts


def affine(value: Number, variables: Sequence[str]) -> str:
    """A number in terms of the loops' variables, as people write it: 24 - 2 * i."""
    start, *steps = value
    terms = [(s, v if abs(s) == 1 else f"{abs(s)} * {v}") for s, v in zip(steps, variables, strict=False) if s]
    rising, falling = [t for s, t in terms if s > 0], [t for s, t in terms if s < 0]
    if falling:
        return " + ".join([" - ".join([str(start), *falling]), *rising])
    return " + ".join([*rising, *([str(start)] if start or not rising else [])])
