"""What the expressions of a generated file stand for while they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tensor:
    """A variable of the trace."""

    variable: int


@dataclass(frozen=True, slots=True)
class Place:
    """A module, or something of one, by its path: h.3.attn, h.3.attn.training."""

    path: str

    def child(self, name: str) -> Place:
        """What a module has under a name."""
        return Place(f"{self.path}.{name}" if self.path else name)


@dataclass(frozen=True, slots=True)
class Block:
    """What one block keeps: `kept`, `step[3]`, `kept.before(1)`; `Again(step[3])` forgets nothing."""

    number: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """The step, which holds what its blocks keep."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes that one block keeps: `kept.shapes`."""

    number: int


@dataclass(frozen=True, slots=True)
class Stops:
    """The places of one block that the backward program can wait for: `kept.stops`."""

    number: int


@dataclass(frozen=True, slots=True)
class Stop:
    """A backward node that the backward program waits for."""

    node: int


@dataclass(frozen=True, slots=True)
class Other:
    """What has no bearing on a schedule: a dtype, a flag, a number that is not spelled out."""


WIDEST = 100  # characters of a file's text in a message


def told_apart(one: str, other: str) -> tuple[str, str]:
    """Two texts, each in a line, cut where they are too long: around where they begin to differ."""
    one, other = (" ".join(text.split()) for text in (one, other))
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = same - WIDEST // 3 if same > WIDEST // 2 and max(len(one), len(other)) > WIDEST else 0
    return cut(one, start), cut(other, start)


def cut(text: str, start: int = 0) -> str:
    """A text in a line, no longer than messages have it."""
    line = " ".join(text.split())
    before, left = "..." if start else "", line[start:]
    return before + (left if len(left) <= WIDEST - len(before) else f"{left[: WIDEST - 3 - len(before)]}...")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong in a generated file, and the line where it shows."""

    line: int
    text: str

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {"line": self.line, "text": self.text}


class Unreadable(Exception):
    """Nothing after this line can be followed."""

    def __init__(self, line: int, text: str) -> None:
        self.problem = Problem(line, text)
        super().__init__(f"line {line}: {text}")


def tensors(value: Any) -> Iterator[int]:
    """The variables in a value."""
    if isinstance(value, Tensor):
        yield value.variable
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)
