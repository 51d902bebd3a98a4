"""What a plan says: an order of computing and forgetting; its validator and its simulator.

`steps` is the form of every plan, `simulate` judges it, `order` is the plan without its forgetting, `lives` what an order holds
when: what searches work on, and the copies that a schedule makes; `blocks` what a GPU's allocator makes of it.
"""

from remat_codegen.schedule.blocks import left_unsplit
from remat_codegen.schedule.lives import Copy, copies_of
from remat_codegen.schedule.order import is_same_but_for_turns, order_of, runs_once, settled_lives, without_dead_runs
from remat_codegen.schedule.simulate import Pricing, Timeline, alive_before, simulate, validate
from remat_codegen.schedule.steps import Compute, Forget, Schedule, Step, with_forgets, without_recomputation

__all__ = [
    "Compute",
    "Copy",
    "Forget",
    "Pricing",
    "Schedule",
    "Step",
    "Timeline",
    "alive_before",
    "copies_of",
    "is_same_but_for_turns",
    "left_unsplit",
    "order_of",
    "runs_once",
    "settled_lives",
    "simulate",
    "validate",
    "with_forgets",
    "without_dead_runs",
    "without_recomputation",
]
