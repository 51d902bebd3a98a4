"""Names for the expressions that a plan marks, and the user's text with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from remat_codegen.marked.found import Found
from remat_codegen.marked.names import name_for
from remat_codegen.marked.syntax import syntax_of
from remat_codegen.marked.text import marked
from remat_codegen.marked.words import Text, Vertex
from remat_codegen.trace.places import Function, Span

Key = tuple[Function, Span]


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of one file. `names` are theirs, by function and place; `text` is the file with them, in which `parts` has the
    name `parts`; `classes` are those in whose methods some stand."""

    names: Mapping[Key, str]
    text: str
    parts: str
    classes: tuple[str, ...]


def write_marks(found: Found, vertices: Iterable[Vertex], file: str, children: Mapping[str, frozenset[str]]) -> Marks:
    """Marks these vertices in a file. `children` are the names of the modules in a module, by its path."""
    places = {(v.text.function, v.text.span): v for v in vertices if v.text is not None and found.is_marked(v)}
    texts = ((v.text, v) for v in places.values() if v.text is not None)
    ordered = sorted(((t, v) for t, v in texts if t.function.file == file), key=lambda pair: pair[0].span)
    inside = _children(found, children)
    names: dict[Key, str] = {}
    for text, _ in ordered:
        names[text.function, text.span] = _name(found.sources[file], text, names, inside)
    written = marked(found.sources[file], [found.mark(v, names[t.function, t.span]) for t, v in ordered])
    classes = (t.function.name.rpartition(".")[0].partition(".<locals>")[0] for t, _ in ordered)
    return Marks(names, written.text, written.parts, tuple(dict.fromkeys(classes)))


def _children(found: Found, children: Mapping[str, frozenset[str]]) -> dict[Function, frozenset[str]]:
    """By function: the names of the modules in those whose method it is, which a mark cannot have."""
    inside: dict[Function, frozenset[str]] = {}
    for vertex in found.tree.vertices:
        if vertex.text is not None and vertex.text.module is not None:
            known = inside.get(vertex.text.function, frozenset())
            inside[vertex.text.function] = known | children.get(vertex.text.module, frozenset())
    return inside


def _name(source: str, text: Text, names: Mapping[Key, str], children: Mapping[Function, frozenset[str]]) -> str:
    syntax = syntax_of(source)
    assert syntax is not None
    owner = text.function.name.rpartition(".")[0]
    taken = {name for (function, _), name in names.items() if function.name.rpartition(".")[0] == owner}
    return name_for(syntax, text.span, taken, children.get(text.function, frozenset()))
