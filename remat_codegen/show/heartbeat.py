"""A line now and then while something takes long, so that a log, where nothing moves, shows that it goes on."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

FIRST_SECONDS, NEXT_SECONDS = 15.0, 30.0  # of silence before the first line, and before each that follows
NAME = "remat-codegen heartbeat"  # of the thread


@dataclass(slots=True)
class Stage:
    """A part of a run: when it began, what stages inside it took, and how far it has come."""

    name: str
    start: float
    inside: float = 0.0
    counted: str = ""

    def line(self) -> str:
        """What a log says while it runs."""
        return ", ".join(part for part in (f"{self.name} ... {time.perf_counter() - self.start:.0f} s", self.counted) if part)


@contextlib.contextmanager
def past_silence(file: IO[str]) -> Iterator[IO[str]]:
    """The same file by a descriptor of its own: while a solver works, descriptors 1 and 2 lead nowhere (`planners/milp.py`).

    A file without a descriptor is taken as it is.
    """
    number = None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        number = os.dup(file.fileno())
    if number is None:
        yield file
        return
    with open(number, "w", encoding=getattr(file, "encoding", None), errors="replace", buffering=1) as copy:
        yield copy


class Heartbeat:
    """Calls `say` from a thread of its own after some silence, until it is stopped. `stir` tells of a line by somebody else."""

    def __init__(self, say: Callable[[], None]) -> None:
        self._say, self._stopped, self._stirred = say, False, threading.Event()
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        wait = FIRST_SECONDS
        while not self._stopped:
            if self._stirred.wait(wait):
                self._stirred.clear()
                wait = FIRST_SECONDS
            else:
                with contextlib.suppress(OSError, ValueError):  # nobody reads any more, which the next line tells
                    self._say()
                wait = NEXT_SECONDS

    def stir(self) -> None:
        """The silence begins anew."""
        self._stirred.set()

    def stop(self) -> None:
        """Nothing is said any more once this returns."""
        self._stopped = True
        self._stirred.set()
        self._thread.join()
