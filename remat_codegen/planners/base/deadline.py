"""A time limit that any planner keeps to, and the best plan that it has come upon so far.

    with within(Watch(graph, until)) as watch:
        ...                    # somewhere inside: check() raises TimeUp once the time is over, offer() tells of a plan

What searches calls `check()` where it begins a round, and integer programs get no more time than there is. Outside of a
`within`, which is a matter of the thread that runs in it, none of this does anything: plans do not depend on a clock then.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from remat_codegen.graph.ir import Graph

Order = tuple[int, ...]


class TimeUp(Exception):
    """The time is over."""


@dataclass(slots=True)
class Watch:
    """Until when a plan of `graph` is looked for, by time.monotonic(), and the fastest order that was offered."""

    graph: Graph
    until: float
    best: Order | None = None
    best_ns: int = 0


_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextlib.contextmanager
def within(watch: Watch) -> Iterator[Watch]:
    """What runs in here keeps to the watch."""
    token = _watch.set(watch)
    try:
        yield watch
    finally:
        _watch.reset(token)


def check() -> None:
    """Raises TimeUp where there is a limit, and it has passed."""
    watch = _watch.get()
    if watch is not None and time.monotonic() > watch.until:
        raise TimeUp


def seconds_left(most: float) -> float:
    """What there is of so many seconds."""
    watch = _watch.get()
    return most if watch is None else max(0.1, min(most, watch.until - time.monotonic()))


def offer(graph: Graph, order: Order, time_ns: int) -> None:
    """Tells of an order that keeps to the budget, in case the time is over before there is a better one."""
    watch = _watch.get()
    if watch is not None and (watch.best is None or time_ns < watch.best_ns) and graph == watch.graph:
        watch.best, watch.best_ns = order, time_ns
