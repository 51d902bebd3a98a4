"""What a plan says: an order of computing and forgetting; its validator and its simulator.

`steps` is the form of every plan, `simulate` judges it, `order` is the plan without its forgetting, `lives` what an order holds
when: what searches work on.
"""

from remat_codegen.schedule.order import order_of, runs_once, without_dead_runs
from remat_codegen.schedule.simulate import Pricing, Timeline, alive_before, simulate, validate
from remat_codegen.schedule.steps import Compute, Forget, Schedule, Step, with_forgets, without_recomputation

__all__ = [
    "Compute",
    "Forget",
    "Pricing",
    "Schedule",
    "Step",
    "Timeline",
    "alive_before",
    "order_of",
    "runs_once",
    "simulate",
    "validate",
    "with_forgets",
    "without_dead_runs",
    "without_recomputation",
]
