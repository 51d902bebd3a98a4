"""Overhead against budget for a graph: what quick planners find within some budgets, and what is proved of each."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from remat_codegen.ask.budget import Budget
from remat_codegen.graph.ir import Graph
from remat_codegen.page.data import Point, Tradeoff
from remat_codegen.planners.base.bound import bound
from remat_codegen.profile.costs import Profile
from remat_codegen.run.planning import Outcome, lower_bound, run_planner
from remat_codegen.run.priced import Priced
from remat_codegen.show.results import Progress

QUICK = ("dtr-msps", "rotor")  # together a second or so for each budget
BUDGETS = 8  # beside those of the file's own plans, and the one that is a tenth larger
MORE = Fraction(11, 10)
COLUMNS = 2000  # of the programs that bound each budget: a tenth of what a plan's own bound takes, and about as good


def least_bytes(graph: Graph, profile: Profile) -> int:
    """What every schedule needs: room for one node, with all that it reads and writes."""
    sizes = ({*n.reads, *n.writes} for n in graph.nodes)
    needed = (sum(graph.data[d].nbytes for d in own) for own in sizes)
    return max((a + b for a, b in zip(needed, profile.workspace_bytes, strict=True)), default=0)


def tradeoff(found: Priced, own: Point, planners: Sequence[str], progress: Progress, others: Sequence[Point] = ()) -> Tradeoff:
    """Points from less than the file's budget up to the step without recomputation; `own` is the file's, `others` are those of
    its other plans."""
    least = least_bytes(found.graph, found.profile)
    more, files = int(own.budget_bytes * MORE), (own, *others)
    budgets = _budgets(found, [p.budget_bytes for p in files], least, more)
    points: list[Point] = []
    with progress.stage("budgets"):
        for done, nbytes in enumerate(budgets):
            progress.update(done, len(budgets))
            points.append(_best(points, _point(found, nbytes, planners, progress), files))
    bought = next((p for p in points if p.budget_bytes == more), None)
    return Tradeoff(own, tuple(others), tuple(points), tuple(planners), least, bought)


def _budgets(found: Priced, files: Sequence[int], least: int, more: int) -> list[int]:
    top = found.plain_bytes + found.reserve.slack_bytes
    low = min(max(least, int(min(files) * Fraction(6, 10))), top)
    spread = [low + (top - low) * i // (BUDGETS - 1) for i in range(BUDGETS)]
    return sorted({*spread, *(b for b in (*files, more) if b <= top)})


def _point(found: Priced, nbytes: int, planners: Sequence[str], progress: Progress) -> Point:
    """The best of the planners' plans within a budget, and the bound of that."""
    budget = Budget(str(nbytes), nbytes=nbytes)
    outcomes = [run_planner(found, name, budget, progress) for name in planners]
    fitting = [o for o in outcomes if o.fits]
    least = lower_bound(found, bound(found.graph, found.profile, nbytes, columns=COLUMNS).time_ns)
    if not fitting:
        return Point(nbytes, None, "", least)
    best = min(fitting, key=lambda o: o.plan.time_ns)
    return Point(nbytes, _overhead(found, best), best.planner, least)


def _overhead(found: Priced, outcome: Outcome) -> float:
    return outcome.overhead(found.plain_ns) or 0.0


def _best(smaller: Sequence[Point], point: Point, files: Sequence[Point]) -> Point:
    """A point, with a plan for a smaller budget where that is faster: it fits the larger one, too."""
    known = [*(p for p in (*smaller[-1:], point) if p.overhead is not None)]
    known += [own for own in files if own.budget_bytes <= point.budget_bytes and own.overhead is not None]
    if not known:
        return point
    best = min(known, key=lambda p: p.overhead if p.overhead is not None else 0.0)
    return Point(point.budget_bytes, best.overhead, best.planner, point.bound)
