"""How a generated file is laid out: by black, function by function and class by class. Helpers, and what is the user's, are the
same in many files; what was laid out once is not laid out again."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

import black

from remat_codegen.emit.lines import COLUMNS

MODE = black.Mode(target_versions={black.TargetVersion.PY311}, line_length=COLUMNS)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
STAND_IN = "stands_for_definition_"
AT_ONCE = re.compile(rf"(fmt|yapf) *:|[\r\f\v]|\\\n|{STAND_IN}")  # what concerns lines that are further away


def formatted(text: str) -> str:
    """The text of a file as black lays it out: what is around its functions and classes with others in their place, and each of
    them alone."""
    body = [] if AT_ONCE.search(text) else ast.parse(text).body
    definitions = [s for s in body if isinstance(s, DEFINITIONS)]
    begins = bool(definitions) and isinstance(body[0], ast.Expr) and definitions[0] in body[1:2]  # right after the docstring
    if not definitions or begins or any(map(_has_empty_ones, definitions)):  # empty ones may stand close together
        return _laid_out(text)
    lines, alone, around, done = text.split("\n"), list[str](), list[str](), 0
    for definition in definitions:
        first, last = _lines_of(definition, lines)
        stand_in = f"{STAND_IN}{len(alone)}"
        around += [*lines[done:first], f"class {stand_in}:" if _is_class(definition) else f"def {stand_in}():", "    pass"]
        alone.append("\n".join(lines[first:last]))
        done = last
    pattern = rf"(?:class|def) {STAND_IN}(\d+)(?:\(\))?:\n    pass\n"
    return re.sub(pattern, lambda found: _laid_out(alone[int(found[1])]), _laid_out("\n".join([*around, *lines[done:]])))


@lru_cache(maxsize=1024)
def _laid_out(code: str) -> str:
    return black.format_str(code, mode=MODE)


def _is_class(definition: ast.stmt) -> bool:
    return isinstance(definition, ast.ClassDef)


def _has_empty_ones(definition: ast.stmt) -> bool:
    """Whether there is nothing but three dots in it, or in a function or class in it."""
    bodies = [n.body for n in ast.walk(definition) if isinstance(n, DEFINITIONS)]
    return any(len(b) == 1 and isinstance(b[0], ast.Expr) and getattr(b[0].value, "value", None) is Ellipsis for b in bodies)


def _lines_of(definition: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, lines: list[str]) -> tuple[int, int]:
    """Its first line and the one after its last, decorators and comments included that are indented as what is in it."""
    first = min([definition.lineno, *(d.lineno for d in definition.decorator_list)]) - 1
    last = after = definition.end_lineno or definition.lineno
    while after < len(lines) and re.fullmatch(r"\s+#.*|\s*", lines[after]):
        after += 1
        last = after if lines[after - 1].strip() else last
    return first, last
