"""What `report` shows in the terminal: a table."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from rich.text import Text

from remat_codegen.ask.budget import format_bytes
from remat_codegen.page.data import OtherPlan, Page
from remat_codegen.show.results import percent, two_columns


def page_table(page: Page, output: Path | None) -> Table:
    """The page's figures, and where it was written."""
    figures, table = page.figures, two_columns()
    if figures.budget_bytes is not None:
        table.add_row("budget", format_bytes(figures.budget_bytes))
    if figures.batch is not None:
        table.add_row("batch", str(figures.batch))
    table.add_row(
        "planned peak", f"{format_bytes(figures.planned_peak_bytes)} of {format_bytes(figures.unmodified_peak_bytes)}"
    )
    if page.measured is not None:
        table.add_row("measured peak", f"{format_bytes(page.measured.peak_bytes)} ({100 * page.measured.error:+.2f} %)")
    table.add_row("planned overhead", percent(figures.overhead))
    if figures.bound is not None:
        table.add_row("lower bound", percent(figures.bound))
    for other in page.others:
        table.add_row("another plan", Text(_other(other)))
    more = None if page.tradeoff is None else page.tradeoff.more
    if more is not None and more.overhead is not None:
        table.add_row("10 % more memory", percent(more.overhead))
    if output is not None:
        table.add_row("written", Text(str(output)))
    return table


def _other(plan: OtherPlan) -> str:
    """A plan that the file has for another budget, or another batch size, in a line."""
    of = f"for {plan.label}: " if plan.label else ""
    least = "" if plan.bound is None else f", lower bound {percent(plan.bound)}"
    return f"{of}peak {format_bytes(plan.planned_peak_bytes)}, overhead {percent(plan.overhead)}{least}"
