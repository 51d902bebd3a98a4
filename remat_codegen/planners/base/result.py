"""What every planner returns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from remat_codegen.schedule import Schedule


class Status(StrEnum):
    """How a planner ended. INFEASIBLE comes without a schedule, all others with one."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    TIME_LIMIT = "time limit"  # a schedule, but the solver was stopped before it proved it optimal
    TOO_LARGE = "too large"  # a schedule by heuristics: the exact program would be too large to be written down
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True)
class Plan:
    """A planner's answer, judged by the one simulator.

    `time_ns` and `peak_bytes` are the simulator's. `bound_ns` is a step time that no schedule within the budget can beat, where
    the planner knows one. `minimum_bytes` is, for an infeasible plan, the smallest budget known to work, and `smallest` a
    schedule for it, where one is at hand. `notes` are for the user.
    """

    planner: str
    status: Status
    schedule: Schedule | None
    time_ns: int = 0
    peak_bytes: int = 0
    bound_ns: int | None = None
    minimum_bytes: int | None = None
    smallest: Schedule | None = None
    notes: tuple[str, ...] = ()

    @property
    def least(self) -> tuple[int, Schedule | None] | None:
        """The smallest budget known to work, with its schedule, of an infeasible plan."""
        return None if self.minimum_bytes is None else (self.minimum_bytes, self.smallest)


def smallest_of(plans: Iterable[Plan]) -> tuple[int | None, Schedule | None]:
    """The least budget that infeasible plans know to work, and its schedule."""
    return min((p.least for p in plans if p.least is not None), key=lambda found: found[0], default=(None, None))


def begun(start: str) -> str:
    """What a search began with, as a note: `start` is a planner, or "nothing", or "segments"."""
    known = {"nothing": "the step without recomputation", "segments": "recomputation by segments"}
    return f"the search began with {known.get(start, f'the plan of {start}')}"
