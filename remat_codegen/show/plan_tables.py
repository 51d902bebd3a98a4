"""What `trace`, `plan` and `compare` show: tables."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from remat_codegen.ask.budget import format_bytes
from remat_codegen.planners.base.result import Status
from remat_codegen.run.comparison import Compared, budget_text
from remat_codegen.run.planning import Outcome, lower_bound, peak_of
from remat_codegen.run.priced import Priced
from remat_codegen.show.results import percent, two_columns


def trace_table(found: dict[str, Any]) -> Table:
    """What a traced graph holds."""
    table = two_columns()
    table.add_row("graph", _size(found["nodes"], found["data"]))
    table.add_row("blocks", f"{found['blocks']}, of {found['kinds']} {'kind' if found['kinds'] == 1 else 'kinds'}")
    table.add_row("unmodified", f"{format_bytes(found['unmodified_peak_bytes'])}, {found['unmodified_time_ns'] / 1e6:.3f} ms")
    table.add_row("written", Text(found["output"]))
    return table


def _size(nodes: int, data: int) -> str:
    return f"{nodes} compute nodes, {data} data nodes"


def plan_table(found: Priced, outcome: Outcome) -> Table:
    """What a planner made of a graph."""
    plan, overhead, peak = outcome.plan, outcome.overhead(found.plain_ns), peak_of(found, outcome)
    least = lower_bound(found, outcome.bound_ns)
    table = two_columns()
    table.add_row("graph", _size(len(found.graph.nodes), len(found.graph.data)))
    table.add_row("budget", format_bytes(outcome.budget_bytes))
    if overhead is not None and peak is not None:
        share = f" ({percent(peak / found.plain_bytes)})" if found.plain_bytes else ""
        table.add_row("peak", f"{format_bytes(peak)} of {format_bytes(found.plain_bytes)}{share}")
        table.add_row("step", f"{step_time(found, plan.time_ns)} instead of {step_time(found, found.plain_ns)}")
        table.add_row("overhead", percent(overhead))
    table.add_row("lower bound", "no plan fits" if least is None else percent(least))
    table.add_row("plan", f"{outcome.planner}, {plan.status}, {outcome.seconds:.1f} s")
    if plan.minimum_bytes is not None and not outcome.fits:
        table.add_row("fits", f"{format_bytes(plan.minimum_bytes)} ({plan.minimum_bytes} bytes)")
    for note in (*found.notes, *plan.notes):
        table.add_row("note", Text(note))
    return table


def step_time(found: Priced, time_ns: int) -> str:
    """A time for people: in milliseconds, or without unit where the file gave none."""
    return f"{time_ns / 1e6:.3f} ms" if found.scale is None else f"{time_ns / found.scale:g}"


def no_plan(outcome: Outcome) -> str:
    """Why there is no plan, on one line."""
    least = outcome.plan.minimum_bytes
    hint = "" if least is None else f"; the smallest budget that works is {format_bytes(least)} ({least} bytes)"
    return f"{outcome.planner} finds no plan within {format_bytes(outcome.budget_bytes)}{hint}"


# ---------------------------------------------------------------------------------------------- compare

MARKS = {Status.OPTIMAL: "", Status.FEASIBLE: "", Status.TIME_LIMIT: "~", Status.TOO_LARGE: "~"}


def compare_tables(compared: Compared) -> list[Any]:
    """Overheads, the lower bound first; then planning times."""
    found = compared.found
    headings = [budget_text(found, b) for b in compared.budgets]
    plain = f"{step_time(found, found.plain_ns)}, {format_bytes(found.plain_bytes)}"
    title = Text(f"{found.label}: extra time within a budget (without recomputation: {plain})")
    overheads = _grid(headings)
    bounds = [lower_bound(found, compared.least(i)) for i in range(len(headings))]
    overheads.add_row("lower bound", *("none fits" if b is None else percent(b) for b in bounds), style="bold")
    for name, outcomes in compared.outcomes.items():
        overheads.add_row(name, *(_overhead(found, o) for o in outcomes))
    times = _grid(headings)
    for name, outcomes in compared.outcomes.items():
        times.add_row(name, *(f"{o.seconds:.2f}" for o in outcomes))
    marks = Text("-: no plan within this budget; ~: the exact search was stopped, or the graph is too large for it")
    notes = [Text(f"note: {note}") for note in found.notes]
    return [title, overheads, marks, *notes, Text("\nplanning time, seconds"), times]


def _overhead(found: Priced, outcome: Outcome) -> str:
    overhead = outcome.overhead(found.plain_ns)
    return "-" if overhead is None else f"{MARKS[outcome.plan.status]}{percent(overhead)}"


def _grid(headings: list[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("", style="bold", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def measured_table(rows: list[dict[str, Any]]) -> Table:
    """What was measured: the step beside eager PyTorch's, and the peak."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", style="bold", no_wrap=True)
    for heading in ("budget", "planned", "step", "planned peak", "peak", "gradients"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        if row.get("ratio") is None:
            table.add_row(row["name"], row.get("budget") or "", "", Text(f"not available: {row['reason']}"))
            continue
        planned = "" if row["planned_ratio"] is None else f"{row['planned_ratio']:.3f} x"
        peak = "" if row["planned_peak_bytes"] is None else format_bytes(row["planned_peak_bytes"])
        exact = "exact" if row["difference"] == 0 else f"off by {row['difference']:.1e}"
        measured = f"{row['ratio']:.3f} x", peak, format_bytes(row["peak_bytes"]), exact
        table.add_row(row["name"], row.get("budget") or "", planned, *measured)
    return table
