"""Which of a file's plans is meant, where it has one for each of several budgets or batch sizes."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from remat_codegen.ask.budget import Budget, format_bytes, parse_budget, parse_budgets
from remat_codegen.errors import BudgetError
from remat_codegen.header.saved_plan import SavedPlan


def plan_for(plan: SavedPlan | None, budget: str | None, file: Path, batch: int | None = None) -> SavedPlan | None:
    """The one of a file's plans that is for a budget, given in bytes or as the file's command has it, or for a batch size; the
    first if neither is given. Raises BudgetError where the file has no such plan."""
    found = plan
    if budget is not None:
        found = None if plan is None else _same(plan, parse_budget(budget))
        if found is None:
            raise BudgetError(f"has no plan for a budget of {budget}", where=str(file), hint=_listed(plan))
    if batch is not None:
        found = None if plan is None else next((one for one in plan.all() if one.batch == batch), None)
        if found is None:
            raise BudgetError(f"has no plan for a batch of {batch}", where=str(file), hint=_listed(plan))
    return found


def plan_taken(plan: SavedPlan | None, budget_bytes: int | None, batch: int | None) -> SavedPlan | None:
    """The one of a file's plans that a step runs by: that for a budget or, of those for batch sizes, the least that is large
    enough; the first if neither is given. None where there is none for the budget."""
    if plan is None or (budget_bytes is None and batch is None):
        return plan
    if budget_bytes is not None:
        return next((one for one in plan.all() if one.budget_bytes == budget_bytes), None)
    enough = [one for one in plan.all() if one.batch is not None and batch is not None and one.batch >= batch]
    return enough[-1] if enough else plan  # the largest batch is first


def budget_bytes(plan: SavedPlan | None, budget: str) -> int:
    """The bytes of a budget that a file is judged by. A share that the file has a plan for is what that plan says; others are
    of the unmodified peak."""
    asked = parse_budget(budget)
    found = None if plan is None else _same(plan, asked)
    return asked.resolve(0 if plan is None else plan.unmodified_peak_bytes) if found is None else found.budget_bytes


def _same(plan: SavedPlan, asked: Budget) -> SavedPlan | None:
    """The plan whose budget is so many bytes, or the same share. Shares are compared as they are written: they were of the peak
    and some slack, which no plan says."""
    if asked.nbytes is not None:
        return next((one for one in plan.all() if one.budget_bytes == asked.nbytes), None)
    other = next((one for one in plan.others if asked.percent in _shares(one)), None)
    return plan if other is None and asked.percent in _shares(plan) else other  # the first names the budgets of all


def _shares(plan: SavedPlan) -> list[Fraction]:
    return [budget.percent for budget in parse_budgets(plan.budget) if budget.percent is not None]


def _listed(plan: SavedPlan | None) -> str:
    """The budgets or batch sizes that there are, as they can be given."""
    if plan is None:
        return "its header has no plan that tells what it is for; run remat-codegen update"
    budgets = dict.fromkeys(f"{one.budget_bytes} ({format_bytes(one.budget_bytes)})" for one in plan.all())
    listed = f"it has {'one' if len(budgets) == 1 else 'those'} for {', '.join(budgets)}"
    sizes = ", ".join(str(one.batch) for one in plan.all() if one.batch is not None)
    return f"{listed} at each batch of {sizes}" if sizes else listed
