"""Methods of classes that stay where they are: of libraries, of files beside the model's, and of PyTorch's own modules. Where a
plan cuts within one, or within a function that it calls, its text is written into the file, with marks, and the names that it
needs are imported from where its class stands. No import finds the file that was named: methods of that, where its classes
stay there, too, run with the names of that file.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import re
import symtable
import sys
import textwrap
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, TypeGuard

import torch

from remat_codegen.emit.usersource import rename_names
from remat_codegen.marked.evaluations import Text, Tree
from remat_codegen.marked.names import local_names, unused
from remat_codegen.marked.syntax import FUNCTIONS, Syntax, is_text, syntax_of
from remat_codegen.trace.places import Function

LICENSES = "License-Expression", "License"
WITHIN = {"__name__", "__file__", "__spec__", "__package__", "__doc__", "__builtins__", "__loader__"} | {
    "super",
    "__class__",
    "locals",
    "globals",
    "vars",
    "eval",
    "exec",
}  # what looks at the class or file it stands in
WITHIN_FUNCTION = ".<locals>"
Meaning = tuple[str, str] | None
_NO_PARAMETERS: dict[str, Any] = {"type_params": []} if sys.version_info >= (3, 12) else {}


@dataclass(frozen=True, slots=True)
class Owner:
    """The class that a method is of: its module's name, empty for that of the model's own class, its own within that, and the
    name of the method. A function at the top of a module is of no class, whose name is empty then. What a decorator of classes
    puts in the place of a method is of the function that defines it, as Python names that: `counted.<locals>`."""

    module: str
    kind: str
    method: str

    @property
    def is_closure(self) -> bool:
        """Whether it is defined in a function."""
        return self.kind.endswith(WITHIN_FUNCTION)


@dataclass(frozen=True, slots=True)
class Written:
    """A class of a library with marks in its methods, as a file has it, or a function: its code, under which name, what it is
    of, by module and name, and the imports that all this needs. `about` says where it comes from; empty for the file of the
    model's own class, whose names it has. `decorated` is a function that decorators have put others around, there."""

    code: str
    name: str
    of: tuple[str, str]
    imports: tuple[str, ...]
    about: str
    decorated: bool = False


class Library:
    """What can be marked in the classes of a model's modules whose own file the generated one does not carry. `carried` are the
    files that it does, with the names that it takes from them: a factory may use more classes than the model's needs. `own` is
    the file that was named, which is loaded under more than one name."""

    def __init__(
        self, model: torch.nn.Module, carried: Mapping[str, frozenset[str]] | None = None, own: Path | None = None
    ) -> None:
        self.own = str(own)
        self.home = _home_of(type(model), self.own)
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.carried = dict(carried or {})
        self.known: dict[tuple[Function, type], Owner | None] = {}

    def sources(self, tree: Tree) -> dict[str, str]:
        """The texts, by file, of the methods that may be marked."""
        texts = (v.text for v in tree.vertices if v.text is not None and not v.refused)
        return {t.function.file: text_of(t.function.file) for t in texts if self.owner(t) is not None}

    def owner(self, text: Text) -> Owner | None:
        """Whose method an expression stands in; None where that may not be written elsewhere."""
        module = self.modules.get(text.module or "") if text.module is not None else None
        if module is None or text.function.file in self.carried or text.function.name.rpartition(".")[2] in vars(module):
            return None
        if type(module).__module__.startswith("torch.") and not module._modules:
            return None  # a word itself, as nn.Linear is
        return self.owner_by_kind(text.function, type(module))

    def owner_by_kind(self, function: Function, kind: type) -> Owner | None:
        """Whose method a function is if modules of a kind run it; of one at the top of a file, which it is."""
        key = function, kind
        if key not in self.known:
            self.known[key] = (_at_top if function.is_at_top else _method)(function, kind, self.own, self.home)
        return self.known[key]

    def caller(self, function: Function, path: str | None) -> Owner | None:
        """Whose method a function is that calls one with marks: the module's at `path`, or what stands there in its place."""
        kind = type(self.modules.get(path or ""))
        return self.owner_by_kind(function, kind) or _closure(function, kind, self.own, self.carried)


def _at_top(function: Function, kind: type, own: str, home: str) -> Owner | None:
    """A function at the top of a library's file, or of the model's own, as its text stands for it; None where that is not
    so."""
    module, found = module_of(function.file), at_top(function)
    inner = _wrapped_in(found)
    if module is None or inner is None or inner.__closure__ or (inner is not found and function.file == own):
        return None
    code, text = inner.__code__, method_in(text_of(function.file), "", function.name)
    same = (code.co_filename, code.co_qualname, code.co_firstlineno) == (function.file, function.name, function.line)
    if not same or inner.__globals__ is not vars(module) or text is None or first_line(text) != function.line:
        return None
    if not _has_constant_defaults(text, inner):
        return None
    if module.__name__ == home and function.file == own and not _is_found_by_name(module, own, own):
        return Owner("", "", function.name) if _can_be_copied(text) and _is_its_name(own, function.name) else None
    if not _is_found_by_name(module, function.file, own) or needs(function.file, "", function.name) is None:
        return None
    return None if _is_pythons(module.__name__) else Owner(module.__name__, "", function.name)


def module_of(file: str) -> types.ModuleType | None:
    """The loaded module that a file is."""
    return next((m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == file), None)


def at_top(function: Function) -> Any:
    """What a loaded file has by the name of a function at its top, with what decorates that; None if there is no such."""
    return getattr(module_of(function.file), function.name, None)


def is_decorated(owner: Owner) -> bool:
    """Whether a function at the top of a library's file has others around it, put there by decorators."""
    found = None if owner.kind else getattr(sys.modules.get(owner.module), owner.method, None)
    return isinstance(found, types.FunctionType) and hasattr(found, "__wrapped__")


def _has_constant_defaults(text: ast.FunctionDef, function: types.FunctionType) -> bool:
    """Whether the defaults of a function are what its text says, wherever that stands."""
    try:
        given = [_constant(default) for default in text.args.defaults]
        keywords = {a.arg: _constant(d) for a, d in zip(text.args.kwonlyargs, text.args.kw_defaults, strict=True) if d}
        hash((*given, *keywords.values()))
    except (ValueError, TypeError):
        return False
    same = repr(given) == repr([*(function.__defaults__ or ())])
    return same and repr(keywords) == repr(function.__kwdefaults__ or {})


def _constant(node: ast.expr) -> Any:
    """What a default says, such as `(0.0, float("inf"))`. Raises ValueError where that is not the same everywhere."""

    class Numbers(ast.NodeTransformer):
        def visit_Call(self, call: ast.Call) -> ast.AST:
            named = isinstance(call.func, ast.Name) and call.func.id == "float" and len(call.args) == 1 and not call.keywords
            return ast.Constant(float(ast.literal_eval(call.args[0]))) if named else call

    return ast.literal_eval(Numbers().visit(ast.parse(ast.unparse(node), mode="eval")))


def _method(function: Function, kind: type, own: str, home: str) -> Owner | None:
    """The class that has a method, if a module of this kind would run that one; None where its text does not stand for it. Of
    the file that was named, `own`, if that belongs to no package, it has to be one of the module `home`."""
    place, _, name = function.name.rpartition(".")
    found = getattr(kind, name, None)
    owner = next((c for c in kind.__mro__ if vars(c).get(name) is found), None)
    inner = _wrapped_in(found)
    if inner is None or owner is None or owner.__qualname__ != place:
        return None
    code = inner.__code__
    if (code.co_filename, code.co_qualname, code.co_firstlineno) != (function.file, function.name, function.line):
        return None
    if inner.__closure__ or inner.__globals__ is not vars(sys.modules.get(owner.__module__, ast)):
        return None  # it has what its class, or a decorator, gave it
    method = method_in(text_of(function.file), place, name)
    if method is None or first_line(method) != function.line:
        return None
    if owner.__module__ == home and function.file == own and not _is_importable(owner, own, own):
        copied = _can_be_copied(method) and _has_constant_defaults(method, inner) and not _asks_for_parts(method)
        return Owner("", place, name) if copied else None
    if not _is_importable(owner, function.file, own) or needs(function.file, place, name) is None:
        return None
    return None if _is_pythons(owner.__module__) else Owner(owner.__module__, place, name)


def _closure(function: Function, kind: type, own: str, carried: Collection[str]) -> Owner | None:
    """The function of a library that defines what a decorator of classes has put in the place of a method, if a module of this
    kind would run that; None where its text does not stand for it."""
    place, _, name = function.name.rpartition(".")
    found, module = getattr(kind, name, None), module_of(function.file)
    if not place.endswith(WITHIN_FUNCTION) or not isinstance(found, types.FunctionType) or module is None:
        return None
    code, cells = found.__code__, found.__closure__ or ()
    if (code.co_filename, code.co_qualname, code.co_firstlineno) != (function.file, function.name, function.line):
        return None
    if found.__globals__ is not vars(module) or any(cell == types.CellType() for cell in cells):
        return None
    method = method_in(text_of(function.file), place, name)
    if method is None or first_line(method) != function.line or free_names(function.file, place, name) != code.co_freevars:
        return None
    if function.file in (own, *carried) or not _is_found_by_name(module, function.file, own) or _is_pythons(module.__name__):
        return None
    return Owner(module.__name__, place, name) if needs(function.file, place, name) is not None else None


def _is_pythons(module: str) -> bool:
    """Whether a module is of the standard library, whose functions are others in each version of Python."""
    return module.partition(".")[0] in sys.stdlib_module_names


def _asks_for_parts(method: ast.FunctionDef) -> bool:
    """Whether a method has marks already, `parts(self)`, by somebody else."""
    return any(isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "parts" for n in ast.walk(method))


def _home_of(kind: type, own: str) -> str:
    """The module of a model's class, if that is the file that was named; else empty."""
    module = sys.modules.get(kind.__module__)
    return kind.__module__ if getattr(module, "__file__", None) == own else ""


def first_line(function: ast.FunctionDef) -> int:
    """Where a function begins, as Python says of its code: its first decorator's line if it has some."""
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])


def _wrapped_in(function: Any) -> types.FunctionType | None:
    """The function that a method is without what decorators have put around it; None where the same could not be put around
    another one. (The helpers do: parts.py, _wrapped_alike.)"""
    inner = inspect.unwrap(function) if callable(function) else None
    while function is not inner:
        if not isinstance(function, types.FunctionType):
            return None
        cells = [c.cell_contents for c in function.__closure__ or () if c != types.CellType()]
        around = [f for f in cells if callable(f) and f is not function and inspect.unwrap(f) is inner]
        if len(set(map(id, around))) != 1 or len(cells) != len(function.__closure__ or ()):
            return None
        function = around[0]
    return inner if isinstance(inner, types.FunctionType) else None


def _is_importable(kind: type, file: str, own: str) -> bool:
    """Whether a class is found by its name, in any process that has the model: a file beside the one that was named, too."""
    module = sys.modules.get(kind.__module__)
    found: object = module
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind and module is not None and _is_found_by_name(module, file, own)


def _is_found_by_name(module: types.ModuleType, file: str, own: str) -> bool:
    """Whether a module is found by its name, in any process that has the model."""
    if getattr(module, "__file__", None) != file:
        return False
    before = module.__name__.rpartition(".")[0]
    if not before:
        known = getattr(module, "__spec__", None)
        return file != own and known is not None and (known.name, known.origin) == (module.__name__, file)
    places = getattr(sys.modules.get(before), "__path__", None)
    spec = None if places is None else PathFinder.find_spec(module.__name__, places)
    return spec is not None and spec.origin == file


@lru_cache(maxsize=4096)
def needs(file: str, kind: str, name: str) -> tuple[str, ...] | None:
    """The names that a method's text needs of its file; None where the text alone would do something else elsewhere."""
    method = method_in(text_of(file), kind, name)
    if method is None or not _can_be_copied(method, kind.endswith(WITHIN_FUNCTION)):
        return None
    if any(isinstance(n, ast.ImportFrom) and n.level for n in _inside(method)):
        return None  # relative to where it stands
    read, beside = _global_names(file, method).difference(free_names(file, kind, name)), _beside(method)
    module = module_of(file)
    needed = {n for n in read | beside if not (hasattr(builtins, n) and not hasattr(module, n))}
    if not all(_can_be_imported(module, n) for n in needed) or _sets(file) & needed or beside & _names_in_class(file, kind):
        return None
    return tuple(sorted(needed))


def _can_be_copied(method: ast.FunctionDef, within: bool = False) -> bool:
    """Whether a method's text does the same in another class, or in another function, if its names mean the same there."""
    moved = any(map(_has_lines, ast.walk(method))) if within else method.col_offset > 4
    if moved or (method.name.startswith("__") and method.name.endswith("__")):
        return False  # moved to the left, its text may be another one; and Python looks for special methods in classes only
    names = {n.id for n in _inside(method) if isinstance(n, ast.Name)}
    attributes = {n.attr for n in _inside(method) if isinstance(n, ast.Attribute)}  # private ones have the class's name
    return not (names | attributes) & WITHIN and not any(map(_is_private, names))


def _has_lines(node: ast.AST) -> bool:
    """Whether it is a text of several lines."""
    text = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))
    return text and node.lineno != node.end_lineno  # type: ignore[attr-defined]


@lru_cache(maxsize=4096)
def free_names(file: str, kind: str, name: str) -> tuple[str, ...]:
    """The variables of the functions around it that a function reads; none of a method."""
    if not kind.endswith(WITHIN_FUNCTION):
        return ()
    table = symtable.symtable(text_of(file), file, "exec")
    for part in (*kind.split("."), name):
        inner = [t for t in table.get_children() if t.get_name() == part]
        table = table if part == WITHIN_FUNCTION[1:] else inner[-1] if inner else table
    return tuple(sorted(s.get_name() for s in table.get_symbols() if s.is_free()))


@lru_cache(maxsize=4096)
def is_only_called(file: str, name: str) -> bool:
    """Whether functions of a file do no more than call one at its top, so that its name can mean a copy there: that is another
    thing, in a dictionary for instance, and has no attributes."""
    syntax = syntax_of(text_of(file))
    named = [n for n in (syntax.parents if syntax is not None else ()) if isinstance(n, ast.Name) and n.id == name]
    return syntax is not None and all(_is_called(syntax, n) for n in named)


def _is_called(syntax: Syntax, name: ast.Name) -> bool:
    """Whether a name is that of what is called, or stands outside of functions, or is that of a variable there."""
    parent = syntax.parents[name]
    called = isinstance(parent, ast.Call) and parent.func is name
    return called or not any(isinstance(o, FUNCTIONS) for o in syntax.ancestors(name)) or name.id in local_names(syntax, name)


def _is_its_name(file: str, name: str) -> bool:
    """Whether a name is nothing but that of a function in a file. An attribute that is called so, or something imported, has
    one name with it in Python's code."""
    syntax = syntax_of(text_of(file))
    nodes = list(syntax.parents) if syntax is not None else []
    others = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    others |= {part for n in nodes if isinstance(n, ast.alias) for part in n.name.split(".")}
    return bool(nodes) and name not in others | _sets(file)


def _inside(method: ast.FunctionDef) -> list[ast.AST]:
    """All of a method but its decorators."""
    return [n for s in (method.args, *method.body, *filter(None, [method.returns])) for n in ast.walk(s)]


def _can_be_imported(module: Any, name: str) -> bool:
    """Whether an import gives what a module has by a name: a function can hide the module that is called as it is."""
    value = getattr(module, name, WITHIN)
    before, _, last = value.__name__.rpartition(".") if _is_module(value) else ("", "", "")
    return value is not WITHIN and (not before or getattr(sys.modules.get(before), last, None) is value)


def _is_module(value: Any) -> TypeGuard[types.ModuleType]:
    """Whether a value is a module as it is imported by its name."""
    return isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value


def _global_names(file: str, method: ast.FunctionDef) -> set[str]:
    """The names that a method, and what is defined in it, reads of its file or of Python itself."""
    alone = ast.Module([ast.ClassDef("C", [], [], [method], [], **_NO_PARAMETERS)], [])
    [table] = symtable.symtable(ast.unparse(ast.fix_missing_locations(alone)), file, "exec").get_children()
    ahead, found = [t for t in table.get_children() if t.get_name() == method.name], set[str]()
    for inner in ahead:  # which grows
        ahead += inner.get_children()
        found |= {symbol.get_name() for symbol in inner.get_symbols() if symbol.is_global()}
    return found


def _beside(method: ast.FunctionDef) -> set[str]:
    """The names in its defaults and annotations, which Python reads where the class is defined."""
    outside: list[ast.AST] = [method.args, *filter(None, [method.returns])]
    return {n.id for outer in outside for n in ast.walk(outer) if isinstance(n, ast.Name)}


def _names_in_class(file: str, kind: str) -> set[str]:
    """What the class itself binds, or the function that something is defined in."""
    node = _home_in(text_of(file), kind)
    own = [s for s in (node.body if node is not None else []) if not isinstance(s, (ast.FunctionDef, ast.ClassDef))]
    bound = {n.id for s in own for n in ast.walk(s) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    return bound | {getattr(s, "name", "") for s in (node.body if node is not None else [])}


def _is_private(name: str) -> bool:
    """Whether Python reads a name in a class as another one."""
    return name.startswith("__") and not name.endswith("__")


@lru_cache(maxsize=256)
def _sets(file: str) -> frozenset[str]:
    """The names of a file that its functions give other values while it runs."""
    syntax = syntax_of(text_of(file))
    return frozenset(n for s in (syntax.parents if syntax else ()) if isinstance(s, ast.Global) for n in s.names)


def text_of(file: str) -> str:
    """A file's text, as it was when it was loaded."""
    return "".join(linecache.getlines(file))


def method_in(source: str, kind: str, name: str) -> ast.FunctionDef | None:
    """A method of a class in a text, or a function at its top, if `kind` is empty; the last of that name."""
    syntax = syntax_of(source)
    node = _home_in(source, kind) if kind else None if syntax is None else syntax.tree
    found = [n for n in (node.body if node is not None else ()) if isinstance(n, ast.FunctionDef) and n.name == name]
    return found[-1] if found else None


def _home_in(source: str, kind: str) -> ast.ClassDef | ast.FunctionDef | None:
    """The class of a name in a text, `Outer.Inner`; or the function, `outer.<locals>`."""
    syntax = syntax_of(source)
    body, found = [] if syntax is None else syntax.tree.body, None
    parts = kind.split(".")
    for part, after in zip(parts, [*parts[1:], ""], strict=True):
        if part != WITHIN_FUNCTION[1:]:
            sort = ast.FunctionDef if after == WITHIN_FUNCTION[1:] else ast.ClassDef
            found = next((n for n in reversed(body) if isinstance(n, sort) and n.name == part), None)
            body = [] if found is None else found.body
    return found


# ---------------------------------------------------------------------------------------------- what is written


def written(owners: Iterable[Owner], texts: Mapping[str, str], taken: Mapping[str, Meaning]) -> tuple[Written, ...]:
    """The classes that have these methods, each with those of them, from the marked `texts` by module; functions come
    first. Their names are none of those `taken`, unless they mean the same, and one name means one thing in all of them."""
    by_kind: dict[tuple[str, str], list[str]] = {}
    functions: list[tuple[str, str]] = []
    for owner in dict.fromkeys(owners):
        if owner.kind:
            by_kind.setdefault((owner.module, owner.kind), []).append(owner.method)
        else:
            functions.append((owner.module, owner.method))
    words = {word for text in texts.values() for word in re.findall(r"\w+", text)}
    names = _Names(taken, words, sorted(functions))
    alone = [_function(*key, texts[key[0]], names) for key in sorted(functions)]
    return (*alone, *(_class(*key, methods, texts[key[0]], names) for key, methods in sorted(by_kind.items())))


class _Names:
    """The names of a file at its top, each with what it means: (a module, "") or (a module, a name in it); None for what is
    defined there. `functions` are those of the latter that are of a module, by its name and theirs there; `called` are those of
    them that the name means wherever it stands."""

    def __init__(self, taken: Mapping[str, Meaning], words: Iterable[str], functions: Sequence[tuple[str, str]] = ()) -> None:
        self.meant, self.words = dict.fromkeys(dir(builtins)) | dict(taken), frozenset(words)
        files = {module: (sys.modules[module].__file__ or "") if module else "" for module, _ in functions}
        only = {(module, name): not module or is_only_called(files[module], name) for module, name in functions}
        self.functions = {key: self.new(key[1] if called else f"marked_{key[1]}", None) for key, called in only.items()}
        self.called = {key: name for key, name in self.functions.items() if only[key]}
        self.there = {*self.functions.values(), *(name for name, meaning in taken.items() if meaning is not None)}

    def new(self, name: str, meaning: Meaning) -> str:
        """A name like this one that is free; another one is not in any of the texts either."""
        found = name if name not in self.meant else unused([name], {*self.meant, *self.words})
        self.meant[found] = meaning
        return found

    def of(self, module: str, name: str = "") -> str:
        """What to call a module, or what it calls `name`."""
        if (module, name) in self.called:
            return self.called[module, name]
        value = getattr(sys.modules[module], name) if name else sys.modules[module]
        if _is_module(value):
            meaning = value.__name__, ""
        else:
            meaning = (_home(value, name) or module), name
        known = next((n for n, meant in self.meant.items() if meant == meaning), None)
        return known or self.new(name or module.rpartition(".")[2], meaning)

    def import_of(self, name: str) -> str:
        """The line that imports a name."""
        module, there = self.meant[name] or ("", "")
        before, _, last = (module, "", there) if there else module.rpartition(".")
        line = f"from {before} import {last}" if before else f"import {last}"
        return line if last == name else f"{line} as {name}"


def _home(value: Any, name: str) -> str:
    """Where a class of PyTorch's or the standard library's is defined; empty for others."""
    module = str(getattr(value, "__module__", ""))
    public = not any(part.startswith("_") for part in module.split("."))
    known = module.partition(".")[0] in {"torch", *sys.stdlib_module_names}
    return module if public and known and getattr(sys.modules.get(module), name, None) is value else ""


def meanings(lines: Iterable[str]) -> dict[str, Meaning]:
    """What the names mean that these lines import."""
    found: dict[str, Meaning] = {}
    for node in ast.walk(ast.parse("\n".join(lines))):
        for alias in getattr(node, "names", ()):
            if isinstance(node, ast.ImportFrom):
                given: Any = getattr(sys.modules.get(node.module or ""), alias.name, None)
                known = not node.level and _is_module(given)
                found[alias.asname or alias.name] = (str(given.__name__), "") if known else (node.module or "", alias.name)
            else:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0],
                    "",
                )
    return found


def _class(module: str, kind: str, methods: Sequence[str], text: str, names: _Names) -> Written:
    if kind.endswith(WITHIN_FUNCTION):
        return _around_closures(module, kind, methods, text, names)
    own = names.new(kind.rpartition(".")[2], None)
    code, imports = _code(module, kind, methods, text, names)
    return Written(f"class {own}:\n{code}", own, (module, kind), imports, about(module) if module else "")


def _around_closures(module: str, kind: str, methods: Sequence[str], text: str, names: _Names) -> Written:
    """Functions that are defined in another one, in one that is given what they have of that."""
    own, file = names.new(kind.partition(".")[0], None), sys.modules[module].__file__ or ""
    code, imports = _code(module, kind, methods, text, names)
    given = ", ".join(sorted({n for method in methods for n in free_names(file, kind, method)}))
    inner = textwrap.indent(textwrap.dedent(code), "    ")
    told = f"def {own}({given}):\n{inner}\n\n    return {', '.join(methods)}"
    return Written(told, own, (module, kind), imports, about(module))


def _function(module: str, name: str, text: str, names: _Names) -> Written:
    code, imports = _code(module, "", [name], text, names)
    own = names.functions[module, name]
    code = code if own == name else re.sub(rf"\bdef {name}\b", f"def {own}", code, count=1)
    return Written(code, own, (module, name), imports, about(module), is_decorated(Owner(module, "", name)))


def _code(module: str, kind: str, methods: Sequence[str], text: str, names: _Names) -> tuple[str, tuple[str, ...]]:
    """The text of methods of a class, or of a function, and the lines that import what it needs."""
    file = (sys.modules[module].__file__ or "") if module else ""
    called = {n: names.of(module, n) for method in methods for n in (needs(file, kind, method) or () if file else ())}
    found = sorted((m for m in (method_in(text, kind, name) for name in methods) if m is not None), key=lambda m: m.lineno)
    code = rename_names("\n\n".join(_lines_of(text, m) for m in found), {n: to for n, to in called.items() if n != to})
    lines = {names.import_of(n) for n in called.values() if n not in names.there}
    return code, tuple(sorted(lines))


def _lines_of(text: str, method: ast.FunctionDef) -> str:
    """A method's lines, as if its class stood at the top, without its docstring: who has to read it has the library's."""
    lines = text.replace("\r\n", "\n").split("\n")
    told = _docstring(method, lines)
    return "\n".join(lines[i] for i in range(method.lineno - 1, method.end_lineno or 0) if i not in told)


def lines_of(owner: Owner, file: str) -> int:
    """How many lines a copy of something that stands in a file has."""
    method = method_in(text_of(file), owner.kind, owner.method)
    return 0 if method is None else len(_lines_of(text_of(file), method).splitlines())


def _docstring(method: ast.FunctionDef, lines: Sequence[str]) -> range:
    """Those of a text's lines that a method's docstring has to itself, with blank ones behind it."""
    first, after = method.body[0], method.body[1:2]
    end = first.end_lineno or 0
    alone = bool(after) and end < after[0].lineno and not lines[first.lineno - 1].encode()[: first.col_offset].strip()
    if not alone or not is_text(first) or is_text(after[0]):  # the text behind it would be the docstring
        return range(0)
    while not lines[end].strip():
        end += 1
    return range(first.lineno - 1, end)


@lru_cache(maxsize=64)
def about(module: str) -> str:
    """Where a module comes from: its name, and the package's, with version and licence; of a file of the user's just the name,
    which may be that of a package, too."""
    top, dot, _ = module.partition(".")
    if not dot:
        return module
    for package in dict.fromkeys(metadata.packages_distributions().get(top, ())):
        told = metadata.metadata(package)
        licences = [told[key] for key in LICENSES if told[key] and "\n" not in told[key]]
        licences += [c.rpartition(" :: ")[2] for c in told.get_all("Classifier") or () if c.startswith("License ::")]
        version = metadata.version(package).partition("+")[0]
        return f"{module} ({package} {version}{', ' + licences[0] if licences else ''})"
    return module
