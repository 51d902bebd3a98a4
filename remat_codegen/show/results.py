"""What the user sees: progress while it works, a table (or a JSON object) when it is done.

The pipeline only fills in `Report` and `Verification`, and calls `Progress`; how they look is decided here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from remat_codegen.ask.budget import format_bytes, plan_label
from remat_codegen.show.heartbeat import Heartbeat, Stage, past_silence


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was compared. `detail` is for people: bit-identical, or by how much it differs and where."""

    what: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """What running a generated file against its original found. Sizes are None where the file does not say them.

    `notes` say what the rows do not prove. The original's peak is measured as well, `assumed_peak_bytes` is what the plan
    took it for; `time_ratio` is the time of the file's step over that of the original's. None where they could not be had.
    `measured_peak_bytes` are allocated, which is what the budget is for. On CUDA, `requested_peak_bytes` is the same without
    the allocator's rounding, and `reserved_peak_bytes` what the process had of the device, all included; None elsewhere.
    """

    rows: tuple[Row, ...]
    measured_peak_bytes: int
    planned_peak_bytes: int | None
    budget_bytes: int | None
    ok: bool
    notes: tuple[str, ...] = ()
    original_peak_bytes: int | None = None
    assumed_peak_bytes: int | None = None
    time_ratio: float | None = None
    requested_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None

    def failures(self) -> str:
        """What went wrong, on one line; empty where nothing did."""
        return "; ".join(f"{row.what}: {row.detail}".rstrip(": ") for row in self.rows if not row.ok)

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "ok": self.ok,
            "measured_peak_bytes": self.measured_peak_bytes,
            "planned_peak_bytes": self.planned_peak_bytes,
            "original_peak_bytes": self.original_peak_bytes,
            "assumed_peak_bytes": self.assumed_peak_bytes,
            "time_ratio": None if self.time_ratio is None else round(self.time_ratio, 3),
            "budget_bytes": self.budget_bytes,
            "requested_peak_bytes": self.requested_peak_bytes,
            "reserved_peak_bytes": self.reserved_peak_bytes,
            "rows": [{"what": row.what, "ok": row.ok, "detail": row.detail} for row in self.rows],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Item:
    """A part of a sum of memory."""

    what: str
    nbytes: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """How a budget was found. `items` are what is subtracted from `total_bytes`, None where the budget is no difference.

    `batch` is the size that was found, None where none was looked for. `tried` are the budgets in bytes, or the batch sizes,
    that were looked at, each with whether it was good enough.
    """

    items: tuple[Item, ...] = ()
    total_bytes: int | None = None
    optimizer: str | None = None
    batch: int | None = None
    tried: tuple[tuple[int, bool], ...] = ()

    @property
    def left_bytes(self) -> int:
        """What remains of the total."""
        return (self.total_bytes or 0) - sum(item.nbytes for item in self.items)

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        items = [{"what": i.what, "bytes": i.nbytes, "detail": i.detail} for i in self.items]
        of_total = {"total_bytes": self.total_bytes, "optimizer": self.optimizer, "items": items, "left_bytes": self.left_bytes}
        rows = {} if self.total_bytes is None else of_total
        rows |= {} if self.batch is None else {"batch": self.batch}
        return rows | {"tried": [{"at": at, "good": good} for at, good in self.tried]}


AS_WRITTEN = "as written"
MOST_NAMED = 2  # lines in a sentence


@dataclass(frozen=True, slots=True)
class AsWritten:
    """The step of a model that checkpoints by itself, as it is written. `where` are the lines that ask for it.

    `peak_bytes` and `overhead` (over the step without it, 0.12 for 12 %) are None where it is not priced, because it chooses
    what it keeps.
    """

    where: tuple[str, ...]
    peak_bytes: int | None = None
    overhead: float | None = None

    def sentence(self) -> str:
        """What it takes, on one line."""
        more = f" and {len(self.where) - MOST_NAMED} more" if len(self.where) > MOST_NAMED else ""
        named = f" ({', '.join(self.where[:MOST_NAMED])}{more})" if self.where else ""
        known = self.peak_bytes is not None and self.overhead is not None
        price = f"{format_bytes(self.peak_bytes or 0)} at {percent(self.overhead or 0.0)}" if known else "not priced"
        choosing = "" if known else ", choosing what it keeps"
        return f"{price}: the model checkpoints by itself{named}{choosing}; unmodified is without that"

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {"where": list(self.where), "peak_bytes": self.peak_bytes, "overhead": self.overhead}


@dataclass(frozen=True, slots=True)
class OtherPlan:
    """What another plan of the same file takes: for a larger budget, or for a smaller batch size, which `batch` then is.
    `peak_bytes` is planned; `overhead` and `bound` are extra time over the step without recomputation, at that batch: 0.12 for
    12 %."""

    budget_bytes: int
    peak_bytes: int
    overhead: float
    bound: float | None
    batch: int | None = None

    @property
    def label(self) -> str:
        """What tells it from the others."""
        return plan_label(self.budget_bytes, self.batch)

    def line(self) -> str:
        """The same for people."""
        least = "" if self.bound is None else f", lower bound {percent(self.bound)}"
        planned = f"planned peak {format_bytes(self.peak_bytes)}, overhead {percent(self.overhead)}"
        return f"{self.label}: {planned}{least}"

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints; `batch` is there only where that is what plans differ in."""
        sizes = {"budget_bytes": self.budget_bytes, "planned_peak_bytes": self.peak_bytes}
        sizes |= {} if self.batch is None else {"batch": self.batch}
        return sizes | {"overhead": self.overhead, "bound": self.bound}


@dataclass(frozen=True, slots=True)
class Report:
    """How a plan came out. `overhead` and `bound` are extra time over the step without recomputation: 0.12 for 12 %.

    `bound` is an overhead that no plan within the budget can beat, None where none is known. `seconds` are those of each stage.
    `as_written` is there where the model checkpoints by itself. `others` are the plans for larger budgets, or for smaller batch
    sizes, where the file has some; `batch` is then the largest. `answer` and `chosen` are there where the budget was found:
    what it is the answer to, and how.
    """

    planner: str
    status: str
    budget_bytes: int
    planned_peak_bytes: int
    unmodified_peak_bytes: int
    overhead: float
    bound: float | None
    blocks: int
    kinds: int
    seconds: dict[str, float]
    output: Path | str | None = None
    notes: tuple[str, ...] = ()
    verify: Verification | None = None
    as_written: AsWritten | None = None
    answer: str | None = None
    chosen: Chosen | None = None
    others: tuple[OtherPlan, ...] = ()
    batch: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints. `verify` is there only where it was asked for, `as_written` where the model
        checkpoints by itself, `answer` and `chosen` where the budget was found, `others` where the file has several plans,
        `batch` where these are for batch sizes."""
        rows: dict[str, Any] = {
            "planner": self.planner,
            "status": str(self.status),
            "budget_bytes": self.budget_bytes,
            "planned_peak_bytes": self.planned_peak_bytes,
            "unmodified_peak_bytes": self.unmodified_peak_bytes,
            "overhead": self.overhead,
            "bound": self.bound,
            "blocks": self.blocks,
            "kinds": self.kinds,
            "seconds": {stage: round(seconds, 3) for stage, seconds in self.seconds.items()},
            "output": None if self.output is None else str(self.output),
            "notes": list(self.notes),
        }
        rows |= {} if self.as_written is None else {"as_written": self.as_written.to_json()}
        rows |= {} if self.batch is None else {"batch": self.batch}
        rows |= {"others": [other.to_json() for other in self.others]} if self.others else {}
        rows |= {} if self.answer is None else {"answer": self.answer}
        rows |= {} if self.chosen is None else {"chosen": self.chosen.to_json()}
        return rows if self.verify is None else rows | {"verify": self.verify.to_json()}


def percent(ratio: float) -> str:
    """0.1234 as 12.3 %."""
    return f"{100 * ratio:.1f} %"


def report_table(report: Report) -> Table:
    """The table that a run ends with."""
    table = two_columns()
    share = f" ({percent(report.planned_peak_bytes / report.unmodified_peak_bytes)})" if report.unmodified_peak_bytes else ""
    table.add_row("budget", format_bytes(report.budget_bytes))
    if report.answer is not None:
        table.add_row("", Text(report.answer))
    if report.batch is not None:
        table.add_row("batch", str(report.batch))
    table.add_row(
        "planned peak", f"{format_bytes(report.planned_peak_bytes)} of {format_bytes(report.unmodified_peak_bytes)}{share}"
    )
    table.add_row("planned overhead", percent(report.overhead))
    if report.bound is not None:
        table.add_row("lower bound", percent(report.bound))
    for other in report.others:
        table.add_row("another budget" if other.batch is None else "another batch", other.line())
    if report.as_written is not None:
        table.add_row(AS_WRITTEN, Text(report.as_written.sentence()))
    table.add_row("plan", f"{report.planner}, {report.status}")
    table.add_row("blocks", f"{report.blocks}, of {report.kinds} {'kind' if report.kinds == 1 else 'kinds'}")
    table.add_row("time", _times(report.seconds))
    for note in report.notes:
        table.add_row("note", Text(note))
    if report.output is not None:
        table.add_row("written", Text(str(report.output)))
    return table


def _times(seconds: Mapping[str, float]) -> str:
    """The time of each stage, but for those that took next to none, as one has that only holds others."""
    took = {stage: s for stage, s in seconds.items() if s >= 0.05} or seconds
    return ", ".join(f"{stage} {s:.1f} s" for stage, s in took.items())


def sum_tables(report: Report) -> list[Table]:
    """What is subtracted from the memory that there is, line by line; nothing where the budget is no difference."""
    chosen = report.chosen
    if chosen is None or chosen.total_bytes is None:
        return []
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    table.add_row("there are", format_bytes(chosen.total_bytes), "")
    for item in chosen.items:
        table.add_row(item.what, f"- {format_bytes(item.nbytes)}", Text(item.detail))
    table.add_row("left for the step", f"= {format_bytes(chosen.left_bytes)}", "the budget")
    return [table]


def verification_table(verification: Verification) -> Table:
    """What was compared, and the measured peak against the planned one and the budget."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_column(overflow="fold")
    for row in verification.rows:
        verdict = Text("ok", style="green") if row.ok else Text("FAILED", style="bold red")
        table.add_row(row.what, verdict, Text(row.detail))
    if verification.measured_peak_bytes:
        table.add_row("measured peak", "", Text(_peak_line(verification)))
    if verification.original_peak_bytes is not None:
        table.add_row("original's peak", "", Text(_original_line(verification)))
    if verification.time_ratio is not None:
        table.add_row("measured time", "", Text(f"{verification.time_ratio:.2f} x that of the original's step"))
    for note in verification.notes:
        table.add_row("note", "", Text(note))
    return table


def _peak_line(verification: Verification) -> str:
    parts = [format_bytes(verification.measured_peak_bytes)]
    if verification.planned_peak_bytes:
        off = verification.measured_peak_bytes / verification.planned_peak_bytes - 1
        parts.append(f"planned {format_bytes(verification.planned_peak_bytes)} ({100 * off:+.1f} %)")
    if verification.budget_bytes is not None:
        parts.append(f"budget {format_bytes(verification.budget_bytes)}")
    if verification.requested_peak_bytes is not None:
        parts.append(f"requested {format_bytes(verification.requested_peak_bytes)}")
    if verification.reserved_peak_bytes is not None:
        parts.append(f"reserved by the process {format_bytes(verification.reserved_peak_bytes)}")
    return ", ".join(parts)


def _original_line(verification: Verification) -> str:
    measured, assumed = verification.original_peak_bytes or 0, verification.assumed_peak_bytes
    planned = f", planned {format_bytes(assumed)} ({100 * (measured / assumed - 1):+.1f} %)" if assumed else ""
    return f"{format_bytes(measured)}{planned}"


def two_columns() -> Table:
    """A table of names and values."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    return table


@dataclass(slots=True)
class Progress:
    """Says what a run is doing, and keeps the time of each stage.

    On a terminal a spinner and a bar, elsewhere one line at the start of a stage, and one now and then while it takes long;
    nothing if quiet. `seconds` are by stage, each without the stages inside it, so that they add up to the whole; those of
    stages of the same name add up. `noted` are the messages that stay.
    """

    console: Console | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    _bars: Bars | None = None
    _task: TaskID | None = None
    noted: list[str] = field(default_factory=list)
    _stages: list[Stage] = field(default_factory=list)
    _heartbeat: Heartbeat | None = None

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A part of the run. A stage may hold others, whose time is theirs."""
        running = Stage(name, time.perf_counter())
        self.seconds.setdefault(name, 0.0)  # the table lists stages in the order in which they begin
        self._stages.append(running)
        try:
            with self._shown(name):
                yield
        finally:
            self._stages.pop()
            took = time.perf_counter() - running.start
            self.seconds[name] += took - running.inside
            if self._stages:
                self._stages[-1].inside += took

    @contextlib.contextmanager
    def _shown(self, name: str) -> Iterator[None]:
        if self.console is None:
            yield
        elif not self.console.is_terminal:
            self._print(f"{name} ...")
            with self._alive():
                yield
        else:
            outer = self._bars, self._task
            with _running(outer[0] or _bars(self.console), started=outer[0] is not None) as bars:
                self._bars, self._task = bars, bars.add_task(name, total=None)
                try:
                    yield
                finally:
                    bars.remove_task(self._task)
                    self._bars, self._task = outer

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        """A line after some silence, for the outermost stage and those inside it."""
        if self._heartbeat is not None or self.console is None:
            yield
            return
        with past_silence(self.console.file) as log:
            self._heartbeat = Heartbeat(partial(self._say_how_far, Console(file=log, width=self.console.width)))
            try:
                yield
            finally:
                self._heartbeat.stop()
                self._heartbeat = None

    def _say_how_far(self, log: Console) -> None:
        for running in self._stages[-1:]:
            log.print(running.line(), markup=False, highlight=False)

    def update(self, done: int, total: int, what: str = "") -> None:
        """How far the present stage has come, with what it is doing."""
        if self._stages:
            self._stages[-1].counted = f"{what}, {done} of {total}".removeprefix(", ")
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=done, total=total)

    def note(self, text: str) -> None:
        """A message that stays, unless quiet; the same one is shown once."""
        if text not in self.noted:
            self.noted.append(text)
            self._print(text)

    def _print(self, text: str) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stir()
        if self.console is not None:
            self.console.print(text, markup=False, highlight=False)


def _bars(console: Console) -> Bars:
    # A slow refresh: what is being measured shares the machine's cores with it.
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn()
    return Bars(*columns, console=console, transient=True, refresh_per_second=4, redirect_stdout=False, redirect_stderr=False)


@contextlib.contextmanager
def _running(bars: Bars, started: bool) -> Iterator[Bars]:
    """The bars, started unless an outer stage did."""
    if started:
        yield bars
    else:
        with bars:
            yield bars
