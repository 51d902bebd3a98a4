"""How long a planner may take, what stops it, and the best plan that it has come upon by then.

    @stoppable
    def plan(graph, profile, budget_bytes, *, effort=NO_LIMIT):
        ...  # somewhere inside: effort.tell() and check() raise TimeUp past the deadline, offer() tells of a plan

What searches calls `check()` where it begins a round. Integer programs get no more time than there is, and TimeUp is raised
where that cut one short: what is remembered of a graph is never half done. Planners that have an answer of their own when the
time is over (`checkmate`, `best`) are not stoppable and look at the deadline themselves.

Without a deadline none of this does anything: plans do not depend on a clock then. A deadline is a matter of the thread in
which the planner runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

from remat_codegen.graph.ir import Graph
from remat_codegen.planners.base.result import Plan
from remat_codegen.profile.costs import Profile

Order = tuple[int, ...]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a planner may take: until its `deadline`, by time.monotonic(), and `per_solve` seconds for one integer program;
    None where that is left to the planner. `progress(what, done, total)` is called as the work goes on."""

    deadline: float | None = None
    per_solve: float | None = None
    progress: Progress | None = None

    @classmethod
    def lasting(cls, seconds: float | None, progress: Progress | None = None) -> Effort:
        """So many seconds from now on. None: no limit."""
        return cls(None if seconds is None else time.monotonic() + seconds, progress=progress)

    def until(self, usual_seconds: float) -> float:
        """The deadline, or where there is none, the usual seconds from now on."""
        return time.monotonic() + usual_seconds if self.deadline is None else self.deadline

    def one_solve(self, usual_seconds: float) -> float:
        """The seconds for one integer program."""
        return usual_seconds if self.per_solve is None else self.per_solve

    def tell(self, what: str, done: int, total: int) -> None:
        """Tells how far the work is. Raises TimeUp once the time is over."""
        check()
        if self.progress is not None:
            self.progress(what, done, total)


NO_LIMIT = Effort()


class TimeUp(Exception):
    """The time is over. `best` is the fastest order that was offered by then."""

    def __init__(self, best: Order | None = None) -> None:
        super().__init__()
        self.best = best


@dataclass(slots=True)
class Watch:
    """Until when a plan of `graph` within the budget is looked for, by time.monotonic(), and the fastest that was offered."""

    graph: Graph
    budget_bytes: int
    until: float
    best: Order | None = None
    best_ns: int = 0


_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextlib.contextmanager
def within(watch: Watch | None) -> Iterator[None]:
    """What runs in here keeps to the watch; to none, if it is None."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def stoppable(planner: Callable[..., Plan]) -> Callable[..., Plan]:
    """The planner, which raises TimeUp when its effort's deadline is over; inside of another one, when that one's is."""

    @wraps(planner)
    def run(graph: Graph, profile: Profile, budget_bytes: int, *, effort: Effort = NO_LIMIT, **options: Any) -> Plan:
        if effort.deadline is None or _watch.get() is not None:
            return planner(graph, profile, budget_bytes, effort=effort, **options)
        with within(Watch(graph, budget_bytes, effort.deadline)):
            return planner(graph, profile, budget_bytes, effort=effort, **options)

    return run


def check(*, cut_short: bool = False) -> None:
    """Raises TimeUp where there is a deadline, and it has passed, or cut something short."""
    watch = _watch.get()
    if watch is not None and (cut_short or time.monotonic() > watch.until):
        raise TimeUp(watch.best)


def seconds_left(most: float) -> float:
    """What there is of so many seconds."""
    watch = _watch.get()
    return most if watch is None else max(0.1, min(most, watch.until - time.monotonic()))


def offer(graph: Graph, order: Order, time_ns: int, limit_bytes: int) -> None:
    """Tells of an order that keeps to so many bytes, in case the time is over before there is a better one. Planners look at
    other limits, too, than what is asked for."""
    watch = _watch.get()
    if watch is None or limit_bytes > watch.budget_bytes or (watch.best is not None and time_ns >= watch.best_ns):
        return
    if graph == watch.graph:
        watch.best, watch.best_ns = order, time_ns
