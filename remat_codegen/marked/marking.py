"""Marks in the text of a file: an expression that becomes a part is wrapped where it stands, and nothing else changes.

    y = F.gelu(self.c_fc(x))          y = parts(self).part("gelu", F.gelu, self.c_fc(x))
    y = q @ k.transpose(-2, -1) * s   y = parts(self).part("y", lambda q, k: q @ k.transpose(-2, -1) * s, q, k)

Expressions are found by the places that the syntax tree gives, and replaced in the bytes of the file, so that comments and
layout stay as they are. A method with several marks begins with `kept = parts(self)`, a function with `kept = parts()`. A
statement that gets too wide is laid out anew. The statement `y += x` stands for an expression, too:
`y = parts(self).part("y", lambda y, x: y.add_(x), y, x)`.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from remat_codegen.errors import UnsupportedError
from remat_codegen.marked.edits import Edit, applied, first_lines, laid_out
from remat_codegen.marked.markable import IN_PLACE, home_of, markable, method_of
from remat_codegen.marked.names import free_names, identifiers, local_names, said, unused
from remat_codegen.marked.outside import outside_of
from remat_codegen.marked.syntax import FUNCTIONS, Syntax, is_dotted, span_of, syntax_of
from remat_codegen.trace.places import Span

WIDTH = 120
GIVEN = "with_marks"  # what files call the helper that gives their own one of a function


@dataclass(frozen=True, slots=True)
class Mark:
    """An expression that becomes a part. `inputs` are the local names that can hold tensors, and attributes of plain objects
    that do, `state.hidden`; None where that is not known: all names.

    `outside` are expressions inside of it that are no part of it: they are evaluated before, and handed in. `made` are spans of
    expressions of the file that make operations; where they are known, calls that make none are evaluated before, too.
    """

    span: Span
    name: str
    inputs: tuple[str, ...] | None = None
    outside: tuple[Span, ...] = ()
    made: frozenset[Span] | None = None


@dataclass(frozen=True, slots=True)
class Marked:
    """A file with marks. `parts` is the name by which it calls `parts`."""

    text: str
    parts: str


def refusal_of(source: str, mark: Mark) -> str:
    """Why a mark cannot be written; empty where it can."""
    refused = markable(source, mark.span)
    syntax = syntax_of(source)
    if refused or syntax is None:
        return refused
    node = syntax.find(mark.span)
    if isinstance(node, ast.AugAssign):
        inside = any(span_of(n) in (mark.made or ()) for n in ast.walk(node.value) if isinstance(n, ast.expr))
        return "what is added is made in it" if inside and span_of(node.value) not in mark.outside else ""
    assert isinstance(node, ast.expr)
    found = outside_of(syntax, node, mark.outside, mark.made, mark.inputs or ())
    return found.refused or _named_elsewhere(syntax, node)


def _is_bare(text: str) -> bool:
    """Whether a tuple's text has no parentheses of its own: as what a function gives, it would be its first item."""
    call = ast.parse(f"f(lambda: {text})", mode="eval").body
    functions = [given for given in call.args if isinstance(given, ast.Lambda)] if isinstance(call, ast.Call) else []
    return not (len(functions) == 1 and isinstance(functions[0].body, ast.Tuple))


def _named_elsewhere(syntax: Syntax, node: ast.expr) -> str:
    declared = {n for d in ast.walk(home_of(syntax, node) or node) if isinstance(d, ast.Nonlocal) for n in d.names}
    return "it reads a name that an inner function assigns" if declared & set(free_names(node)) else ""


def marked(
    source: str, marks: Sequence[Mark], width: int = WIDTH, taken: Collection[str] = (), given: Collection[Span] = ()
) -> Marked:
    """The text of a file with marks. `taken` are names that `parts` is not called by; `given` say what is called of which the
    file has one with marks, `with_marks(F.normalize)(x)`.

    Raises UnsupportedError for one that cannot be written."""
    for mark in marks:
        refused = refusal_of(source, mark)
        if refused:
            what = f"the part {mark.name} cannot be marked: {refused}"
            raise UnsupportedError(what, where=f"line {mark.span[0]}", hint="use --edition 1")
    syntax = syntax_of(source)
    if syntax is None or not (marks or given):
        return Marked(source, "parts")
    writer = _Writer(source, syntax, marks, taken, given)
    return Marked(laid_out(writer.edited(), writer.changed, width), writer.parts)


class _Writer:
    def __init__(
        self, source: str, syntax: Syntax, marks: Sequence[Mark], taken: Collection[str], given: Collection[Span]
    ) -> None:
        self.source, self.syntax = source.encode(), syntax
        self.given: set[ast.AST] = {node for span in given if (node := syntax.find(span)) is not None}
        starts = [0, *(m.end() for m in re.finditer(rb"\r\n|\n|\r", self.source))]
        self.starts = starts
        self.marks: dict[ast.AST, Mark] = {node: m for m in marks if (node := syntax.find(m.span)) is not None}
        names = set(re.findall(r"\w+", source))
        self.parts = unused(["parts", "remat_parts"], names | set(taken))
        self.kept = unused(["kept", "kept_parts"], identifiers(syntax.parents))
        self.words = names
        self.begun = self._begun()
        self.changed: list[int] = []

    def _begun(self) -> dict[ast.AST, int]:
        """The methods and functions with several marks that have a line of their own to begin with, and where that is."""
        homes = [home_of(self.syntax, node) for node in self.marks if not self._is_nested(node)]
        several = {home for home in homes if home is not None and homes.count(home) > 1}
        lines = {home: first_lines(self.source, home) for home in several}
        return {home: line for home, line in lines.items() if line}

    def _is_nested(self, node: ast.AST) -> bool:
        """Whether it is in a function within a method, which may run in a later step than the method: it asks for its parts."""
        inner = next((o for o in self.syntax.ancestors(node) if isinstance(o, FUNCTIONS)), None)
        return inner is not home_of(self.syntax, node)

    def _called(self, node: ast.AST) -> str:
        """The call that gives the parts to a method, or to a function, which has no self."""
        return f"{self.parts}({'' if method_of(self.syntax, node) is None else 'self'})"

    def edited(self) -> bytes:
        edits = [Edit(*self._range(node), self._part(node, {})) for node in self.marks if not self._is_inside(node)]
        edits = [self._without_parentheses(edit) for edit in edits]
        edits += [Edit(*self._range(node), self._giving(node)) for node in self.given if not self._is_inside(node)]
        lines = {self._statement(node).lineno for node in (*self.marks, *self.given)}
        for home, line in self.begun.items():
            start = self.starts[line - 1]
            begun = f"{self._indent(home)}{self.kept} = {self._called(home.body[0])}{self._newline()}"  # type: ignore[attr-defined]
            edits.append(Edit(start, start, begun.encode()))
        self.changed = [line + sum(first <= line for first in self.begun.values()) for line in sorted(lines)]
        return applied(self.source, edits)

    def _statement(self, node: ast.AST) -> ast.stmt:
        return next(n for n in (node, *self.syntax.ancestors(node)) if isinstance(n, ast.stmt))

    def _is_inside(self, node: ast.AST) -> bool:
        return any(n in self.marks for n in self.syntax.ancestors(node))

    def _newline(self) -> str:
        return "\r\n" if b"\r\n" in self.source else "\n"

    def _indent(self, method: ast.AST) -> str:
        first = method.body[0]  # type: ignore[attr-defined]
        return self.source[self.starts[first.lineno - 1] :][: first.col_offset].decode()

    def _range(self, node: ast.AST) -> tuple[int, int]:
        line, column, end_line, end_column = span_of(node)
        return self.starts[line - 1] + column, self.starts[end_line - 1] + end_column

    def _without_parentheses(self, edit: Edit) -> Edit:
        """Takes the parentheses around an expression along that a call needs no more: `(q @ k) * s`."""
        before, after = self.source[: edit.start], self.source[edit.end :]
        if re.search(rb"([-+*/@%&|^=,(\[:{<>] *|\breturn +)\($", before) and after.startswith(b")"):
            return Edit(edit.start - 1, edit.end + 1, edit.text)
        return edit

    def _part(self, node: ast.AST, known: Mapping[ast.AST, str]) -> bytes:
        """The call that stands for a marked expression. `known` are names of what a part around it has got."""
        mark = self.marks[node]
        begun = home_of(self.syntax, node) in self.begun and not self._is_nested(node)
        holder = self.kept if begun else self._called(node)
        if isinstance(node, ast.AugAssign):
            return self._in_place(node, mark.name, holder)
        assert isinstance(node, ast.expr)
        evaluated = outside_of(self.syntax, node, mark.outside, mark.made, mark.inputs or ())
        outside = evaluated.nodes
        inputs = self._inputs(node, mark, outside)
        run = self._plain(node, inputs, outside)
        alike = {n: n for n in outside} if run is not None else _first_alike(outside, evaluated.read)
        once = [n for n in outside if alike[n] is n]
        given = [*inputs, *(self._text(n, known).decode() for n in once)]
        if run is None:
            names = self._parameters(once, inputs, node)
            called = dict(zip(once, names, strict=True))
            inside = self._content(node, {**known, **{n: called[alike[n]] for n in outside}}).decode()
            listed = ", ".join([*inputs, *names])
            run = f"lambda {listed}: " if listed else "lambda: "
            run += f"({inside})" if isinstance(node, ast.Tuple) and _is_bare(inside) else inside
        return f"{holder}.part({', '.join([_quoted(mark.name), run, *given])})".encode()

    def _in_place(self, node: ast.AugAssign, name: str, holder: str) -> bytes:
        """What stands for `y += x`."""
        target = self._segment(node.target).decode()
        value = self._parameters([node.value], [target], node.value)[0]
        run = f"lambda {target}, {value}: {target}.{IN_PLACE[type(node.op)]}({value})"
        given = self._text(node.value, {}).decode()
        return f"{target} = {holder}.part({_quoted(name)}, {run}, {target}, {given})".encode()

    def _inputs(self, node: ast.expr, mark: Mark, outside: Iterable[ast.expr]) -> list[str]:
        """The local names that are handed in."""
        local = local_names(self.syntax, node) - {"self"}
        if mark.inputs is not None:
            local &= {name.partition(".")[0] for name in mark.inputs}
        else:
            local -= {c.func.id for c in ast.walk(node) if isinstance(c, ast.Call) and isinstance(c.func, ast.Name)}
        return [name for name in free_names(node, tuple(outside)) if name in local]

    def _plain(self, node: ast.expr, inputs: list[str], outside: Sequence[ast.expr]) -> str | None:
        """What to run where that is the function that the expression calls, and its arguments are what is handed in."""
        if not isinstance(node, ast.Call) or node.keywords or not is_dotted(node.func) or node.func in self.marks:
            return None
        names = [a.id for a in node.args if isinstance(a, ast.Name)]
        others = [a for a in node.args if not isinstance(a, ast.Name)]
        in_order = [*inputs, *outside] == [a.id if isinstance(a, ast.Name) else a for a in node.args]
        if not node.args or names != inputs or others != list(outside) or not in_order:
            return None
        return self._giving(node.func).decode()

    def _parameters(self, outside: Iterable[ast.expr], inputs: list[str], node: ast.expr) -> list[str]:
        taken = {*inputs, *free_names(node), *(n.arg for n in ast.walk(node) if isinstance(n, ast.arg))}
        taken |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {self.kept, self.parts}
        names: list[str] = []
        for n in outside:
            if isinstance(n, ast.NamedExpr):
                names.append(n.target.id)
                continue
            wanted = _held_in(n) or said(n) or "value"
            fits = wanted.isidentifier() and wanted not in vars(builtins)
            names.append(unused([wanted if fits else "value"], {*taken, *names}))
        return names

    def _segment(self, node: ast.AST) -> bytes:
        start, end = self._range(node)
        return self.source[start:end]

    def _giving(self, node: ast.AST) -> bytes:
        """What is called, or what gives the file's own one of it."""
        return b"%s(%s)" % (GIVEN.encode(), self._segment(node)) if node in self.given else self._segment(node)

    def _text(self, node: ast.AST, known: Mapping[ast.AST, str]) -> bytes:
        """An expression as it stands in the new file."""
        if node in known:
            return known[node].encode()
        return self._part(node, known) if node in self.marks else self._content(node, known)

    def _content(self, node: ast.AST, known: Mapping[ast.AST, str]) -> bytes:
        """An expression with what is replaced in it."""
        start, end = self._range(node)
        edits: list[Edit] = []
        ahead = [c for c in ast.iter_child_nodes(node) if c in self.syntax.parents]
        while ahead:
            inner = ahead.pop()
            if inner in self.given:
                edits.append(Edit(*self._range(inner), self._giving(inner)))
            elif inner in known or inner in self.marks:
                edits.append(self._without_parentheses(Edit(*self._range(inner), self._text(inner, known))))
            else:
                ahead += [c for c in ast.iter_child_nodes(inner) if c in self.syntax.parents]
        return applied(self.source[start:end], [Edit(e.start - start, e.end - start, e.text) for e in edits])


def _first_alike(nodes: Sequence[ast.expr], read: Collection[ast.expr]) -> dict[ast.expr, ast.expr]:
    """By what is handed in: what it is handed in with, the first that reads the same."""
    first: dict[str, ast.expr] = {}
    return {node: first.setdefault(ast.unparse(node), node) if node in read else node for node in nodes}


def _held_in(node: ast.expr) -> str:
    """A name for what is taken from a list, after the list: `skip` of `skips.pop()`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("pop", "popleft"):
        holder = node.func.value
        name = holder.id if isinstance(holder, ast.Name) else holder.attr if isinstance(holder, ast.Attribute) else ""
        return name[:-1] if name.endswith("s") and len(name) > 2 else name and f"{name}_item"
    return ""


def _quoted(name: str) -> str:
    return f'"{name}"'
