"""A user's file: what its names may stand for, and what each statement at its top may change as the file is loaded."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from remat_codegen.emit.constants import constants_in
from remat_codegen.emit.effects import (
    CLASS,
    FRESH,
    PARAMETER,
    QUIET_FUNCTIONS,
    Effects,
    class_values,
    effects_of,
    first_name,
    roots,
)
from remat_codegen.emit.statements import Statement

OURS = frozenset({"torch", *sys.stdlib_module_names})
RUNS_LATER = frozenset("atexit signal threading unittest multiprocessing argparse faulthandler concurrent asyncio".split())


@dataclass(slots=True)
class Reached:
    """What the functions and classes do that some code calls, with those that they mention. `writes` are names of the file, and
    PARAMETER where they set attributes of what they are given."""

    writes: set[str] = field(default_factory=set)
    effects: list[Effects] = field(default_factory=list)


class File:
    """The statements of a file, and what each does to the others."""

    def __init__(self, statements: Sequence[Statement]) -> None:
        self.statements = statements
        self.running = [s for s in statements if not s.is_main_guard]
        self.imports = {n: what for s in self.running for n, what in s.bindings.items() if what}
        self.definitions: dict[str, list[ast.AST]] = {}
        for name, node in (d for s in self.running for d in _definitions(s.parts)):
            self.definitions.setdefault(name, []).append(node)
        self.constants = constants_in([p for s in self.running for p in s.parts], self.imports)
        self.loaded = {s: effects_of(s.parts) for s in self.running}
        self.binds: dict[str, set[str]] = {}
        for name, what in ((n, w) for found in self.loaded.values() for n, w in found.binds.items()):
            self.binds.setdefault(name, set()).update(what)
        self.insides: dict[str, Effects] = {}
        self.reaches = {s: self._reached(self.loaded[s]) for s in self.running}

    def package_of(self, node: ast.expr) -> str:
        """The package that what an expression begins with was imported from; empty for what was not."""
        return self.imports.get(first_name(node), "").partition(".")[0]

    # ------------------------------------------------------------------ what names stand for

    def objects(self, roots: Iterable[str]) -> set[str]:
        """The names whose objects these roots may be, with "f()" for an instance of a class f."""
        found = set[str]()

        def leads_to(root: str, of_class: bool) -> Iterable[str]:
            name = bare(root)
            if name == root:
                found.add(name)
                return self.binds.get(name, ())
            if self.is_class(name) and not root.endswith(".given"):
                found.add(name if of_class else f"{name}()")
            elif name in self.definitions and root == f"{name}()":
                return self._returns(name)
            elif name not in self.imports:
                found.add(name)
                return [alike(root, r) for r in self.binds.get(name, ())]
            return ()

        _follow(roots, leads_to)
        return found

    def is_class(self, name: str) -> bool:
        """Whether a name is that of a class of the file."""
        return any(isinstance(d, ast.ClassDef) for d in self.definitions.get(name, ()))

    def _inside(self, name: str) -> Effects:
        """What a function or class of the file does when it is called."""
        if name not in self.insides:
            self.insides[name] = effects_of(self.definitions[name], inside=True)
        return self.insides[name]

    def _returns(self, name: str) -> set[str]:
        """The roots of what a function of the file returns."""
        return _in_function(self._inside(name), name, self._inside(name).returned) - {PARAMETER}

    def _writes(self, name: str) -> set[str]:
        """The names whose objects a function or class of the file changes; PARAMETER where it sets attributes of what it is
        given."""
        inside = self._inside(name)
        marked = _in_function(inside, name, inside.stores)
        found = self.objects(marked | inside.outside)
        for root, method in inside.methods:
            found |= self._changed_by(_in_function(inside, name, [root]) - {PARAMETER}, method)
        return {w for w in found if not w.endswith("()")}

    def _reached(self, loaded: Effects) -> Reached:
        found, seen = Reached(), set[str]()
        ahead = set(loaded.calls)
        ahead |= {o for r, _ in loaded.methods for o in self.objects([r]) if o.endswith("()") or o in self.definitions}
        ahead |= self._metaclasses(loaded.bases, set())
        ahead = {o.removesuffix("()") for o in self.objects(ahead)}
        while new := (ahead - seen) & set(self.definitions):
            seen |= new
            for name in sorted(new):
                found.writes |= self._writes(name)
                found.effects.append(self._inside(name))
            ahead = {o.removesuffix("()") for name in new for o in self.objects(_may_be_called(self._inside(name)))}
            ahead |= {o for name in new for o in self._inside(name).mentions if not self.is_class(o)}
        return found

    def _metaclasses(self, bases: Iterable[str], seen: set[str]) -> set[str]:
        """The metaclasses that these classes of the file were made with, which run when a class is made of them."""
        found = set[str]()
        for base in set(bases) - seen:
            seen.add(base)
            for node in self.definitions.get(base, ()):
                if isinstance(node, ast.ClassDef):
                    found |= {first_name(k.value) for k in node.keywords}
                    found |= self._metaclasses([first_name(b) for b in node.bases], seen)
        return found

    # ------------------------------------------------------------------ what statements change

    def changes(self, statement: Statement) -> set[str]:
        """The names whose objects a statement may change itself."""
        loaded = self.loaded[statement]
        changed = self.objects(loaded.stores) | self.objects(n for n in loaded.calls if n not in self.definitions)
        for root, method in loaded.methods:
            changed |= self._changed_by([root], method)
        changed |= {c for root, name in loaded.through for c in self._sharing(root, name)}
        return {o for o in changed if not o.endswith("()")} - set(self.imports) - self.constants

    def _sharing(self, root: str, name: str) -> set[str]:
        """The classes of the file whose instances a root may be, and which hold what they share under a name."""
        kinds = {o.removesuffix("()") for o in self.objects([root]) if o.endswith("()")}
        kinds |= {first_name(b) for k in kinds for d in self.definitions[k] if isinstance(d, ast.ClassDef) for b in d.bases}
        classes = [d for k in kinds for d in self.definitions.get(k, ()) if isinstance(d, ast.ClassDef)]
        return {c.name for c in classes if (name, True) in class_values(c)}

    def patches(self, statement: Statement) -> list[tuple[set[str], ast.expr | None]]:
        """The names whose objects' attributes a statement sets, or the functions that it calls, each with the value."""
        found = [(self.objects(names), value) for names, value in self.loaded[statement].patches]
        for effects in self.reaches[statement].effects:
            found += [(self.objects(_in_function(effects, CLASS, names)), value) for names, value in effects.patches]
        return found

    def _changed_by(self, roots: Iterable[str], method: str) -> set[str]:
        """The names whose objects a method may change: of those of the file's classes, what they change is read from them."""
        return {o for o in self.objects(roots) if not self._is_own_method(o, method)}

    def _is_own_method(self, name: str, method: str) -> bool:
        """Whether something is a class of the file with such a method: what that changes is read from it."""
        classes = [d for d in self.definitions.get(name, ()) if isinstance(d, ast.ClassDef)]
        own = any(isinstance(s, ast.FunctionDef) and s.name == method for c in classes for s in c.body)
        return own or any(self._is_own_method(first_name(b), method) for c in classes for b in c.bases if first_name(b) != name)

    def hands(self, statement: Statement) -> tuple[set[str], set[str]]:
        """The names whose objects a statement hands to functions, and those that it hands to what may mark them: to functions
        of the file that set attributes, and to those of libraries whose results nobody takes."""
        loaded, reach = self.loaded[statement], self.reaches[statement]
        handed, marked = set[str](), set[str]()
        marks = PARAMETER in reach.writes | self.objects(loaded.stores)  # those of a lambda
        for callee, given in loaded.handed:
            if callee not in FRESH:
                handed |= self.objects(given)
                marked |= self.objects(given) if marks and callee.partition(".")[0] not in self.imports else set()
        for call in loaded.commands:
            if self.package_of(call.func) in OURS - QUIET_FUNCTIONS - RUNS_LATER:
                marked |= {o for a in (*call.args, *(k.value for k in call.keywords)) for o in self.objects(roots(a))}
        return handed, marked


def _may_be_called(effects: Effects) -> set[str]:
    """The roots of what some code calls, hands to a function, or calls a method of."""
    return effects.calls | {r for r, _ in effects.methods} | {r for _, given in effects.handed for r in given}


def bare(root: str) -> str:
    """The name in a root: x of "x()", "x.()", "x.given", "~x"."""
    return root.removeprefix("~").removesuffix(".given").removesuffix(".()").removesuffix("()")


def alike(root: str, other: str) -> str:
    """Another root, as what is made of it as `root` is of its own name: "y.()" for y and "x.()"."""
    return other if other.endswith((")", ".given")) else other + root.removeprefix("~").removeprefix(bare(root))


def _in_function(effects: Effects, name: str, roots: Iterable[str]) -> set[str]:
    """Roots in a function or class as roots of the file: what locals stand for, and PARAMETER for what it is given."""
    found = set[str]()

    def leads_to(root: str, of_class: bool) -> Iterable[str]:
        local = bare(root)
        if local in (PARAMETER, CLASS) or (local == "self" and of_class):
            found.add(PARAMETER if local == PARAMETER else name)
        elif local in ("self", "super") or (local.startswith("self.") and local not in effects.binds):
            return ()
        elif local not in effects.binds or local in effects.outside:
            found.add(f"~{root}" if of_class else root)
        elif root != f"{local}()":  # what a local function returns is seen where it is defined
            return [alike(root, r) for r in effects.binds[local]]
        return ()

    _follow(roots, leads_to)
    return found


def _follow(roots: Iterable[str], leads_to: Callable[[str, bool], Iterable[str]]) -> None:
    """Asks of each root which others it leads to, `leads_to(root, of_class)`, once; "~x" leads to the class of x."""
    ahead, seen = [(root, False) for root in roots], set[tuple[str, bool]]()
    while ahead:
        here = root, of_class = ahead.pop()
        if here not in seen:
            seen.add(here)
            ahead += [(root[1:], True)] if root.startswith("~") else [(r, of_class) for r in leads_to(root, of_class)]


def _definitions(nodes: Iterable[ast.AST]) -> list[tuple[str, ast.AST]]:
    """The functions and classes that statements define at the top of the file, in branches of them, too."""
    found: list[tuple[str, ast.AST]] = []
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.append((node.name, node))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            found += [(t.id, node.value) for t in node.targets if isinstance(t, ast.Name)]
        elif not isinstance(node, ast.expr):
            found += _definitions(ast.iter_child_nodes(node))
    return found
