"""The page as one HTML file that asks nothing of the network: layout by a template, the library that draws inlined."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from markupsafe import Markup

from remat_codegen.ask.budget import format_bytes
from remat_codegen.emit.templates import templates
from remat_codegen.page.data import Page
from remat_codegen.page.lives import shown_time

HERE = Path(__file__).resolve().parent
FEW_MODULES = 24  # rows; up to here a table is shown one level deeper


def render(page: Page) -> str:
    """The page's text: a pure function of its data."""
    environment = templates(escapes=True)
    environment.filters |= {"bytes": format_bytes, "percent": _percent, "time": shown_time, "last_name": _last_name}
    given: dict[str, Any] = {
        "page": page,
        "data": _as_script(page),
        "depth": _depth(page),
        "share": _share,
        "highest": page.planned.total_bytes.index(page.figures.planned_peak_bytes) if page.runs else None,
        "style": Markup(_asset("vendor/uPlot.min.css") + _asset("page.css")),
        "library": Markup(_asset("vendor/uPlot.iife.min.js")),
        "script": Markup(_asset("page.js")),
    }
    return environment.get_template("page.html.jinja").render(given)


def _asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _as_script(page: Page) -> Markup:
    """JSON that ends no script element, whatever sources say, and starts no comment in it."""
    text = json.dumps(page.to_json(), ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _depth(page: Page) -> int:
    """How deep the table of modules is open at first."""
    depth = 1
    while depth < 3 and sum(m.depth <= depth + 1 for m in page.modules) <= FEW_MODULES:
        depth += 1
    return depth


def _last_name(path: str) -> str:
    """How a module is called among its neighbours: attn of h.3.attn, but h.3 of h.3, since 3 says nothing."""
    outer, _, name = path.rpartition(".")
    return f"{outer.rpartition('.')[2]}.{name}" if name.isdigit() and outer else name


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"


def _share(part: float, whole: float) -> str:
    """A width for a style: 43.9%."""
    return f"{100 * min(1.0, part / whole):.2f}%" if whole else "0%"
