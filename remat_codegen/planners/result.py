"""What every planner returns."""

from __future__ import annotations

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

    `time_ns` and `peak_bytes` are the simulator's. `bound_ns` is a step time that no schedule within the budget can
    beat, where the
    planner knows one. `minimum_bytes` is, for an infeasible plan, the smallest budget known to work. `notes` are for the user.
    """

    planner: str
    status: Status
    schedule: Schedule | None
    time_ns: int = 0
    peak_bytes: int = 0
    bound_ns: int | None = None
    minimum_bytes: int | None = None
    notes: tuple[str, ...] = ()
