"""Progress where a model's user is: on a terminal as the command line shows it, in a notebook as one line that changes.

Neither needs widgets; elsewhere, as in a script whose output goes to a file, nothing is shown.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

from rich.console import Console

from remat_codegen.show.results import Progress

SECONDS_BETWEEN = 0.25  # what is being measured shares the machine's cores with the notebook


def progress_for(shown: bool | None) -> Progress:
    """Progress that is shown, or not; None: where somebody may watch, in a notebook and on a terminal."""
    if shown is False:
        return Progress(None)
    display = _display()
    if display is not None:
        return NotebookProgress(display=display)
    console = Console(file=sys.stderr)
    return Progress(console if shown or console.is_terminal else None)


def _display() -> Any:
    """IPython's display function, if this is a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display


@dataclass(slots=True)
class NotebookProgress(Progress):
    """One line below the cell that names the stage and how far it has come; it goes when the work is done. Notes stay."""

    display: Any = None
    _handle: Any = None
    _names: list[str] = field(default_factory=list)
    _last: float = 0.0

    @contextlib.contextmanager
    def _shown(self, name: str) -> Iterator[None]:
        self._names.append(name)
        self._show(f"{escape(name)} …")
        try:
            yield
        finally:
            self._names.pop()
            self._show("" if not self._names else f"{escape(self._names[-1])} …")

    def update(self, done: int, total: int, what: str = "") -> None:
        """How far the present stage has come, with what it is doing."""
        if self._names and time.monotonic() - self._last > SECONDS_BETWEEN:
            bar = f'<progress value="{done}" max="{max(total, 1)}"></progress>'
            self._show(f"{escape(self._names[-1])} {bar} {done} of {total}")

    def _print(self, text: str) -> None:
        self.display(_Html(f"<div>{escape(text)}</div>", text))

    def _show(self, html: str) -> None:
        self._last = time.monotonic()
        shown = _Html(f"<div>{html}</div>" if html else "", "")
        if self._handle is None:
            self._handle = self.display(shown, display_id=True)
        else:
            self._handle.update(shown)


@dataclass(frozen=True, slots=True)
class _Html:
    """What a notebook shows."""

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text
