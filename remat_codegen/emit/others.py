"""Packages beside torch and the standard library that a user's file imports: a generated file may import them as well, if the
file uses them within functions only, which loading it does not call. What else may happen as a file is loaded (a class is
registered somewhere, a package's function replaced, a number drawn) would happen twice, or not in the copy.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence

OURS = frozenset({"torch", "__future__", *sys.stdlib_module_names})  # what any generated file may import from
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
AS_CLASSES_ARE_MADE = frozenset("__init_subclass__ __set_name__ __class_getitem__ __prepare__ __instancecheck__".split())
NUMBERS = frozenset(  # of NumPy, which may be used anywhere
    "pi e inf nan newaxis sqrt log log2 log10 log1p exp expm1 power ceil floor abs prod sum mean max min maximum minimum array "
    "asarray arange linspace logspace zeros ones full eye sin cos tan float16 float32 float64 int8 int16 int32 int64 uint8 "
    "bool_ ndarray dtype".split()
)


@functools.cache
def is_installed(package: str) -> bool:
    """Whether a package was installed beside this Python's own, so that it is there under this name wherever the model is."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    if spec is None or not spec.origin or not os.path.isabs(spec.origin):
        return False
    homes = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()}
    whole = os.path.basename(spec.origin).startswith("__init__.")
    return os.path.dirname(os.path.dirname(spec.origin) if whole else spec.origin) in homes


def imported(statements: Iterable[ast.stmt]) -> bool:
    """Whether one of these statements is an import of another package."""
    return any(map(_of_others, statements))


def only_within_functions(statements: Sequence[ast.stmt]) -> bool:
    """Whether all of a file's statements that run use other packages within functions, which none of them calls."""
    imports = [s for s in statements if isinstance(s, (ast.Import, ast.ImportFrom)) and _of_others(s)]
    rest = [s for s in statements if s not in imports]
    names = {a.asname or a.name: _package(node, a) for node in imports for a in node.names}
    loaded = list(_when_loaded(rest))
    if not all(map(_is_plain, imports)) or any(_looks_elsewhere(node) for node in loaded):
        return False
    return all(_are_numbers(nodes, names) for nodes in (loaded, *map(list, map(ast.walk, _reached(loaded)))))


def _package(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    return (alias.name if isinstance(node, ast.Import) else node.module or "").partition(".")[0]


def _of_others(node: ast.AST) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom)) and any(_package(node, alias) not in OURS for alias in node.names)


def _is_plain(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether an import gives each name its meaning by itself: `import a.b` needs others beside it."""
    if isinstance(node, ast.ImportFrom):
        return not any(alias.name == "*" for alias in node.names)
    return all(alias.asname or "." not in alias.name for alias in node.names)


def _when_loaded(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """What runs as statements are loaded: all but the bodies of functions. Those of lambdas may."""
    for node in nodes:
        yield node
        if isinstance(node, FUNCTIONS):
            yield from _when_loaded([*node.decorator_list, node.args, *filter(None, [node.returns])])
        else:
            yield from _when_loaded(ast.iter_child_nodes(node))


def _looks_elsewhere(node: ast.AST) -> bool:
    """Whether loading a file sets the environment, which a package may read as it is imported; or runs what no call shows."""
    if isinstance(node, ast.ClassDef) and node.keywords:
        return True
    names = {getattr(node, "attr", ""), getattr(node, "id", ""), getattr(node, "name", "")}
    return bool(names & (AS_CLASSES_ARE_MADE | {"environ", "putenv"}))


def _reached(loaded: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """The functions and classes of a file that loading it may call: all that it names, and what these name."""
    defined: dict[str, list[ast.AST]] = {}
    for node in loaded:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            defined.setdefault(node.name, []).append(node)
    bases = {id(n) for node in loaded if isinstance(node, ast.ClassDef) for base in node.bases for n in ast.walk(base)}
    names = [n.id for n in loaded if isinstance(n, ast.Name) and id(n) not in bases]
    known = set[str]()
    for name in names:  # which grows
        if name in defined and name not in known:
            known.add(name)
            for node in defined[name]:
                yield node
                names += [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]


def _are_numbers(nodes: Sequence[ast.AST], names: dict[str, str]) -> bool:
    """Whether what is done here with other packages gives numbers, and none is imported."""
    numbers = {id(n.value) for n in nodes if isinstance(n, ast.Attribute) and _is_number(n, names)}
    return not any(map(_of_others, nodes)) and all(
        id(n) in numbers or n.id not in names for n in nodes if isinstance(n, ast.Name)
    )


def _is_number(node: ast.Attribute, names: dict[str, str]) -> bool:
    of_numpy = isinstance(node.value, ast.Name) and names.get(node.value.id) == "numpy"
    return of_numpy and node.attr in NUMBERS and isinstance(node.ctx, ast.Load)
