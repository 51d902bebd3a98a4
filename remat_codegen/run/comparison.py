"""Planners side by side, over budgets: what `remat-codegen compare` finds out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remat_codegen.advice.aswritten import schedule_of
from remat_codegen.ask.budget import Budget, format_bytes
from remat_codegen.planners.base.bound import bound
from remat_codegen.planners.base.result import Plan, Status
from remat_codegen.run.planning import Outcome, lower_bound, peak_of, run_planner
from remat_codegen.run.priced import Priced
from remat_codegen.schedule import simulate
from remat_codegen.show.results import AS_WRITTEN, Progress


@dataclass(frozen=True, slots=True)
class Compared:
    """Every planner at every budget. `outcomes` are by planner, in the order of `budgets`; so are `bounds_ns` (None where no
    schedule fits)."""

    found: Priced
    budgets: tuple[Budget, ...]
    bounds_ns: tuple[int | None, ...]
    outcomes: dict[str, tuple[Outcome, ...]]

    @property
    def limits(self) -> tuple[int, ...]:
        """The budgets in bytes."""
        return tuple(self.found.limit(b) for b in self.budgets)

    def least(self, position: int) -> int | None:
        """The best lower bound at a budget: the general one, or what a planner proved. None where no schedule fits."""
        proved = [o[position].plan.bound_ns for o in self.outcomes.values() if o[position].fits]
        known = [b for b in (self.bounds_ns[position], *proved) if b is not None]
        return None if self.bounds_ns[position] is None else max(known)

    def to_json(self) -> dict[str, Any]:
        """The object that `compare --json` prints."""
        found, count = self.found, range(len(self.budgets))
        bounds = [lower_bound(found, self.least(i)) for i in count]
        return {
            "label": found.label,
            "nodes": len(found.graph.nodes),
            "unmodified_peak_bytes": found.plain_bytes,
            "unmodified_time_ns": found.plain_ns,
            "time_scale": found.scale,
            "budgets": [b.text for b in self.budgets],
            "budget_bytes": list(self.limits),
            "bound": bounds,
            "planners": {name: [self._row(o) for o in row] for name, row in self.outcomes.items()},
            "notes": list(found.notes),
        }

    def _row(self, outcome: Outcome) -> dict[str, Any]:
        plan, overhead = outcome.plan, outcome.overhead(self.found.plain_ns)
        return {
            "status": str(plan.status),
            "overhead": overhead,
            "peak_bytes": peak_of(self.found, outcome),
            "minimum_bytes": plan.minimum_bytes,
            "seconds": round(outcome.seconds, 3),
        }


def compare(
    found: Priced,
    budgets: Sequence[Budget],
    planners: Sequence[str],
    progress: Progress,
    *,
    time_limit: float | None = None,
    limits: Mapping[str, float] | None = None,
) -> Compared:
    """Runs every planner at every budget; each plan is validated and simulated. `time_limit` is for one plan, in seconds;
    `limits` are those of single planners.

    A model that checkpoints by itself has a row for that, and one budget more: the memory that this takes."""
    given = limits or {}
    budgets = [*budgets, *_own_budget(found)]
    with progress.stage("bound"):
        bounds = []
        for done, budget in enumerate(budgets):
            progress.update(done, len(budgets))
            bounds.append(bound(found.graph, found.profile, found.limit(budget)).time_ns)
    outcomes: dict[str, tuple[Outcome, ...]] = _own_row(found, budgets)
    for name in planners:
        with progress.stage(name):
            outcomes[name] = tuple(
                run_planner(found, name, b, progress, time_limit=given.get(name, time_limit)) for b in budgets
            )
    return Compared(found, tuple(budgets), tuple(bounds), outcomes)


def _own_budget(found: Priced) -> list[Budget]:
    """As much memory as the model takes with the checkpoints of its own, if it has some that are priced."""
    if found.as_written is None or found.as_written.peak_bytes is None:
        return []
    nbytes = found.as_written.peak_bytes + found.reserve.slack_bytes
    return [Budget(str(nbytes), nbytes=nbytes)]


def _own_row(found: Priced, budgets: Sequence[Budget]) -> dict[str, tuple[Outcome, ...]]:
    """What the model's own checkpoints take at each budget, by the one name of that."""
    needed = _own_budget(found)
    if not needed or found.traced is None:
        return {}
    schedule = schedule_of(found.traced.model)
    assert schedule is not None
    timeline = simulate(found.graph, found.profile, schedule)
    least = found.limit(needed[0])
    runs = Plan(AS_WRITTEN, Status.FEASIBLE, schedule, timeline.time_ns, timeline.peak_bytes)
    fails = Plan(AS_WRITTEN, Status.INFEASIBLE, None, minimum_bytes=least)
    limits = [(budget.text, found.limit(budget)) for budget in budgets]
    rows = (Outcome(AS_WRITTEN, text, limit, runs if limit >= least else fails, None, 0.0) for text, limit in limits)
    return {AS_WRITTEN: tuple(rows)}


def budget_text(found: Priced, budget: Budget) -> str:
    """A budget as a heading: as it was written, percents without needless digits."""
    if budget.percent is not None:
        return f"{float(budget.percent):.4g} %"
    return format_bytes(found.limit(budget))
