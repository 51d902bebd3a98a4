"""The bound of a graph, looked for by another process while this one plans: its linear programs take as long as a plan does.

It is the same as in this process, since no clock is looked at. Where there is no second core, or no process comes of it, this
one looks for it when it is asked. The other one ends with this one, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from remat_codegen.graph.ir import Graph
from remat_codegen.planners.base.bound import Bound, bound
from remat_codegen.profile.costs import Profile

LARGE = 300  # nodes, from which on it takes longer than a process does to begin

Later = Callable[[float | None], Bound]  # within so many seconds, if they are given


@contextlib.contextmanager
def begun(graph: Graph, profile: Profile, budget_bytes: int, *, apart: bool = True) -> Iterator[Later]:
    """In here, a bound is looked for; who asks for it waits until it is there. `apart` says whether another process may."""
    process = _process(graph, profile, budget_bytes) if apart and len(graph.nodes) >= LARGE and _cores() > 1 else None

    def later(seconds: float | None) -> Bound:
        found = None if process is None else _answer(process)
        return bound(graph, profile, budget_bytes, seconds=seconds) if found is None else found

    try:
        yield later
    finally:
        if process is not None:
            with process:  # which closes its pipe, and waits
                process.kill()


def _process(graph: Graph, profile: Profile, budget_bytes: int) -> subprocess.Popen[bytes] | None:
    """The process; None where none can be made. It gets what it has to know by a file, so that nobody waits for it to read. It
    imports nothing from the folder that it is started in, unless PYTHONPATH names that."""
    if not sys.executable:  # Python within another program
        return None
    places = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(Path(__file__).resolve().parents[3])]
    around = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))}
    with contextlib.suppress(OSError, ValueError), tempfile.TemporaryFile() as given:
        pickle.dump((graph, profile, budget_bytes), given)
        given.seek(0)
        command = [sys.executable, "-P", "-m", __name__]
        return subprocess.Popen(command, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=around)
    return None


def _answer(process: subprocess.Popen[bytes]) -> Bound | None:
    """What a process says; None where it came to no end."""
    said, _ = process.communicate()
    words = said.split()
    if process.returncode or len(words) != 2:
        return None
    return Bound(None if words[0] == b"None" else int(words[0]), int(words[1]))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    """What the other process does."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    graph, profile, budget_bytes = pickle.load(sys.stdin.buffer)
    found = bound(graph, profile, budget_bytes)
    print(found.time_ns, found.cuts)


if __name__ == "__main__":
    main()
