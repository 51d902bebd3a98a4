"""Imports point one way: errors < graph < profile < schedule < planners; emit sees a schedule, never who made it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = "remat_codegen"
FOLDER = ROOT / PACKAGE

# What each part may import of the package: modules, and packages with all that is in them.
ALLOWED = {
    "errors": (),
    "torch_seam": ("errors",),
    "budget": ("errors",),
    "optimizers": (),
    "request": ("errors", "profile.devices"),  # a table, which imports nothing but errors
    "files": ("errors",),
    "batch": ("errors", "sizes", "target", "torch_seam", "trace.absent"),
    "standing": ("budget", "errors", "graph.allocator", "optimizers", "report", "torch_seam", "trace.absent"),
    "losses": ("budget", "graph", "profile.costs", "schedule", "trace"),
    "obstacle": ("budget", "graph", "losses", "profile.costs", "schedule", "trace"),
    "inputs": ("errors", "torch_seam"),
    "target": ("errors", "inputs", "profile.devices", "torch_seam", "trace.absent"),
    "given": ("attributes", "errors", "inputs", "profile.devices", "target", "torch_seam"),
    "patched": (),
    "heartbeat": (),
    "report": ("budget", "heartbeat"),
    "notebook": ("report",),
    "tables": (),
    "memory": ("budget", "graph", "profile.costs", "schedule"),
    "runtime": (),
    "parts": (),
    "training": (),
    "fresh_runner": (),
    "fresh": ("inputs", "target", "trace", "verify", "torch_seam"),
    "stepcosts": ("profile", "training"),
    "sizes": ("errors", "torch_seam"),
    "views": (),
    "attributes": (),
    "trace": ("attributes", "errors", "profile.devices", "runtime", "sizes", "views", "trace", "training", "torch_seam"),
    "graph": ("errors", "trace", "training", "graph", "torch_seam"),
    "stored": (),
    "profile": ("errors", "trace", "graph", "profile", "stored", "torch_seam"),
    "schedule": ("graph", "profile.costs"),
    "planners": ("errors", "graph", "profile.costs", "schedule", "planners"),
    "reserve": ("graph", "profile.costs", "planners", "schedule"),
    "aswritten": ("graph", "planners", "planfile", "profile.costs", "report", "reserve", "schedule", "trace"),
    "planfile": ("budget", "errors", "graph", "schedule", "sizes"),
    "planline": ("errors", "planfile"),
    "several": ("budget", "errors", "planfile"),
    "emit": ("errors", "sizes", "trace", "graph", "profile.costs", "schedule", "runtime", "emit", "torch_seam"),
    "marked": (
        "emit",
        *("errors", "sizes", "trace", "graph", "profile.costs", "schedule", "parts", "marked", "torch_seam"),
        *("readback.values", "budget", "attributes"),
    ),
    "dynamic": ("errors", "sizes", "trace", "graph", "profile", "schedule", "planfile", "torch_seam"),
    "readback": (
        *("errors", "budget", "report", "trace", "sizes", "graph", "profile.costs", "schedule", "emit", "readback"),
        "torch_seam",
    ),
    "page": (
        *("budget", "emit.render", "graph", "page", "profile.costs", "readback.interpreter", "readback.summary", "schedule"),
        "trace",
    ),
    "verify": ("attributes", "errors", "trace", "training", "profile", "torch_seam"),
    "verification": (
        *("batch", "budget", "errors", "fresh", "planfile", "planline", "report", "several", "stepcosts"),
        *("target", "torch_seam", "trace", "training", "verify"),
    ),
}
SEES_EVERYTHING = set(
    "__main__ second functions smaller batching choosing drafts cli cli_cache cli_devices cli_explain cli_graphs cli_options "
    "pipeline lifecycle explain planning comparison measured picture report_graphs api making cli_report report_pages "
    "reporting tradeoff integrations".split()
)
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
    part = module.split(".")[0]
    assert part in ALLOWED, f"say in {Path(__file__).name} what {part} may import"
    own = [(line, within_package(name)) for line, name in imports(MODULES[module])]
    wrong = [(line, name) for line, name in own if name and not any(covers(a, name) for a in (*ALLOWED[part], module))]
    assert not wrong, f"{MODULES[module].relative_to(ROOT)} imports what its layer must not see: {wrong}"


@pytest.mark.parametrize("module", ["runtime", "parts", "training", "fresh_runner"])
def test_what_runs_without_the_package_needs_nothing_but_torch(module):
    assert {name.split(".")[0] for _, name in imports(MODULES[module])} <= RUNTIME_PACKAGES


def test_the_command_line_starts_without_torch():
    """Errors in options, and --help, come at once: what is heavy is imported inside functions."""
    verbs = {"cli", "cli_cache", "cli_devices", "cli_explain", "cli_graphs", "cli_options", "cli_report"}
    light = {"budget", "errors", "files", "optimizers", "profile.devices", "request", ""} | verbs
    for module in verbs:
        top = [n for n in ast.parse(MODULES[module].read_text()).body if isinstance(n, ast.ImportFrom)]
        assert {within_package(f"{n.module}.{alias.name}") for n in top for alias in n.names} - {None} <= light
    for name in light - verbs - {""}:
        assert not any(n.split(".")[0] in ("torch", "rich", "libcst", "black", "mip") for _, n in imports(MODULES[name]))
