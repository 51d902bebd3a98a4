"""Work for a core that is idle: a copy of this process does it, and says what came of it.

What is in memory needs no telling (a model cannot be pickled, as a rule), and nothing that the copy changes is seen here. The
copy has no threads but its own; so none is made where others may hold what it waits for, or a GPU is in use.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

import torch

from remat_codegen.show import heartbeat

PATIENCE = 10  # times as long as this process had to do since then, and as many seconds, until a copy is taken for stuck
T = TypeVar("T")


class Work(Generic[T]):
    """Something to find out: by a copy of this process, if it is `apart`, and else by this one, when it is asked."""

    def __init__(self, find: Callable[[], T], answers: Connection | None) -> None:
        self._find, self._answers, self._found, self._began = find, answers, list[T](), time.monotonic()

    @property
    def apart(self) -> bool:
        """Whether another process is at it."""
        return self._answers is not None

    def result(self) -> T:
        """What is found; waits until it is there."""
        if not self._found:
            answer: tuple[T] | None = None if self._answers is None else self._received(self._answers)
            self._found.append(self._find() if answer is None else answer[0])
        return self._found[0]

    def _received(self, answers: Connection) -> tuple[T] | None:
        """What the copy says, as the only one of a tuple; None where it comes to no end."""
        meanwhile = time.monotonic() - self._began
        with contextlib.suppress(EOFError):
            return answers.recv() if answers.poll(PATIENCE * (1 + meanwhile)) else None
        return None


@contextlib.contextmanager
def begun(find: Callable[[], T], *, apart: bool = True) -> Iterator[Work[T]]:
    """In here, `find` is at work, where another process may do it. What it gives has to be something to pickle."""
    if not (apart and can_fork()):
        yield Work(find, None)
        return
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_answer, args=(find, theirs), daemon=True)
    try:
        process.start()
    except OSError:  # no memory, or too many processes
        yield Work(find, None)
        return
    theirs.close()  # so that ours ends with the process
    try:
        yield Work(find, ours)
    finally:
        process.kill()
        process.join()
        ours.close()


def can_fork() -> bool:
    """Whether a copy of this process can run by itself, and has a core to do so."""
    others = [t for t in threading.enumerate() if t is not threading.current_thread() and t.name != heartbeat.NAME]
    here = sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1
    return here and not others and not torch.cuda.is_initialized() and not multiprocessing.current_process().daemon


def _answer(find: Callable[[], T], answers: Connection) -> None:
    """What the copy does. It has no crew for products in parallel, which is of threads that stayed behind, and says nothing."""
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = io.StringIO()  # of which no thread that stayed behind has a lock
    answers.send((find(),))
