"""Reads rows of a JSON file that somebody else wrote: each value has the type it should have, or a one-line error."""

from __future__ import annotations

import math
from typing import Any, NoReturn

from remat_codegen.errors import GraphFileError

LARGEST = 2**53  # of a single time or size; beyond it floating-point files are not exact


def fail(what: str, hint: str | None = None) -> NoReturn:
    """Raises GraphFileError."""
    raise GraphFileError(what, hint=hint)


def shown(value: Any) -> str:
    """A value on one line, shortened."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def rows_of(found: dict[str, Any], key: str) -> list[Any]:
    """A list that must not be empty."""
    rows = found.get(key)
    if not isinstance(rows, list):
        fail(f"the graph has no list of {key}")
    if not rows:
        fail(f"the list of {key} is empty")
    return rows


def whole(value: Any, place: str, most: int) -> int:
    """An integer from 0 to `most`."""
    if type(value) is not int or not 0 <= value <= most:
        fail(f"{place} is {shown(value)}, not an integer from 0 to {most}")
    return value


def number(value: Any, place: str) -> int | float:
    """A finite number that is not negative and not beyond `LARGEST`."""
    if type(value) not in (int, float):
        fail(f"{place} is {shown(value)}, not a number")
    if isinstance(value, float) and not math.isfinite(value):
        fail(f"{place} is {value}, not a finite number")
    if value < 0:
        fail(f"{place} is negative: {shown(value)}")
    if value > LARGEST:
        fail(f"{place} is larger than {LARGEST}")
    return value


class Fields:
    """One row with named values. `place` says which row it is."""

    def __init__(self, row: Any, place: str, known: tuple[str, ...]) -> None:
        if not isinstance(row, dict):
            fail(f"{place} is {shown(row)}, not an object")
        self.row, self.place = row, place
        unknown = [k for k in row if k not in known]
        if unknown:
            fail(f"{place} has {shown(unknown[0])}, which the format does not know")

    def get(self, name: str) -> Any:
        """A value, None where it is missing."""
        return self.row.get(name)

    def required(self, name: str) -> Any:
        """A value that must be there."""
        if name not in self.row:
            fail(f"{self.place} has no {name}")
        return self.row[name]

    def key(self, name: str) -> int | str:
        """An id: an integer or a text."""
        return key(self.required(name), f"{self.place}: {name}")

    def text(self, name: str, otherwise: str) -> str:
        """A text, `otherwise` where it is missing."""
        value = self.row.get(name, otherwise)
        if not isinstance(value, str):
            fail(f"{self.place}: {name} is {shown(value)}, not a text")
        return value

    def flag(self, name: str, otherwise: bool) -> bool:
        """True or false."""
        return flag_of(self.row, name, otherwise, self.place)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of some words."""
        value = self.required(name)
        if value not in choices:
            fail(f"{self.place}: {name} is {shown(value)}, none of {', '.join(choices)}")
        return value

    def size(self, name: str, otherwise: int | None = None) -> int:
        """Bytes or nanoseconds: an integer that is not negative."""
        value = self.required(name) if otherwise is None else self.row.get(name, otherwise)
        value = number(value, f"{self.place}: {name}")
        if not isinstance(value, int):
            fail(f"{self.place}: {name} is {shown(value)}, not an integer")
        return value


def key(value: Any, place: str) -> int | str:
    """An id: an integer or a text."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        fail(f"{place} is {shown(value)}, neither an integer nor a text")
    return value


def flag_of(row: dict[str, Any], name: str, otherwise: bool, place: str) -> bool:
    """True or false, `otherwise` where it is missing."""
    value = row.get(name, otherwise)
    if not isinstance(value, bool):
        fail(f"{place}: {name} is {shown(value)}, neither true nor false")
    return value
