"""Changes in the bytes of a file, and the layout of statements that have become too wide."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass

import black

from remat_codegen.marked.syntax import is_text


@dataclass(frozen=True, slots=True)
class Edit:
    """`text` for the bytes from `start` to before `end`."""

    start: int
    end: int
    text: bytes


def applied(source: bytes, edits: Iterable[Edit]) -> bytes:
    for edit in sorted(edits, key=lambda e: (e.start, e.end), reverse=True):
        source = source[: edit.start] + edit.text + source[edit.end :]
    return source


def first_lines(source: bytes, method: ast.FunctionDef) -> int:
    """The line before which a method's first statement belongs, after its docstring; 0 where its body begins beside `def`."""
    lines = source.splitlines()
    first = method.body[0]
    if lines[first.lineno - 1][: first.col_offset].strip():
        return 0
    if is_text(first):
        end = lines[(first.end_lineno or 0) - 1][first.end_col_offset or 0 :].strip()
        return 0 if end and not end.startswith(b"#") else (first.end_lineno or 0) + 1
    line = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
    while line > 1 and (not lines[line - 2].strip() or lines[line - 2].strip().startswith(b"#")):
        line -= 1
    return line


def laid_out(source: bytes, changed: Iterable[int], width: int) -> str:
    """The text of a file, with the statements that begin in some lines laid out as black would where they are too wide."""
    text = source.decode()
    lines = text.splitlines(keepends=True)
    if all(len(line.rstrip("\r\n")) <= width for line in lines):
        return text
    tree = ast.parse(source)
    begun = {n.lineno: n for n in ast.walk(tree) if isinstance(n, ast.stmt)}
    for number in sorted(changed, reverse=True):
        node = begun.get(number)
        if node is None:
            continue
        around = _around(node, tree)
        last = _last_line(node, lines) if around is None else node.end_lineno or 0
        old = lines[number - 1 : last]
        if last >= number and any(len(line.rstrip("\r\n")) > width for line in old):
            lines[number - 1 : last] = _formatted(around or node, old, width, whole=around is not None)
    return "".join(lines)


def _around(node: ast.stmt, tree: ast.Module) -> ast.FunctionDef | None:
    """The method in whose line a statement stands, with which it ends: `def forward(self, x): return self.net(x)`."""
    beside = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n is not node)
    return next((n for n in beside if n.body[-1] is node and (n.lineno, n.end_lineno) == (node.lineno, node.end_lineno)), None)


def _last_line(node: ast.stmt, lines: list[str]) -> int:
    """The last line of a statement, or of its head; 0 where another one shares its lines."""
    body = getattr(node, "body", None)
    before = lines[node.lineno - 1].encode()[: node.col_offset].decode()
    if before.strip():
        return 0
    if not body:
        after = lines[(node.end_lineno or 0) - 1].encode()[node.end_col_offset or 0 :].decode().strip()
        return 0 if after and not after.startswith("#") else node.end_lineno or 0
    first = body[0]
    line = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
    if lines[first.lineno - 1].encode()[: first.col_offset].strip():
        return 0
    while line > node.lineno + 1 and (not lines[line - 2].strip() or lines[line - 2].strip().startswith("#")):
        line -= 1
    return line - 1


def _formatted(node: ast.stmt, old: list[str], width: int, whole: bool) -> list[str]:
    """Some lines anew: those of a statement, or of its head if that is not `whole`."""
    indent = re.match(r"[ \t]*", old[0])[0]  # type: ignore[index]
    newline = "\r\n" if old[0].endswith("\r\n") else "\n"
    head = "".join(old).replace("\r\n", "\n")[len(indent) :]
    turned = head.startswith("elif")
    block = bool(getattr(node, "body", None)) and not whole
    code = (head[2:] if turned else head) + ("    pass\n" if block else "")
    code = "\n".join(line[len(indent) :] if line.startswith(indent) else line for line in code.split("\n"))
    if _has_long_strings(code):
        return old
    try:
        found = black.format_str(code, mode=black.Mode(line_length=width - len(indent) - 2 * turned))
    except (black.InvalidInput, ValueError):
        return old
    done = found.rstrip("\n").split("\n")[: -1 if block else None]
    done[0] = ("el" if turned else "") + done[0]
    ending = newline if old[-1].endswith("\n") else ""
    return [f"{indent}{line}{newline}" for line in done[:-1]] + [f"{indent}{done[-1]}{ending}"]


def _has_long_strings(code: str) -> bool:
    """Whether a text in the code has several lines, which an indent would change."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, IndentationError):
        return True
    names = {getattr(tokenize, n, -1) for n in ("STRING", "FSTRING_MIDDLE")}
    return any(t.type in names and t.start[0] != t.end[0] for t in tokens)
