"""What `trace`, `plan` and `compare` show: tables."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from remat_codegen.budget import format_bytes
from remat_codegen.planning import Outcome, Priced, lower_bound
from remat_codegen.report import percent, two_columns


def trace_table(found: dict[str, Any]) -> Table:
    """What a traced graph holds."""
    table = two_columns()
    table.add_row("graph", _size(found["nodes"], found["data"]))
    table.add_row("blocks", f"{found['blocks']} of {found['kinds']} {'kind' if found['kinds'] == 1 else 'kinds'}")
    table.add_row("unmodified", f"{format_bytes(found['unmodified_peak_bytes'])}, {found['unmodified_time_ns'] / 1e6:.3f} ms")
    table.add_row("written", Text(found["output"]))
    return table


def _size(nodes: int, data: int) -> str:
    return f"{nodes} compute nodes, {data} data nodes"


def plan_table(found: Priced, outcome: Outcome) -> Table:
    """What a planner made of a graph."""
    plan, overhead = outcome.plan, outcome.overhead(found.plain_ns)
    least = lower_bound(found, outcome.bound_ns)
    table = two_columns()
    table.add_row("graph", _size(len(found.graph.nodes), len(found.graph.data)))
    table.add_row("budget", format_bytes(outcome.budget_bytes))
    if overhead is not None:
        share = f" ({percent(plan.peak_bytes / found.plain_bytes)})" if found.plain_bytes else ""
        table.add_row("peak", f"{format_bytes(plan.peak_bytes)} of {format_bytes(found.plain_bytes)}{share}")
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
