"""Writing files: all of it or nothing."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from remat_codegen.errors import OutputError


def check_writable(path: Path) -> None:
    """Raises OutputError where `write_atomically` would fail: to be known before minutes of work, not after."""
    handle, beside = _open_beside(_real(path), path)
    os.close(handle)
    os.unlink(beside)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces `path` by a file with this content, keeping the old file's mode; whatever goes wrong, the old file stays.

    Raises OutputError where the folder is missing or cannot be written, or something else than a file has this name.
    """
    real = _real(path)
    handle, beside = _open_beside(real, path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, _mode(real))
        os.replace(beside, real)
    except OSError as error:
        _remove(beside)
        raise OutputError(f"cannot be written: {error.strerror}", where=str(path)) from error
    except BaseException:  # Ctrl-C, too, leaves nothing behind
        _remove(beside)
        raise


def _real(path: Path) -> Path:
    """The file that is replaced: where `path` is a link, what it links to. Raises OutputError where it is no file."""
    real = Path(os.path.realpath(path))
    if real.is_dir():
        raise OutputError("is a folder, not a file to write", where=str(path), hint=f"write {path / 'NAME.py'}")
    if real.exists() and not real.is_file():  # renaming over a device or a pipe would replace it
        raise OutputError("is not a regular file", where=str(path), hint="name a file to write")
    return real


def _open_beside(real: Path, path: Path) -> tuple[int, str]:
    try:
        return tempfile.mkstemp(prefix=f".{real.name[:100]}.", suffix=".new", dir=real.parent)
    except FileNotFoundError as error:
        raise OutputError(f"the folder {real.parent} does not exist", where=str(path), hint="create it first") from error
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", where=str(path)) from error


def _mode(real: Path) -> int:
    try:
        return stat.S_IMODE(real.stat().st_mode)
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
