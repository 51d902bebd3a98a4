"""Places in the source: which expressions were being evaluated when an operation was made. `frames.py` finds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Span = tuple[int, int, int, int]  # line, column, end line, end column; lines from 1, columns are bytes of UTF-8 from 0


def is_around(outer: Span, inner: Span) -> bool:
    """Whether a place has another one, of the same text, in it; or is that one."""
    return outer[:2] <= inner[:2] and inner[2:] <= outer[2:]


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the source. `line` is where it begins, its first decorator's if it has some."""

    file: str
    name: str
    line: int

    @property
    def is_at_top(self) -> bool:
        """Whether it is no method, and not defined in another function."""
        return "." not in self.name


@dataclass(frozen=True, slots=True)
class Call:
    """A frame: `function` evaluates what stands at `span`. Frames and evaluations are numbered in the order they begin in;
    two operations that share an evaluation come from the same one, and all frames around it are the same.

    In a module's method, `module` is its path and `number` says which call of it this is. `enters` are the modules' calls that
    began between the frame before and this one. `tensors` are the local names that hold tensors, and for plain
    objects that do their attributes, `state.hidden`; `changed` are names that hold something else than when this frame made its
    last operation. `contents` are lists, dicts and plain objects, by name, with the operations whose results are in them (what
    frames note are numbers of nodes, each followed by those that it was detached from), and tensors, whose names are `alone`;
    `objects` are names of plain objects and of lists of such, whether there is a tensor in them or not, each with its number.
    """

    function: Function
    span: Span
    frame: int
    evaluation: int
    module: str | None = None
    number: int = 0
    enters: tuple[tuple[str, int], ...] = ()
    tensors: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    contents: tuple[tuple[str, tuple], ...] = field(default=(), compare=False, repr=False)
    alone: tuple[str, ...] = field(default=(), compare=False, repr=False)
    objects: tuple[tuple[str, int], ...] = field(default=(), compare=False, repr=False)


def method_around(inner: Call, calls: Sequence[Call]) -> Call | None:
    """The frame, among those around, of the method that a function is defined in; None where there are several."""
    name, within, _ = inner.function.name.partition(".<locals>.")
    frames = [c for c in calls if within and c.function.name == name and c.function.file == inner.function.file]
    return frames[0] if len(frames) == 1 else None
