"""From a schedule that was found in a file to what the page shows: a pure function of graph, schedule and costs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from remat_codegen.graph.simplify import Model
from remat_codegen.page.curves import curve_of, runs_of
from remat_codegen.page.data import (
    BlockRow,
    Curve,
    Figures,
    MeasuredStep,
    NodeRow,
    OtherPlan,
    Outside,
    Page,
    Place,
    Run,
    Text,
    Tradeoff,
)
from remat_codegen.page.lives import values_of
from remat_codegen.page.modules import modules_of, nodes_of
from remat_codegen.profile.costs import Profile
from remat_codegen.readback.interpreter import Call, Reading
from remat_codegen.readback.summary import BlockSummary, summarize
from remat_codegen.schedule import Schedule, simulate

LARGEST_TEXTS = 1_500_000  # characters; what is behind them is not shown


@dataclass(frozen=True, slots=True)
class Given:
    """What is known of a file before anything is computed. `lines` are those of the file by step of the schedule, `calls` the
    functions that it calls, `rows` the lines of a table's entries by the path of their module; `profile` has the costs of the
    step without recomputation, which is `unmodified`, `costs` those that the schedule is simulated with."""

    title: str
    file: str
    text: str
    command: str
    planner: str
    device: str
    edition: int
    generator: str
    model: Model
    schedule: Schedule
    unmodified: Schedule
    profile: Profile
    costs: Profile
    budget_bytes: int | None
    outside: Outside
    lines: tuple[int, ...] = ()
    calls: tuple[Call, ...] = ()
    rows: tuple[tuple[str, int], ...] = ()
    bound: float | None = None
    problems: tuple[tuple[int, str], ...] = ()
    notes: tuple[str, ...] = ()
    others: tuple[OtherPlan, ...] = ()
    batch: int | None = None


def build(given: Given, tradeoff: Tradeoff | None = None, measured: MeasuredStep | None = None) -> Page:
    """The page."""
    graph, costs = given.model.graph, given.costs
    planned = curve_of(graph, costs, given.schedule)
    unmodified = curve_of(graph, given.profile, given.unmodified)
    found, texts = _texts(given)
    nodes = nodes_of(given.model, costs, found)
    runs = _with_lines(given, runs_of(costs, given.schedule, given.lines), nodes)
    values = values_of(given.model, costs, given.schedule, runs, planned, given.budget_bytes)
    return Page(
        title=given.title,
        file=given.file,
        command=given.command,
        planner=given.planner,
        device=given.device,
        edition=given.edition,
        generator=given.generator,
        figures=_figures(given, planned, unmodified, runs),
        others=given.others,
        measured=measured,
        outside=given.outside,
        planned=planned,
        unmodified=unmodified,
        nodes=nodes,
        runs=runs,
        values=values,
        blocks=_blocks(given, nodes, unmodified.end_ns, texts),
        modules=modules_of(graph, nodes, runs, planned.total_bytes, values),
        tradeoff=tradeoff,
        texts=texts,
        problems=given.problems,
        notes=given.notes,
    )


def _figures(given: Given, planned: Curve, unmodified: Curve, runs: Sequence[Run]) -> Figures:
    return Figures(
        budget_bytes=given.budget_bytes,
        planned_peak_bytes=max(planned.total_bytes, default=0),
        unmodified_peak_bytes=max(unmodified.total_bytes, default=0),
        step_ns=planned.end_ns,
        unmodified_ns=unmodified.end_ns,
        overhead=planned.end_ns / max(1, unmodified.end_ns) - 1,
        bound=given.bound,
        recomputed=sum(r.again for r in runs),
        batch=given.batch,
    )


# ---------------------------------------------------------------------------------------------- texts and their lines


def _texts(given: Given) -> tuple[dict[str, int], tuple[Text, ...]]:
    """The files that are shown: the generated one, and those in which the model's operations stand, by their names here."""
    texts = [Text(given.file, _lines(given.text))]
    found: dict[str, int] = {}
    left = LARGEST_TEXTS - len(given.text)
    for file in dict.fromkeys(op.source.file for op in given.model.trace.operations if op.source is not None):
        text = _read(file)
        left -= len(text)
        if text and left >= 0:
            found[file] = len(texts)
            texts.append(Text(_short(file, found), _lines(text)))
    return found, tuple(texts)


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _lines(text: str) -> tuple[str, ...]:
    return tuple(text.replace("\r\n", "\n").removesuffix("\n").split("\n"))


def _short(file: str, others: Mapping[str, int]) -> str:
    """A file's name; with its folder, where another one has the same."""
    alike = any(Path(o).name == Path(file).name and o != file for o in others)
    return "/".join(Path(file).parts[-2:]) if alike else Path(file).name


def _with_lines(given: Given, runs: Sequence[Run], nodes: Sequence[NodeRow]) -> tuple[Run, ...]:
    """In a file of the second edition, what runs again does so for a row of its table."""
    if not given.rows:
        return tuple(runs)
    row = _row_of(given.rows)
    return tuple(Run(r.node, r.start_ns, r.end_ns, r.again, row(nodes[r.node].module) if r.again else 0) for r in runs)


def _row_of(rows: Sequence[tuple[str, int]]) -> Callable[[str], int]:
    """The line of the row that a module belongs to: of those whose module is this one, around it, or in it, the closest."""

    def closeness(module: str, path: str) -> int:
        inside = not path or module == path or module.startswith(f"{path}.") or path.startswith(f"{module}.")
        return len(path) if inside else -1

    def line(module: str) -> int:
        best = max(rows, key=lambda row: closeness(module, row[0]))
        return best[1] if closeness(module, best[0]) >= 0 else 0

    return line


# ---------------------------------------------------------------------------------------------- blocks


def _blocks(given: Given, nodes: Sequence[NodeRow], plain_ns: int, texts: Sequence[Text]) -> tuple[BlockRow, ...]:
    reading = Reading(given.schedule, given.lines, given.calls, (), True)
    timeline = simulate(given.model.graph, given.costs, given.schedule)
    summaries = summarize(given.model, given.costs, reading, timeline, plain_ns)
    defined = {name: first for name, first, _ in _functions(given.text)}
    pairs = zip(summaries, given.model.graph.blocks, strict=True)
    return tuple(_block(given, s, nodes[block.first : block.last + 1], defined, texts) for s, block in pairs)


def _block(
    given: Given, summary: BlockSummary, own: Sequence[NodeRow], defined: Mapping[str, int], texts: Sequence[Text]
) -> BlockRow:
    path = summary.path or _common([n.module for n in own])
    place = next((n.place for n in own if n.place is not None), None)
    functions = [(f, defined.get(f, 0)) for f in summary.functions]
    if given.edition == 2:
        table = _row_of(given.rows)(path) if given.rows and summary.recomputed else 0
        functions = [("PLAN", table)] * bool(table) + _written(texts, place, defined)
    return BlockRow(
        block=summary.block,
        path=path,
        functions=tuple(functions),
        nodes=summary.nodes,
        kept_bytes=summary.kept_bytes,
        forgotten_bytes=summary.forgotten_bytes,
        recomputed=summary.recomputed,
        overhead=summary.overhead,
        peak_bytes=summary.peak_bytes,
        place=place,
    )


def _common(paths: Sequence[str]) -> str:
    """The innermost module that holds all of these."""
    words = [p.split(".") if p else [] for p in paths]
    shared = 0
    while words and all(len(w) > shared and w[shared] == words[0][shared] for w in words):
        shared += 1
    return ".".join(words[0][:shared]) if words else ""


def _written(texts: Sequence[Text], place: Place | None, defined: Mapping[str, int]) -> list[tuple[str, int]]:
    """The method in which a line of the model's source stands, where the file carries it: under the same name."""
    if place is None:
        return []
    around = [n for n, first, last in _functions("\n".join(texts[place.text].lines)) if first <= place.line <= last]
    return [(n, defined[n]) for n in around[-1:] if n in defined]


@lru_cache(maxsize=16)
def _functions(text: str) -> tuple[tuple[str, int, int], ...]:
    """A text's functions and methods, each with its first and its last line; none where it is no Python."""
    try:
        return tuple(_within(ast.parse(text), ""))
    except SyntaxError:
        return ()


def _within(tree: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield f"{prefix}{node.name}", node.lineno, node.end_lineno or node.lineno
        elif isinstance(node, ast.ClassDef):
            yield from _within(node, f"{prefix}{node.name}.")
