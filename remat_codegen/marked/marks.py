"""Names for the expressions that a plan marks, and the user's text with them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from remat_codegen.marked.evaluations import Text, Vertex
from remat_codegen.marked.found import Found
from remat_codegen.marked.lookups import Caller
from remat_codegen.marked.marking import marked
from remat_codegen.marked.names import name_for
from remat_codegen.marked.origins import callers
from remat_codegen.marked.syntax import syntax_of
from remat_codegen.trace.places import Function, Span

Key = tuple[Function, Span]


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a model's source. `names` are theirs, by function and place; `texts` are the files with them, in which
    `parts` has the name `parts`; `methods` are the methods and functions in which some stand, by file; `callers` are the names
    of the methods that may call such functions, by file. `gives` says whether some are called by what gives the file's own."""

    names: Mapping[Key, str]
    texts: Mapping[str, str]
    parts: str
    methods: Mapping[str, tuple[Text, ...]]
    callers: Mapping[str, tuple[str, ...]]
    gives: bool

    def classes(self, file: str) -> tuple[str, ...]:
        """The classes of a file in whose methods some stand, or in functions that these call."""
        inside = (t.function.name.partition(".<locals>")[0].rpartition(".")[0] for t in self.methods.get(file, ()))
        calling = (name.rpartition(".")[0] for name in self.callers.get(file, ()))
        return tuple(name for name in dict.fromkeys((*inside, *calling)) if name)


def write_marks(found: Found, vertices: Iterable[Vertex], children: Mapping[str, frozenset[str]]) -> Marks:
    """Marks these vertices in their files. `children` are the names of the modules in a module, by its path."""
    places = {(v.text.function, v.text.span): v for v in vertices if v.text is not None and found.is_marked(v)}
    texts = [(v.text, v) for v in places.values() if v.text is not None]
    giving = {c for t, _ in texts if t.function.is_at_top for c in found.giving(t.function)}
    files = {t.function.file for t, _ in texts} | {c.function.file for c in giving}
    by_file: dict[str, list[tuple[Text, Vertex]]] = {file: [] for file in sorted(files)}
    for text, vertex in sorted(texts, key=lambda pair: pair[0].span):
        by_file[text.function.file].append((text, vertex))
    inside, paths = _children(found, children), _paths(found)
    names: dict[Key, str] = {}
    for file, pairs in by_file.items():
        for text, _ in pairs:
            taken = {n for (function, _), n in names.items() if paths[function] & paths[text.function]}
            names[text.function, text.span] = _name(found.sources[file], text, taken, inside)
    words = frozenset(w for file in by_file for w in re.findall(r"\w+", found.sources[file]))
    written = {
        file: marked(
            found.sources[file],
            [found.mark(v, names[t.function, t.span]) for t, v in pairs],
            taken=words,
            given=[c.given for c in giving if c.given is not None and c.function.file == file],
        )
        for file, pairs in by_file.items()
    }
    methods = {file: tuple({t.function: t for t, _ in pairs}.values()) for file, pairs in by_file.items()}
    called = {file: _callers(found, file, texts, giving) for file, texts in methods.items()}
    parts = next((w.parts for w in written.values()), "parts")
    return Marks(names, {file: w.text for file, w in written.items()}, parts, methods, called, bool(giving))


def _callers(found: Found, file: str, texts: Iterable[Text], giving: Iterable[Caller]) -> tuple[str, ...]:
    """The methods of the carried classes of a file that may call the functions of it in which marks stand, or that call those
    of other files."""
    own = sorted((c.function for c in giving if c.function.file == file), key=lambda f: (f.line, f.name))
    functions = frozenset(f.name for f in (*(t.function for t in texts), *own) if f.is_at_top)
    carried = found.library.carried.get(file, frozenset()) if found.library is not None else None
    names = callers(found.sources[file], functions) if functions else ()
    names = tuple(dict.fromkeys((*(f.name for f in own if not f.is_at_top), *names)))
    return tuple(name for name in names if carried is None or name.partition(".")[0] in carried)


def _paths(found: Found) -> dict[Function, set[str]]:
    """The modules whose methods functions are: what is named in one of those has to differ."""
    paths: dict[Function, set[str]] = {}
    for vertex in found.tree.vertices:
        if vertex.text is not None and vertex.text.module is not None:
            paths.setdefault(vertex.text.function, set()).add(vertex.text.module)
    return paths


def _children(found: Found, children: Mapping[str, frozenset[str]]) -> dict[Function, frozenset[str]]:
    """By function: the names of the modules in those whose method it is, which a mark cannot have."""
    inside: dict[Function, frozenset[str]] = {}
    for vertex in found.tree.vertices:
        if vertex.text is not None and vertex.text.module is not None:
            known = inside.get(vertex.text.function, frozenset())
            inside[vertex.text.function] = known | children.get(vertex.text.module, frozenset())
    return inside


def _name(source: str, text: Text, taken: set[str], children: Mapping[Function, frozenset[str]]) -> str:
    syntax = syntax_of(source)
    assert syntax is not None
    return name_for(syntax, text.span, taken, children.get(text.function, frozenset()))
