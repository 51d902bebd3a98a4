"""How an explanation looks on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.table import Table
from rich.text import Text

from remat_codegen.ask.budget import format_bytes
from remat_codegen.readback.summary import BlockSummary
from remat_codegen.show.results import percent


def shown(found: Any) -> Iterator[Table | Text]:
    """A table of the blocks, or of the rows, and lines that are as they are, however long."""
    if found.blocks:
        yield block_table(found.blocks)
    if found.rows:
        yield row_table(found.rows)
    for line in closing_lines(found):
        yield Text(line, no_wrap=True, overflow="ignore")


def block_table(blocks: Sequence[BlockSummary]) -> Table:
    """A line for each block, marked where the peak is."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("block", justify="right")
    table.add_column("functions", overflow="fold")
    for title in ("kept", "forgotten", "recomputed", "overhead", "peak"):
        table.add_column(title, justify="right", no_wrap=True)
    top = max(b.peak_bytes for b in blocks)
    for b in blocks:
        again = f"{len(b.recomputed)} ({len(set(b.recomputed))} of {b.nodes})" if b.recomputed else "-"
        mark = " *" if b.peak_bytes == top else "  "
        place = f" [{b.path}]" if b.path else ""
        table.add_row(
            str(b.block),
            f"{', '.join(b.functions)}{place}".replace("[", "\\["),
            format_bytes(b.kept_bytes),
            format_bytes(b.forgotten_bytes) if b.forgotten else "-",
            again,
            percent(b.overhead),
            format_bytes(b.peak_bytes) + mark,
        )
    return table


def row_table(rows: Sequence[Any]) -> Table:
    """A line for each row of a file's PLAN; neighbours that are alike, as equal layers are, share one."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("row", no_wrap=True)
    table.add_column("rebuilt", overflow="fold")
    for title in ("frees", "operations", "overhead"):
        table.add_column(title, justify="right", no_wrap=True)
    for said, group in groupby(rows, _of_a_row):
        keys = [row.key or "-" for row in group]
        key, times = (keys[0], "") if len(keys) == 1 else (f"{keys[0]} … {keys[-1]}", f"{len(keys)} × ")
        entries, *figures = said
        table.add_row(key, entries, *(f"{times}{figure}" for figure in figures))
    return table


def _of_a_row(row: Any) -> tuple[str, str, str, str]:
    """What is told of a row beside its name."""
    return " ".join(row.entries), format_bytes(row.freed_bytes), str(len(row.recomputed)), percent(row.overhead)


def closing_lines(found: Any) -> Iterator[str]:
    """The totals, and whether this is what was planned."""
    if found.unmodified_peak_bytes:
        budget = "" if found.budget_bytes is None else f", budget {format_bytes(found.budget_bytes)}"
        budget += "" if found.batch is None else f", batch {found.batch}"
        line = f", line {found.peak_line}" if found.peak_line else ""
        yield ""
        block = "" if found.peak_block is None else f" in block {found.peak_block}"
        yield (
            f"peak {format_bytes(found.peak_bytes)}{block}{line}; PyTorch {format_bytes(found.unmodified_peak_bytes)}{budget}"
        )
        yield f"overhead {percent(found.overhead)} of the step without recomputation"
        yield from map(_other_line, found.others)
    if found.as_planned is not None and found.unmodified_peak_bytes:
        same = "the schedule is the plan's" if found.ok else "it computes what was planned, in its order, but is wrong"
        yield same if found.as_planned else "the schedule is not the plan's"
    for note in found.notes:
        yield f"note: {note}"


def _other_line(table: Any) -> str:
    """What a table for another budget, or another batch size, takes."""
    of = f" for {table.label}" if table.label else ""
    return f"another table{of}: peak {format_bytes(table.peak_bytes)}, overhead {percent(table.overhead)}"
