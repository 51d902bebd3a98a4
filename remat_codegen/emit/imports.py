"""The import lines at the top of a generated file, in the order that formatters agree on."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

_SAME_NAME = re.compile(r"import ((?:\w+\.)*\w+)\.(\w+) as \2")


def sections(lines: Iterable[str]) -> list[list[str]]:
    """The standard library's imports, then others; in each, plain imports before `from`, by name. Doubles are left out."""
    unique = _merged({_plain(line) for line in lines})
    standard = [line for line in unique if _module(line) in sys.stdlib_module_names]
    others = [line for line in unique if _module(line) not in sys.stdlib_module_names]
    return [sorted(section, key=_order) for section in (standard, others) if section]


def within(line: str, width: int) -> list[str]:
    """An import line, or several in its place that are no wider."""
    before, _, names = line.partition(" import ")
    if len(line) <= width or not line.startswith("from "):
        return [line]
    return [f"{before} import (", *(f"    {name.strip()}," for name in names.split(",")), ")"]


def _merged(lines: set[str]) -> set[str]:
    """With one line for all that comes `from` a module, but for what gets another name."""
    found, names = set[str](), dict[str, set[str]]()
    for line in lines:
        module, _, what = line.removeprefix("from ").partition(" import ")
        if line.startswith("from ") and " as " not in line and "*" not in line:
            names.setdefault(module, set()).update(what.strip("()").replace(" ", "").strip(",").split(","))
        else:
            found.add(line)
    return found | {f"from {module} import {', '.join(sorted(all_, key=_kind))}" for module, all_ in names.items()}


def _kind(name: str) -> tuple[bool, bool, str]:
    """CONSTANTS, then Classes, then others."""
    return not name.isupper(), not name[:1].isupper(), name


def _plain(line: str) -> str:
    """`import a.b as b` as `from a import b`."""
    return _SAME_NAME.sub(r"from \1 import \2", line.replace("( ", "(").replace(", )", ")"))


def _module(line: str) -> str:
    return line.split()[1].split(".")[0]


def _order(line: str) -> tuple[bool, str, str]:
    return line.startswith("from"), line.split()[1].lower(), line
