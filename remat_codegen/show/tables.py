"""Tables as Python shows them: as text where they are printed, as HTML in a notebook."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

COLUMNS = 120  # a table's text is not cut at a terminal's width: it may go into a file
STYLE = "border-collapse:collapse;font-size:90%"
CELL = "padding:1px 10px 1px 0"


@dataclass(frozen=True, slots=True)
class Shown:
    """Tables and lines between them. `str()` is what the command line prints; a notebook shows HTML."""

    parts: tuple[Any, ...]

    def __str__(self) -> str:
        """The tables as plain text."""
        text = io.StringIO()
        console = Console(file=text, width=COLUMNS, color_system=None, force_terminal=False, force_jupyter=False)
        for part in self.parts:
            console.print(part, soft_wrap=bool(getattr(part, "no_wrap", False)))  # a line as it is, however long
        return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())

    def __repr__(self) -> str:
        """The same: whoever types `plan.explain()` reads the table."""
        return str(self)

    def _repr_html_(self) -> str:
        return "".join(html_of(part) for part in self.parts)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        yield from self.parts


@dataclass(frozen=True, slots=True)
class Picture:
    """An SVG picture: a notebook shows it, `str()` is its text."""

    svg: str

    def __str__(self) -> str:
        """The picture's text, as a file has it."""
        return self.svg

    def __repr__(self) -> str:
        return f"<an SVG picture of {len(self.svg):,} characters>"

    def _repr_svg_(self) -> str:
        return self.svg


def html_of(part: Any) -> str:
    """A table as an HTML table; a line as a paragraph."""
    if not isinstance(part, Table):
        text = _plain(part).strip()
        return f"<p>{escape(text)}</p>" if text else ""
    rows = list(zip(*(column.cells for column in part.columns), strict=True))
    titles = [_plain(column.header) for column in part.columns]
    sides = [column.justify if column.justify in ("left", "right", "center") else "left" for column in part.columns]
    head = f"<thead>{_row(titles, sides, 'th')}</thead>" if part.show_header else ""
    body = "".join(_row([_plain(cell) for cell in row], sides, "td") for row in rows)
    return f'<table style="{STYLE}">{head}<tbody>{body}</tbody></table>'


def folded(title: str, html: str) -> str:
    """Something that a click opens."""
    return f"<details><summary>{escape(title)}</summary>{html}</details>"


def source_html(text: str) -> str:
    """Source code, as it is."""
    return f'<pre style="font-size:85%;line-height:1.25">{escape(text)}</pre>'


def _row(cells: Sequence[str], sides: Sequence[str], tag: str) -> str:
    found = (f'<{tag} style="text-align:{side};{CELL}">{escape(cell)}</{tag}>' for cell, side in zip(cells, sides, strict=True))
    return f"<tr>{''.join(found)}</tr>"


def _plain(cell: Any) -> str:
    """A cell's text, without rich's markup."""
    return cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain
