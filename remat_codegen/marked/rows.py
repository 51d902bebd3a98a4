"""The rows of a table that was read, as the search knows them: which candidates of the model they name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from remat_codegen.marked.candidates import Candidate, Row
from remat_codegen.marked.choose import parts_of
from remat_codegen.marked.evaluations import Vertex
from remat_codegen.marked.found import Found
from remat_codegen.marked.marking import GIVEN
from remat_codegen.marked.reading import Mark, Reading, Said
from remat_codegen.readback.values import Problem
from remat_codegen.trace.places import Span

Place = tuple[str, str, Span]  # file, function, expression
Rows = tuple[Row[Vertex], ...]


def rows_of(reading: Reading, found: Found) -> tuple[Rows, list[Problem]]:
    """The rows that a table has, and what is wrong with those that cannot be told."""
    problems: list[Problem] = []
    said: dict[int, Said] = {}
    named: dict[int, Vertex] = {}
    for entry in reading.said:
        vertices = _named(entry, reading.marks, found)
        if not vertices:
            problems.append(Problem(entry.line, f"PLAN names {_spelled(entry)}, which this model does not have"))
        if any(v.id in said for v in vertices):
            problems.append(Problem(entry.line, f"PLAN names {_spelled(entry)} twice"))
        said |= {v.id: entry for v in vertices}
        named |= {v.id: v for v in vertices}
    rows = _rows(said, named, found, problems)
    return _that_nest(rows, said, problems), problems


def unused(reading: Reading, models: Iterable[Found], tables: Iterable[Rows]) -> tuple[Vertex, ...]:
    """What is marked in the text that no table has a row for, as far as one of the models has it."""
    marks = _places(reading.marks)
    for vertex in (v for rows in tables for row in rows for v in row.candidate.vertices):
        marks.pop(_place(vertex), None)
    vertices: dict[Place | None, Vertex] = {}
    for found in models:
        texts = (v for v in found.tree.vertices if v.text is not None and v.text.module is not None)
        marked = (_as_marked(v, marks[_place(v)], found) for v in texts if _place(v) in marks)
        vertices |= {_place(v): v for v in marked if _place(v) not in vertices and found.is_marked(v)}
    return tuple(vertices.values())


def not_given(reading: Reading, models: Iterable[Found]) -> list[Problem]:
    """Where the text calls functions with marks, or not, otherwise than it has to for these to be met."""
    marks = _places(reading.marks)
    pairs = [(found, v.text) for found in models for v in found.tree.vertices if v.text is not None and _place(v) in marks]
    functions = {(found, text.function) for found, text in pairs if text.function.is_at_top}
    needed = {(c.function.file, c.given): f.name for found, f in functions for c in found.giving(f)}
    said = {(file, span): line for file, span, line in reading.given}
    problems = [Problem(line, f"{GIVEN} gives no function with marks") for place, line in said.items() if place not in needed]
    missed = sorted({name for place, name in needed.items() if place not in said})
    return problems + [Problem(1, f"{name} has marks, and is called without {GIVEN}") for name in missed]


def _places(marks: Iterable[Mark]) -> dict[Place | None, Mark]:
    return {(m.file, m.function, m.span): m for m in marks}


def _place(vertex: Vertex) -> Place | None:
    text = vertex.text
    return None if text is None else (text.function.file, text.function.name.partition(".<locals>")[0], text.span)


def _spelled(entry: Said) -> str:
    return entry.name if entry.number is None else f"{entry.name}#{entry.number}"


def _named(entry: Said, marks: Sequence[Mark], found: Found) -> list[Vertex]:
    """The evaluations that an entry names: a module's calls; or those of a mark in a module's forward."""
    owner, _, name = entry.name.rpartition(".")
    places = _places(m for m in marks if m.name == name)
    calls = [v for v in found.tree.vertices if found.is_module(v) and found.code(v) == entry.name]
    texts = (v for v in found.tree.vertices if v.text is not None and v.text.module == owner)
    marked = (_as_marked(v, places[_place(v)], found) for v in texts if _place(v) in places)
    named = calls or [v for v in marked if found.is_marked(v)]
    return [v for v in named if v.id in found.numbers and entry.number in (None, found.numbers[v.id])]


def _as_marked(vertex: Vertex, mark: Mark, found: Found) -> Vertex:
    """A vertex without what its mark is given, if that makes operations anywhere."""
    return _making(vertex, mark.outside, found)


def _making(vertex: Vertex, outside: Iterable[Span], found: Found) -> Vertex:
    """A vertex without those of some expressions that make operations anywhere."""
    made = () if vertex.text is None else found.made.get(vertex.text.function.file, ())
    return replace(vertex, outside=tuple(s for s in outside if s in made))


def _rows(said: dict[int, Said], named: dict[int, Vertex], found: Found, problems: list[Problem]) -> list[Row[Vertex]]:
    """A row for each evaluation that holds whole nodes, and one for those that do so together."""
    single: dict[Candidate[Vertex], Said] = {}
    left: dict[int, Said] = {}
    for number, entry in said.items():
        candidate = found.candidate((named[number],))
        if candidate is None:
            left[number] = entry
        else:
            single[candidate] = entry
    used: set[int] = set()
    for candidate in found.several if left else ():
        numbers = [v.id for v in candidate.vertices]
        if not set(numbers) & set(left) or not set(numbers) <= set(said):
            continue
        if any(named[v.id] != _making(v, v.outside, found) for v in candidate.vertices):
            continue
        used.update(numbers)
        single[candidate] = said[numbers[-1]]
    for entry in {id(e): e for number, e in left.items() if number not in used}.values():
        problems.append(Problem(entry.line, f"PLAN has {_spelled(entry)} run again, of which no more is known than that"))
    return [Row(candidate, entry.keeps, entry.again, entry.late) for candidate, entry in single.items()]


def _that_nest(rows: list[Row[Vertex]], said: dict[int, Said], problems: list[Problem]) -> Rows:
    """The rows, if a step can be planned by them; else none, and why."""
    line = min((e.line for e in said.values()), default=1)
    try:
        parts_of(rows)
    except ValueError as error:
        problems.append(Problem(line, f"PLAN cannot be followed: {error}"))
        return ()
    return tuple(rows)
