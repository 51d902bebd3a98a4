"""The text of a marked file, written from a table, and a table read back from a text."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import FunctionType, ModuleType

import torch

from remat_codegen.ask.inputs import CACHE
from remat_codegen.ask.request import Request
from remat_codegen.emit.helpers import names_lazy_layers
from remat_codegen.errors import UnsupportedError
from remat_codegen.graph.ir import Graph, total_bytes
from remat_codegen.header.saved_plan import SavedPlan
from remat_codegen.header.seal import seal
from remat_codegen.marked import file as writing
from remat_codegen.marked.candidates import Candidate, Row
from remat_codegen.marked.changed import changed_buffers
from remat_codegen.marked.choose import parts_of
from remat_codegen.marked.demand import Again, Keeps, forgotten
from remat_codegen.marked.evaluations import Vertex
from remat_codegen.marked.features import (
    Features,
    changes_in_place,
    draws,
    holds_in_objects,
    knows_numpy,
    moves_buffers,
    set_by_forward,
)
from remat_codegen.marked.found import Found
from remat_codegen.marked.library import is_decorated, method_in
from remat_codegen.marked.markable import looks_at_class
from remat_codegen.marked.marks import Marks, write_marks
from remat_codegen.marked.origins import origins
from remat_codegen.marked.reading import read
from remat_codegen.marked.rows import not_given, rows_of, unused
from remat_codegen.marked.steady import Before
from remat_codegen.marked.summary import RowSummary, summarize
from remat_codegen.marked.table import Entry, united
from remat_codegen.parts import own_modules
from remat_codegen.profile.costs import Profile
from remat_codegen.readback.values import Problem
from remat_codegen.run.pipeline import facts_of, portable
from remat_codegen.run.tabling import Brought, carried_sources, file_of, found_of
from remat_codegen.run.traced import Traced
from remat_codegen.schedule import Compute, alive_before
from remat_codegen.schedule.order import order_of
from remat_codegen.torch_seam import buffers_of
from remat_codegen.trace.ir import Variable


def emit(traced: Traced, plan: SavedPlan, request: Request, brought: Brought) -> str:
    """The file's text."""
    marks = _marks(traced, brought)
    tables = [entries_of(one.found.model.graph, one, marks) for one in brought.all()]
    own, source = next(iter(carried_sources(traced).items()), ("", None))
    made_from = _made_from(traced, brought.found, marks)
    shared = _shared(traced, made_from.get("", ())) if own else ()
    methods = _methods(traced, brought.found, marks)
    given = writing.Given(
        target=portable(request.target),
        class_name=traced.target.class_name,
        graph=traced.graph.digest(),
        described=_described(traced),
        largest=_largest(traced),
        numbers=tuple(zip(_numbers(traced), _peaks(plan), strict=True)) if traced.others else (),
        source=source,
        shapes=tuple(sorted(tuple(v.shape) for v in _inputs(traced))) if request.static else (),
        counted=tuple(_counted(traced)),
        set_by_forward=tuple(set_by_forward(traced.target.module, traced.model.trace)),
        shared=shared,
        held_bytes=0 if brought.others or traced.model.trace.run is None else _held_bytes(traced.graph, brought),
        marked=marks.texts.get(own),
        parts=marks.parts if marks.names else "",
        kinds=marks.classes(own),
        defaults={CACHE: "False"} if without_cache(traced) else {},
        methods=methods,
        features=replace(
            features_of(traced, marks, bool(brought.others) and not traced.others, bool(traced.others)),
            home=any(not owner.module for owner in methods.owners),
            decorated=any(map(is_decorated, methods.owners)),
            closures=any(owner.is_closure for owner in methods.owners),
            given=marks.gives,
            static=request.static,
            shares=bool(shared) or any(_looks_at_class(source or "", name) for name in _names(made_from.get("", ()))),
        ),
        made_from=made_from,
    )
    return seal(writing.write(given, tables, facts_of(traced, plan, request, {})))


def read_back(text: str, traced: Traced, known: Sequence[Found] = ()) -> tuple[Brought, list[Problem]]:
    """What the table of a file says of a model, and what is wrong with its table and its marks. `known` is what can be parts,
    if it was found before."""
    reading, tables = read(text, carried_sources(traced), partial(file_of, traced)), list[Brought]()
    known = known or [found_of(one) for one in traced.all()]
    problems = [*reading.problems, *not_given(reading, known)]
    for number, said in enumerate(reading.tables):
        found = known[min(number, len(known) - 1)]
        rows, wrong = rows_of(replace(reading, said=said), found)
        schedule = found.holders.schedule([part for _, part in parts_of(rows)])
        tables.append(Brought(found, rows, schedule, 0))
        problems += [problem for problem in wrong if problem not in problems]
    first, *others = tables
    return replace(first, others=tuple(others), also=unused(reading, known, [one.rows for one in tables])), problems


def before_of(text: str, traced: Traced) -> Before[Vertex]:
    """What a file says that is to be made again, as far as the model still has it."""
    read, _ = read_back(text, traced)
    tables = tuple(one.rows for one in read.all())
    marks = {mark for rows in tables for row in rows for mark in row.candidate.marks}
    marks |= {((v.text.function, v.text.span), v.outside) for v in read.also if v.text is not None}
    return Before(tables, frozenset(marks))


def with_marks_of(before: Before[Vertex], traced: Traced, plan: SavedPlan, request: Request, brought: Brought) -> Brought:
    """The same in a text that has the marks of tables before it, too, if that can be written: so only rows change."""
    used = {place for one in brought.all() for row in one.rows for place, _ in row.candidate.marks}
    vertices = (v for rows in before.tables for row in rows for v in row.candidate.vertices if brought.found.is_marked(v))
    also = {(v.text.function, v.text.span): v for v in vertices if v.text is not None}
    wider = replace(brought, also=tuple(v for place, v in also.items() if place not in used))
    if not wider.also:
        return brought
    try:
        read, problems = read_back(emit(traced, plan, replace(request, edition=2), wider), traced)
    except UnsupportedError:  # one mark is in the way of another
        return brought
    same = [order_of(one.schedule) for one in read.all()] == [order_of(one.schedule) for one in brought.all()]
    return wider if same and not problems else brought


def summary(traced: Traced, profile: Profile, brought: Brought) -> tuple[RowSummary, ...]:
    """What each row of a table frees and costs."""
    pairs = parts_of(brought.rows)
    entries = entries_of(traced.graph, brought, _marks(traced, brought))
    parts = [(brought.found.owner(row.candidate.vertices[-1]), part) for row, part in pairs]
    return summarize(traced.graph, profile, brought.schedule, parts, entries)


def named(traced: Traced, brought: Brought, name: str) -> list[Candidate[Vertex]]:
    """The parts that the tables have under a name: the path of a module, or of one with the name of a mark in its forward."""
    marks = _marks(traced, brought)
    candidates = [row.candidate for one in brought.all() for row in one.rows]
    return [c for c in candidates if any(_name(brought.found, v, marks) == name for v in c.vertices)]


def _name(found: Found, vertex: Vertex, marks: Marks) -> str:
    if found.is_module(vertex):
        assert vertex.called is not None
        return vertex.called[0]
    assert vertex.text is not None
    return ".".join(filter(None, [vertex.text.module, marks.names[vertex.text.function, vertex.text.span]]))


def features_of(traced: Traced, marks: Marks, several: bool, batches: bool = False) -> Features:
    """What the helpers have to know for this model. What depends on the table alone they always know, so that another budget
    changes rows and not the helpers."""
    record, other_ways = traced.model.record, traced.model.trace.run is not None  # in which there may be all of these
    return Features(
        random=other_ways or draws(traced.model.trace),
        numpy=knows_numpy(traced.target.module),
        buffers=other_ways or moves_buffers(traced.target.module, record),
        counters=bool(_counted(traced)),
        objects=other_ways or holds_in_objects(traced.model.trace),
        in_place=other_ways or changes_in_place(record),
        marks=bool(marks.names),
        functions=any(t.function.is_at_top for texts in marks.methods.values() for t in texts),
        defaulted=without_cache(traced),
        library=any(file not in carried_sources(traced) for file in marks.texts),
        several=several,
        batches=batches,
        checkpoints=_checkpoints(traced),
        recorded=traced.model.trace.run is not None,
        on_gpu=traced.model.trace.accelerator.startswith("cuda"),
        lazy=names_lazy_layers(traced.target.source),
        complex=other_ways or any(v.dtype.is_complex for v in traced.model.trace.variables),
        attributes=bool(set_by_forward(traced.target.module, traced.model.trace)),
    )


def _checkpoints(traced: Traced) -> bool:
    """Whether forward calls torch.utils.checkpoint, or where it is told to."""
    told = any(hasattr(type(m), "gradient_checkpointing_enable") for m in traced.target.module.modules())
    return told or any(op.regions for op in traced.model.trace.operations)


def _counted(traced: Traced) -> list[str]:
    """What forward changes in place of modules' own, and parts have copies of: by class, dict of modules, and name. What is a
    buffer of one module is a parameter of another, as where weights are normalised in two ways."""
    changed = changed_buffers(traced.model.trace, traced.model.record)
    places = [b.path.rpartition(".")[::2] for b in changed if b.is_copied]
    owners = [(traced.target.module.get_submodule(path), name) for path, name in places]
    kinds = [(type(m).__qualname__, "_buffers" if name in buffers_of(m) else "_parameters", name) for m, name in owners]
    return sorted(set(map(".".join, kinds)))


def without_cache(traced: Traced) -> bool:
    """Whether a model is planned for training steps that make no cache for generation."""
    return traced.target.kwargs.get(CACHE) is False


def _marks(traced: Traced, brought: Brought) -> Marks:
    """The model's source with marks."""
    modules = traced.target.module.named_modules(remove_duplicate=False)
    children = {path: frozenset(module._modules) for path, module in modules}
    vertices = [v for one in brought.all() for row in one.rows for v in row.candidate.vertices]
    return write_marks(brought.found, [*brought.also, *vertices], children)


def _methods(traced: Traced, found: Found, marks: Marks) -> writing.Methods:
    """What has marks in other files than one that is carried."""
    carried = carried_sources(traced)
    texts = [t for file, methods in marks.methods.items() if file not in carried for t in methods]
    owners = [owner for t in sorted(texts, key=lambda t: t.function.is_at_top) for owner in found.copied(t)]
    return writing.Methods(tuple(owners), {o.module: marks.texts[file_of(traced, o.module)] for o in owners})


def _made_from(traced: Traced, found: Found, marks: Marks) -> dict[str, tuple[str, ...]]:
    """By module, "" for the model's own: what the methods with marks were made from."""
    theirs: dict[str, list[str]] = {}
    for owner in _methods(traced, found, marks).owners:
        theirs.setdefault(owner.module, []).append(f"{owner.kind}.{owner.method}".strip("."))
    made = {m: origins(found.sources[file_of(traced, m)], names, with_names=False) for m, names in sorted(theirs.items())}
    for file, source in carried_sources(traced).items():
        methods = (t.function for t in marks.methods.get(file, ()) if not t.function.is_at_top)
        names = [*(f.name.partition(".<locals>")[0] for f in methods), *marks.callers.get(file, ())]
        made |= {"": origins(source, names, with_names=True)} if names else {}
    return dict(sorted(made.items()))


def _shared(traced: Traced, words: Iterable[str]) -> tuple[str, ...]:
    """Of what methods with marks were made from: classes that are no modules, and things that can be changed, or told from
    equal ones. Other than functions and numbers, those of a file that is written are not those of the user's."""
    home = type(traced.target.module).__module__
    known = vars(sys.modules[home]) if home in sys.modules else {}
    imports = (node for node in ast.walk(ast.parse(traced.target.source)) if isinstance(node, (ast.Import, ast.ImportFrom)))
    imported = {(alias.asname or alias.name).partition(".")[0] for node in imports for alias in node.names}
    return tuple(sorted(name for name in _names(words) & {*known} - imported if _is_own(known[name], home)))


def _names(words: Iterable[str]) -> set[str]:
    """The names of what a file was made from, which stand before digests."""
    return {word.partition(":")[0] for word in words}


def _looks_at_class(source: str, name: str) -> bool:
    """Whether a method of the user's file asks for its class, which is the original's where it has been taken over."""
    kind, _, method = name.rpartition(".")
    found = method_in(source, kind, method) if kind else None
    return found is not None and looks_at_class(found)


def _is_own(thing: object, home: str) -> bool:
    """Whether something that a file has is equal to what another file with that text has, and may yet not be the same."""
    if isinstance(thing, type):
        return thing.__module__ == home
    plain = isinstance(thing, (int, float, complex, str, bytes, FunctionType, ModuleType, torch.dtype, torch.device))
    return thing is not None and not plain and type(thing).__module__ != "typing"


def entries_of(graph: Graph, brought: Brought, marks: Marks) -> list[Entry]:
    """The table's entries, each with the bytes that it frees."""
    pairs = parts_of(brought.rows)
    gone = forgotten(graph, [part for _, part in pairs], brought.found.holders.held)
    found, counted = [], set[int]()
    for row, part in reversed(pairs):  # what stands within another part counts there
        own = {d for n in range(part.first, part.last + 1) for d in graph.nodes[n].writes} & gone - counted
        counted |= own
        freed = sum(graph.data[d].nbytes for d in own)
        *before, last = row.candidate.vertices
        handed = Keeps.NOTHING if row.keeps is Keeps.RESULT else row.keeps  # what is only handed on to the last is not kept
        once_more = Again.TWICE if row.again is Again.SHARED else row.again  # only the last one gives to others
        inner = replace(row, keeps=handed, again=once_more, late=False)
        found += [_entry(brought.found, inner, vertex, marks, 0) for vertex in before]
        found.append(_entry(brought.found, row, last, marks, freed))
    return united(found)


def _entry(found: Found, row: Row[Vertex], vertex: Vertex, marks: Marks, freed: int) -> Entry:
    number, times = found.numbers[vertex.id], found.times[found.code(vertex)]
    if found.is_module(vertex):
        assert vertex.called is not None
        return Entry(vertex.called[0], "", number, times, row.keeps, row.again, row.late, freed, vertex.begin)
    assert vertex.text is not None and vertex.text.module is not None
    name = marks.names[vertex.text.function, vertex.text.span]
    return Entry(vertex.text.module, name, number, times, row.keeps, row.again, row.late, freed, vertex.begin)


def _described(traced: Traced) -> str:
    inputs = _inputs(traced)
    return ", ".join(f"{v.path}: {str(v.dtype).removeprefix('torch.')}{list(v.shape)}" for v in inputs) or "no inputs"


def _largest(traced: Traced) -> tuple[int, str, int] | None:
    """The numbers that the largest input has, and their type; how many modules of its own the model has. None where there is no
    such input."""
    numbers, dtype = max(((math.prod(t.shape), str(t.dtype)) for t in _inputs(traced)), default=(0, ""))
    module = traced.target.module
    return (numbers, dtype, own_modules(module, [*module.modules()])) if numbers else None


def _held_bytes(graph: Graph, brought: Brought) -> int:
    """What a step holds when its backward pass begins."""
    steps = enumerate(brought.schedule.steps)
    turn = next(position for position, step in steps if isinstance(step, Compute) and step.node >= graph.loss)
    return total_bytes(graph, alive_before(graph, brought.schedule, turn))


def _peaks(plan: SavedPlan) -> list[int]:
    return [one.planned_peak_bytes for one in plan.all()]


def _numbers(traced: Traced) -> tuple[int, ...]:
    """By batch size, the numbers in the largest input, by which a file tells sizes apart. Raises UnsupportedError where that
    does not."""
    whole = max(_inputs(traced), key=lambda v: math.prod(v.shape))
    kinds = ([v for v in _inputs(one) if v.dtype.is_floating_point == whole.dtype.is_floating_point] for one in traced.all())
    found = tuple(max(math.prod(v.shape) for v in like) for like in kinds)
    if len({*found}) < len(found):
        what = f"the largest input, {whole.path}, has the same size at every batch, which therefore cannot be told apart"
        raise UnsupportedError(what, where=traced.target.label, hint="make a file for each batch size")
    return found


def _inputs(traced: Traced) -> list[Variable]:
    trace = traced.model.trace
    return [trace.variables[v] for v in trace.inputs if v is not None]
