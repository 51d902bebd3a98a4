"""The user's source files as syntax trees."""

from __future__ import annotations

import ast
import linecache

_TREES: dict[str, tuple[list[str], ast.Module]] = {}


def tree_of(file: str) -> ast.Module:
    """A file's syntax tree: one object for as long as the file is the same. Empty for what is no Python."""
    lines = linecache.getlines(file)
    known = _TREES.get(file)
    if known is None or known[0] is not lines:  # loading a target looks whether its file has changed
        known = _TREES[file] = lines, _parsed("".join(lines))
    return known[1]


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.Module([], [])
