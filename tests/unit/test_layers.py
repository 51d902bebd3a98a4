"""Imports point one way: errors < trace < graph < profile < schedule < planners; emit sees a schedule, never who made it."""

from __future__ import annotations

import ast
import graphlib
import sys
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = "remat_codegen"
FOLDER = ROOT / PACKAGE

# What each room may import of the package: modules, and rooms with all that is in them; its own modules anyway. A line for a
# module goes before that of its room.
ALLOWED = {
    "errors": (),
    "torch_seam": ("errors",),
    "files": ("errors",),
    "runtime": (),
    "parts": (),
    "profile.devices": ("errors",),  # a table, which rooms before it read, too
    "ask": ("errors", "profile.devices", "torch_seam", "trace.absent", "trace.attributes", "trace.sizes"),
    "trace.training": (),
    "trace": ("errors", "profile.devices", "runtime", "torch_seam"),
    "graph": ("errors", "torch_seam", "trace"),
    "profile.store": (),
    "profile": ("errors", "graph", "torch_seam", "trace"),
    "schedule": ("graph", "profile.costs"),
    "planners": ("graph", "profile.costs", "schedule"),
    "emit": ("errors", "graph", "header", "profile.costs", "runtime", "schedule", "torch_seam", "trace"),
    "marked": (
        *(
            "ask.budget",
            "emit",
            "errors",
            "graph",
            "header",
            "parts",
            "profile.costs",
            "readback.values",
            "schedule",
            "torch_seam",
        ),
        "trace",
    ),
    "readback": (
        *("ask.budget", "emit", "errors", "graph", "profile.costs", "schedule", "show.results", "torch_seam", "trace"),
    ),
    "page": (
        *("ask.budget", "emit.templates", "graph", "profile.costs", "readback.interpreter", "readback.summary", "schedule"),
        "trace",
    ),
    "header": ("ask.budget", "ask.request", "errors", "graph", "schedule", "trace.sizes"),
    "show.plan_tables": ("ask.budget", "planners.base", "run", "show"),  # of what `run` found
    "show.picture": ("errors", "run"),
    "show.page_table": ("ask.budget", "page.data", "show"),
    "show": ("ask.budget", "graph", "profile.costs", "schedule"),
    "advice": ("ask.budget", "graph", "header", "planners", "profile.costs", "schedule", "show.results", "trace"),
    "verify.fresh_runner": (),
    "verify": ("ask", "errors", "header", "profile", "show.results", "torch_seam", "trace"),
}
SEES_EVERYTHING = {"__main__", "api", "cli", "fit", "integrations", "run"}
MOST_AT_THE_ROOT = 8
RUNTIME_PACKAGES = {"torch", "__future__", *sys.stdlib_module_names}


def module_name(path: Path) -> str:
    parts = path.relative_to(FOLDER).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(FOLDER.rglob("*.py"))}


def imports(path: Path) -> list[tuple[int, str]]:
    """Every import of a file, those inside functions too: (line, dotted name)."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def within_package(name: str) -> str | None:
    """The module of the package that a dotted name imports from: remat_codegen.graph.ir.Graph is graph.ir."""
    if name.split(".")[0] != PACKAGE:
        return None
    parts = name.split(".")[1:]
    while parts and ".".join(parts) not in MODULES:
        parts.pop()
    return ".".join(parts)


def covers(allowed: str, module: str) -> bool:
    return module == allowed or module.startswith(f"{allowed}.")


@pytest.mark.parametrize("module", [m for m in MODULES if m and m.split(".")[0] not in SEES_EVERYTHING])
def test_imports_point_one_way(module):
    room = next((room for room in ALLOWED if covers(room, module)), None)
    assert room is not None, f"say in {Path(__file__).name} what {module} may import"
    own = [(line, within_package(name)) for line, name in imports(MODULES[module])]
    home = () if room == module and "." in room else (module.split(".")[0],)
    wrong = [(line, name) for line, name in own if name and not any(covers(a, name) for a in (*ALLOWED[room], *home))]
    assert not wrong, f"{MODULES[module].relative_to(ROOT)} imports what its layer must not see: {wrong}"


def test_no_module_imports_itself_by_way_of_others():
    """Imports that stand inside of functions, or are there for types alone, count as others do."""
    known = {m: {within_package(name) for _, name in imports(path)} - {None, m} for m, path in MODULES.items() if m}
    graphlib.TopologicalSorter(known).prepare()  # raises CycleError, which names them


def test_the_root_stays_small():
    assert len([m for m, path in MODULES.items() if path.parent == FOLDER]) <= MOST_AT_THE_ROOT


@pytest.mark.parametrize("module", ["runtime", "parts", "ask.drawing", "trace.training", "verify.fresh_runner"])
def test_what_runs_without_the_package_needs_nothing_but_torch(module):
    assert {name.split(".")[0] for _, name in imports(MODULES[module])} <= RUNTIME_PACKAGES


def test_the_command_line_starts_without_torch():
    """Errors in options, and --help, come at once: what is heavy is imported inside functions."""
    verbs = {m for m in MODULES if m.startswith("cli.")}
    light = {"ask.budget", "ask.optimizers", "ask.request", "errors", "files", "profile.devices", ""} | verbs
    for module in verbs:
        top = [n for n in ast.parse(MODULES[module].read_text()).body if isinstance(n, ast.ImportFrom)]
        assert {within_package(f"{n.module}.{alias.name}") for n in top for alias in n.names} - {None} <= light
    for name in light - verbs - {""}:
        assert not any(n.split(".")[0] in ("torch", "rich", "libcst", "black", "mip") for _, n in imports(MODULES[name]))
