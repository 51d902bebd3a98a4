"""What `torch._functorch.config.activation_memory_budget` chooses (torch/_functorch/partitioners.py,
`choose_saved_values_set`).

Three steps, each taken only if the one before saves too much: the conservative minimum cut; the aggressive one; then the
aggressive one's bans are lifted for some nodes, chosen by a 0-1 knapsack: keep the banned nodes worth the most time
within the bytes allowed, recompute the others, and cut again.

Two things differ from torch. Sizes are rounded up to knapsack slots (torch rounds to nearest, and may exceed its budget). And
torch's budget is for saved bytes, while ours is for the peak: the bytes allowed are tried from all to none, and the fastest
plan whose simulated peak fits is taken. Where torch's choice for every number of bytes peaks higher: INFEASIBLE.

Cost model: in the knapsack a node costs its own time, whatever rebuilding its inputs costs; the simulator judges. Complexity:
items x slots for the table, computed once, and one max-flow for each distinct choice, at most `MOST_CHOICES`, fewer where
these together visit `MOST_WORK` nodes. Ties: the earlier nodes are kept. Oracle: all subsets, on small tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from remat_codegen.graph.ir import Graph, total_bytes
from remat_codegen.planners.base.deadline import NO_LIMIT, Effort, stoppable
from remat_codegen.planners.base.keeping import candidate, chosen, keeping
from remat_codegen.planners.base.result import Plan
from remat_codegen.planners.mincut import banned, least_saved
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule.order import fixed

SLOTS = 2000
MOST_CHOICES, LEAST_CHOICES = 24, 4
MOST_WORK = 30_000  # nodes times choices


@stoppable
def plan(graph: Graph, profile: Profile, budget_bytes: int, *, effort: Effort = NO_LIMIT) -> Plan:
    """The fastest of torch's choices that fits."""
    strict = banned(graph, profile, False)
    loose = banned(graph, profile, True)
    saved = [frozenset(range(len(graph.data))), least_saved(graph, strict), least_saved(graph, loose)]
    tried = [candidate(graph, profile, keeping(graph, s)) for s in saved]
    if all(c.peak_bytes > budget_bytes for c in tried):
        once = fixed(graph)
        items = [i for i in sorted(loose - once) if saved[-1].intersection(graph.nodes[i].writes)]
        weights = [total_bytes(graph, saved[-1].intersection(graph.nodes[i].writes)) for i in items]
        choices = keep_most([profile.time_ns[i] for i in items], weights, _count(graph))
        for done, kept in enumerate(choices):
            effort.tell("lifting bans", done, len(choices))
            lifted = {i for number, i in enumerate(items) if number not in kept}
            tried.append(candidate(graph, profile, keeping(graph, least_saved(graph, loose - lifted))))
    return chosen("knapsack", tried, profile, budget_bytes)


def _count(graph: Graph) -> int:
    """How many choices there is time for."""
    return max(LEAST_CHOICES, min(MOST_CHOICES, MOST_WORK // len(graph.nodes)))


def keep_most(values: Sequence[int], weights: Sequence[int], count: int) -> list[frozenset[int]]:
    """For `count` capacities from all weights to nothing: the items of most value that fit, without repetitions."""
    unit = max(1, -(-sum(weights) // SLOTS))
    slots = [-(-w // unit) for w in weights]
    size = sum(slots)
    best = np.zeros(size + 1)
    taken = np.zeros((len(values), size + 1), dtype=bool)
    for item, (value, slot) in enumerate(zip(values, slots, strict=True)):
        with_it = np.full(size + 1, -1.0)
        with_it[slot:] = best[: size + 1 - slot] + value
        taken[item] = with_it > best
        best = np.maximum(best, with_it)
    found: dict[frozenset[int], None] = {}
    for level in reversed(range(count)):
        room = size * level // max(count - 1, 1)
        kept = set()
        for item in reversed(range(len(values))):
            if taken[item, room]:
                kept.add(item)
                room -= slots[item]
        found[frozenset(kept)] = None
    return list(found)
