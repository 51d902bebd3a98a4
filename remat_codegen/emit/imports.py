"""The import lines at the top of a generated file, in the order that formatters agree on."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SAME_NAME = re.compile(r"import ((?:\w+\.)*\w+)\.(\w+) as \2")


def sections(lines: Iterable[str]) -> list[list[str]]:
    """The standard library's imports, then torch's; in each, plain imports before `from`, by name. Doubles are left out."""
    unique = {_plain(line) for line in lines}
    standard = [line for line in unique if _module(line) != "torch"]
    torch = [line for line in unique if _module(line) == "torch"]
    return [sorted(section, key=_order) for section in (standard, torch) if section]


def _plain(line: str) -> str:
    """`import a.b as b` as `from a import b`."""
    return _SAME_NAME.sub(r"from \1 import \2", line.replace("( ", "(").replace(", )", ")"))


def _module(line: str) -> str:
    return line.split()[1].split(".")[0]


def _order(line: str) -> tuple[bool, str, str]:
    return line.startswith("from"), line.split()[1].lower(), line
