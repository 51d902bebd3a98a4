"""Any table: its step takes at most what the simulator says of it, and computes what the model does. Tables are drawn from all
that could be rebuilt, with every option, so that no search has to come to them first."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from conftest import ROOT

from remat_codegen.ask.request import Request
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.marked.candidates import Row
from remat_codegen.marked.choose import OPTIONS, parts_of
from remat_codegen.marked.demand import Again, Keeps, check
from remat_codegen.marked.found import Found
from remat_codegen.planners.base.reserve import SLACK_BYTES
from remat_codegen.profile.memory import peak_bytes
from remat_codegen.run import marked, marked_text, tabling
from remat_codegen.run.priced import measured_costs
from remat_codegen.run.traced import Traced, trace_target
from remat_codegen.schedule.order import order_of
from remat_codegen.show.results import Progress
from remat_codegen.trace.training import Run
from remat_codegen.verify.beside import load_generated, own_model

QUIET = Progress(None)
MODELS = {
    "gpt2": ("GPT2", "layers=2, width=64, heads=2, vocabulary=256, context=64", "int64[2,64]<256"),
    "vit": ("ViT", "image=32, patch=8, width=48, layers=2, heads=3", "image=float32[8,3,32,32]"),
    "unet": ("UNet", "width=16, levels=2, time=32", "float32[4,3,32,32];float32[4]"),
    "resnet": ("ResNet", "depths=(1,1), width=16", "image=float32[8,3,16,16]"),
    "unread": ("Unread", "", "float32[4,64,64]"),
    "left": ("Left", "", "float32[4,64,32]"),
    "handed": ("Handed", "", "float32[4,64,64]"),
}


@dataclass(frozen=True)
class Subject:
    """A traced model, what can be rebuilt of it, and the gradients of a step."""

    request: Request
    traced: Traced
    found: Found
    gradients: list[torch.Tensor]


@cache
def subject(name: str) -> Subject:
    kind, init, inputs = MODELS[name]
    folder = ROOT / ("tests/data" if name in ("unread", "left", "handed") else "examples")
    request = Request(f"{folder}/{name}.py:{kind}", "90%", init=init, inputs=inputs, edition=2)
    traced = trace_target(request, QUIET)
    return Subject(request, traced, tabling.found_of(traced), _step(traced, own_model(traced.target.module, "cpu"))[1])


def _step(traced: Traced, model: torch.nn.Module) -> tuple[int, list[torch.Tensor]]:
    """The peak of a step and its gradients, after another one."""
    torch.manual_seed(0)
    run = Run(model, traced.target.args, traced.target.kwargs, ())
    run.step()
    run.update()
    run.outputs = None
    peak = peak_bytes(run.step)
    return peak, [p.grad for p in model.parameters() if p.grad is not None]


def drawn(found: Found, graph, seed: int) -> list[Row]:
    """Some rows that can stand together; of half of the seeds, such as have to do with each other."""
    draw = random.Random(seed)
    most, near = draw.choice([2, 4, 8, 16]), seed % 2 == 0
    rows: list[Row] = []
    for _ in range(draw.randint(1, most)):
        others = [c for c in found.candidates.all if near and rows and any(meet(c, r.candidate) for r in rows)]
        row = Row(draw.choice(others or found.candidates.all), *draw.choice(OPTIONS))
        try:
            check(graph, [part for _, part in parts_of([*rows, row])])
            rows.append(row)
        except ValueError:
            continue
    return rows


def meet(one, other) -> bool:
    """Whether one of two candidates stands in the other, or begins where that ends."""
    within = one.first >= other.first and one.last <= other.last
    around = one.first <= other.first and one.last >= other.last
    return one != other and (within or around or one.last + 1 == other.first or other.last + 1 == one.first)


def holds(name: str, rows: list[Row], folder: Path) -> None:
    of = subject(name)
    graph = of.traced.graph
    brought = tabling.Brought(of.found, tuple(rows), of.found.holders.schedule([p for _, p in parts_of(rows)]), 0)
    plan = SavedPlan(graph.digest(), "none", "feasible", "90%", 10**9, 0, 0, 0.0, None, "cpu", ())
    profile = measured_costs(of.request, of.traced, QUIET)
    plan = marked.as_planned(plan, of.traced, profile, brought)
    assert plan.planned_peak_bytes >= of.found.holders.least_bytes(profile)
    text = marked_text.emit(of.traced, plan, of.request, brought)
    back, problems = marked_text.read_back(text, of.traced)
    assert not problems and order_of(back.schedule) == order_of(brought.schedule)
    file = folder / f"{name}_remat.py"
    file.write_text(text)
    model = load_generated(file).rematerialize(own_model(of.traced.target.module, "cpu"))
    peak, gradients = _step(of.traced, model)
    assert all(map(torch.equal, gradients, of.gradients))
    assert peak <= plan.planned_peak_bytes + SLACK_BYTES, [f"{r.candidate.first}-{r.candidate.last} {r.keeps}" for r in rows]


def rows_of(name: str, seed: int) -> list[Row]:
    return drawn(subject(name).found, subject(name).traced.graph, seed)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", MODELS)
def test_tables_keep_to_what_is_said_of_them(name, seed, tmp_path):
    holds(name, rows_of(name, seed), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5, 150))
@pytest.mark.parametrize("name", MODELS)
def test_many_tables_keep_to_what_is_said_of_them(name, seed, tmp_path):
    holds(name, rows_of(name, seed), tmp_path)


ONCE, TWICE, THRICE, SHARED = Again.ONCE, Again.TWICE, Again.THRICE, Again.SHARED
HARD = {  # first and last node, what is kept, how often it runs again, whether it is late
    "what a part within one is given for one reader": ("unet", (46, 46, "", TWICE, True), (47, 49, "inside"), (47, 47, "")),
    "what autograd reads, and a part that runs again for it": ("vit", (17, 20, "", THRICE, True), (21, 21, "", TWICE)),
    "three views of what one reader gets": ("vit", (13, 13, "", TWICE), (12, 12, "", THRICE), (7, 11, "")),
    "a part within one that has nothing to rebuild": ("unet", (30, 31, "inside"), (30, 30, "inside")),
    "what a reader has left, and a part that takes it": ("unet", (56, 56, "", TWICE), (47, 55, "", ONCE, True)),
    "what a late part is given, of which nothing is missed": ("unread", (3, 3, "", SHARED), (4, 4, "", ONCE, True)),
    "what a late part gives, and nobody reads later": ("handed", (22, 23, "", ONCE, True), (24, 25, ""), (33, 33, "")),
    "views of what one reader has, of which another is missing": ("vit", (12, 20, "", TWICE, True), (7, 11, "")),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_tables_keep_to_what_is_said_of_them(name, tmp_path):
    model, *told = HARD[name]
    by_place = {(c.first, c.last): c for c in subject(model).found.candidates.all}
    holds(model, [Row(by_place[first, last], Keeps(keeps), *rest) for first, last, keeps, *rest in told], tmp_path)
