"""From a model and an order of its nodes to a generated module that has been run against the original."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import zoo

from remat_codegen.emit.render import Original, render
from remat_codegen.graph.ir import Graph, Kind
from remat_codegen.graph.record import record
from remat_codegen.graph.simplify import Model, simplify
from remat_codegen.header.heading import Facts
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.readback.interpreter import read_back
from remat_codegen.run.dynamic import growth, trace_sizes, with_least
from remat_codegen.runtime import structure
from remat_codegen.schedule import Schedule, validate, with_forgets
from remat_codegen.schedule.order import order_of
from remat_codegen.verify.beside import Comparison, compare

PLAN = SavedPlan("0", "test", "FEASIBLE", "1GiB", 2**30, 2**20, 2**20, 0.0, None, "cpu", ())
FACTS = Facts("0", "remat-codegen model.py:Model", "0" * 64, PLAN)


def model_of(module, args, kwargs, autocast=(), asked=()) -> Model:
    """The graph of a module that is called under `autocast`, and with other sizes where they are `asked` for."""
    traced = trace_sizes(module.train(), args, kwargs, autocast, asked)
    recorded = record(traced)
    traced = with_least(module, args, kwargs, traced, recorded, asked) if asked else traced
    return simplify(traced, recorded)


@cache
def zoo_model(name: str):
    """module, args, kwargs, Model of a member of the zoo."""
    module, args, kwargs = zoo.build(name)
    return module, args, kwargs, model_of(module, args, kwargs)


def droppable(graph: Graph) -> list[int]:
    """Values and phantoms that can be rebuilt."""
    return [d for n in graph.forward_nodes if n.recomputable for d in n.writes if d not in graph.outputs]


def reads_back(model, schedule, text, earlier: bool = False) -> None:
    """Asserts that a file does what a schedule says; `earlier` allows rebuilds where autograd lets the file wait for them."""
    found = read_back(text, model)
    assert found.complete and found.problems == ()
    validate(model.graph, found.schedule)
    have, want = order_of(found.schedule), order_of(schedule)
    assert (sorted(have) == sorted(want)) if earlier else (have == want)


def rebuilding(graph: Graph, dropped: set[int]) -> Schedule:
    """A schedule that forgets `dropped` before the backward pass and rebuilds each just in time."""
    producers = graph.producers
    order = [n.id for n in graph.nodes[: graph.loss + 1]]
    alive = {d for n in graph.nodes[: graph.loss + 1] for d in n.writes} - dropped

    def need(data: int) -> None:
        if data in alive:
            return
        node = graph.nodes[producers[data][0]]
        for read in node.reads:
            need(read)
        order.append(node.id)
        alive.update(node.writes)

    for node in graph.backward_nodes:
        for read in node.reads:
            if graph.data[read].kind is not Kind.GRADIENT:
                need(read)
        order.append(node.id)
        alive.update(node.writes)
    schedule = with_forgets(graph, order)
    validate(graph, schedule)
    return schedule


def emit(module, args, kwargs, model: Model, schedule: Schedule, source: str | None) -> str:
    """The generated file's text."""
    name = type(module).__name__
    facts = replace(FACTS, growth=growth(model, schedule)) if model.trace.sizes else FACTS
    return render(
        Original(
            f"zoo.py:{name}",
            name,
            module.forward,
            args,
            kwargs,
            structure(module, model.trace.modules.settings),
            model.trace.modules.objects,
            source,
        ),
        model,
        schedule,
        facts,
    )


def load(text: str, folder: Path, name: str = "generated") -> ModuleType:
    """Imports generated text."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def run_zoo(name: str, dropped: set[int], folder: Path, wraps: bool = False) -> Comparison:
    """Emits a member of the zoo with `dropped` rebuilt, and trains it beside the original."""
    module, args, kwargs, model = zoo_model(name)
    source = None if wraps else Path(zoo.__file__).read_text()
    text = emit(module, args, kwargs, model, rebuilding(model.graph, dropped), source)
    return compare(module, load(text, folder).rematerialize, args, kwargs, loss=model.record.loss)
