"""Files of the second edition from tables that nobody planned: any candidates as parts, with any options."""

from __future__ import annotations

import importlib.util
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import zoo
from emitted import load, model_of

from remat_codegen.ask.request import Request
from remat_codegen.ask.target import Target, TargetKind
from remat_codegen.graph.ir import Graph
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.marked.candidates import Row
from remat_codegen.marked.choose import OPTIONS, Chooser, parts_of
from remat_codegen.marked.demand import Again
from remat_codegen.marked.evaluations import Vertex
from remat_codegen.marked.found import Found
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.costs import Profile
from remat_codegen.profile.measure import Measured
from remat_codegen.run import marked, marked_text, tabling
from remat_codegen.run.priced import measured_costs
from remat_codegen.run.traced import Traced
from remat_codegen.schedule import Schedule, simulate, validate
from remat_codegen.schedule.order import order_of
from remat_codegen.trace import Autocast
from remat_codegen.verify.beside import Comparison, compare


def traced_zoo(name: str) -> Traced:
    """A member of the zoo with its graph."""
    module, args, kwargs = zoo.build(name)
    return traced_module(module, args, kwargs, Path(zoo.__file__))


def traced_module(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], path: Path, autocast: Autocast = ()
) -> Traced:
    model = model_of(module, args, kwargs, autocast)
    name = type(module).__name__
    target = Target(f"{path.name}:{name}", path, path.read_text(), name, TargetKind.CLASS, module, args, kwargs)
    return Traced(target, model)


def imported_file(path: Path) -> ModuleType:
    """A user's file as a module, as a script beside it has it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


DRAWN = [option for option in OPTIONS if option[1] is not Again.FOURFOLD]  # some of THRICE are that, instead


def parts_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves apart what could be one part: there is more to look at."""
    monkeypatch.setattr(Chooser, "joined", lambda *given: ())


def known_times(monkeypatch: pytest.MonkeyPatch, **slow: int) -> None:
    """Has operations take as long on all machines: so many nanoseconds those that are named by their names, others few."""

    def costs(*given: Any) -> Profile:
        times = (slow.get(node.name.partition("_")[0], 10_000) for node in given[1].graph.nodes)
        return replace(measured_costs(*given), time_ns=tuple(times))

    monkeypatch.setattr(marked, "measured_costs", costs)


def carry_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has classes stay in their files, as if these could not be carried."""
    for module in (tabling, marked_text):
        monkeypatch.setattr(module, "carried_sources", lambda traced: {})


def found_in(traced: Traced) -> Found:
    """What can be a part."""
    return tabling.found_of(traced)


def random_rows(found: Found, rng: random.Random, share: float) -> tuple[Row[Vertex], ...]:
    """Some candidates with some options: apart from each other, or one in the other."""
    rows: list[Row[Vertex]] = []
    for candidate in rng.sample(found.candidates.all, len(found.candidates.all)):
        row = Row(candidate, *rng.choice(DRAWN))
        row = replace(row, again=Again.FOURFOLD) if row.again is Again.THRICE and not row.late and len(rows) % 2 else row
        if rng.random() < share and _nests([*rows, row]):
            rows.append(row)
    return tuple(rows)


def _nests(rows: list[Row[Vertex]]) -> bool:
    try:
        parts_of(rows)
    except ValueError:
        return False
    return True


def schedule_from(graph: Graph, found: Found, rows: tuple[Row[Vertex], ...]) -> Schedule:
    """The step that rows lead to."""
    schedule = found.holders.schedule([part for _, part in parts_of(rows)])
    validate(graph, schedule)
    return schedule


def text_of(traced: Traced, found: Found, rows: tuple[Row[Vertex], ...]) -> str:
    """The file for a table."""
    plan, brought = as_plan(traced, found, rows)
    return marked_text.emit(traced, plan, Request(traced.target.spec, "1GiB", Path("out.py"), edition=2), brought)


def as_plan(traced: Traced, found: Found, rows: tuple[Row[Vertex], ...]) -> tuple[SavedPlan, tabling.Brought]:
    """A table, and a plan of its steps."""
    schedule = schedule_from(traced.graph, found, rows)
    order = order_of(schedule)
    plan = SavedPlan(traced.graph.digest(), "test", "feasible", "1GiB", 2**30, 2**20, 2**20, 0.0, None, "cpu", order)
    return plan, tabling.Brought(found, rows, schedule, 0)


def planned_peak(traced: Traced, found: Found, rows: tuple[Row[Vertex], ...]) -> int:
    """What the simulator says of a table, with workspaces as they are."""
    profile = found.holders.costs(Measured("cpu", Cache("cpu", enabled=False)).of(traced.model))
    return simulate(traced.graph, profile, schedule_from(traced.graph, found, rows)).peak_bytes


def trained(traced: Traced, text: str, folder: Path) -> Comparison:
    """The file's training steps beside the original's."""
    target = traced.target
    loss = traced.model.record.loss
    autocast = traced.model.trace.autocast
    return compare(target.module, load(text, folder).rematerialize, target.args, target.kwargs, autocast=autocast, loss=loss)
