"""The files that measured costs are kept in between runs, one for each device, version of PyTorch and choice of kernels: where
they are, listed, cleared, written whole. Without torch."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

LEAST = "least"  # the key of what the machine's pace was at its best, beside the costs


@dataclass(frozen=True, slots=True)
class Stored:
    """A file of measured costs. `entries` is None where it cannot be read."""

    path: Path
    entries: int | None
    nbytes: int


def folder() -> Path:
    """The folder of the files; it need not be there."""
    return user_cache_path("remat-codegen")


def files() -> list[Stored]:
    """What is kept."""
    return [Stored(path, _count(path), path.stat().st_size) for path in sorted(folder().glob("costs-*.json"))]


def _count(path: Path) -> int | None:
    try:
        return len(json.loads(path.read_text()).keys() - {LEAST})
    except (OSError, ValueError, AttributeError):
        return None


def clear() -> None:
    """Removes what is kept, and what an interrupted run may have left beside it. Raises OSError where that cannot be done."""
    for path in (*folder().glob("costs-*.json"), *folder().glob("costs-*.new")):
        path.unlink(missing_ok=True)


def write(path: Path, text: str) -> None:
    """Replaces a file, which no reader sees half of. Whatever goes wrong, nothing is left beside it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(prefix=f"{path.stem}.", suffix=".new", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(beside, path)
    except BaseException:  # Ctrl-C, too
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
