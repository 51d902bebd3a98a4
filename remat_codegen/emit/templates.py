"""Layout by Jinja2: a template, and what it is given.

Each template of generated files has a `View`, a dataclass of that name whose fields are all that the template reads.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import ClassVar

import jinja2

MIB = 2**20


class View:
    """What a template is filled with; `template` is its file's name. A frozen dataclass, each field a variable of it."""

    template: ClassVar[str]

    def text(self) -> str:
        """The template, filled."""
        return templates().get_template(self.template).render({f.name: getattr(self, f.name) for f in fields(self)})  # type: ignore[arg-type]


@cache
def templates(escapes: bool = False) -> jinja2.Environment:
    """The layouts of what is written; `escapes` for HTML."""
    here = Path(__file__).resolve().parent.parent
    folders = [here / "templates", here.parent / "templates"]
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=escapes,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.globals["mib"] = lambda nbytes: f"{nbytes / MIB:,.1f} MiB"
    return found
