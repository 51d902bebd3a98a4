"""Spending: a run is taken out, and the copy of before is held instead, while there is room."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from remat_codegen.planners.base.deadline import check
from remat_codegen.schedule.lives import Limits, Lives, Order, Problem
from remat_codegen.schedule.order import without_dead_runs


def spend(problem: Problem, order: Order, limits: Limits, jitter: random.Random | None = None) -> Order:
    """Merges while there is room under the limits, the most time for the bytes first."""
    while True:
        check()
        lives = Lives(problem, order)
        room = limits.along(lives) - lives.during
        removed: set[int] = set()
        for position, longer in _merges(lives, jitter):
            if _take(room, position, longer, problem.size):
                removed.add(position)
        if not removed:
            return order
        order = without_dead_runs(problem.graph, [i for p, i in enumerate(order) if p not in removed])


def _merges(lives: Lives, jitter: random.Random | None) -> list[tuple[int, list[tuple[int, int]]]]:
    """The runs that could be taken out, best first, each with the copies (data, end) that would be held longer."""
    problem = lives.problem
    saves: dict[int, int] = {}
    found: list[tuple[float, int, list[tuple[int, int]]]] = []
    for position in lives.reruns():
        node = lives.order[position]
        gain = problem.time[node]
        for data in problem.reads[node]:
            source = lives.alive(data, position)
            if source is not None and source.readers == [position] and source.start in saves and source.before is not None:
                gain += saves[source.start]
        saves[position] = gain
        longer = [(c.data, c.held_from()) for c in lives.at[position] if c.readers]
        price = sum(problem.size[d] * (position - end) for d, end in longer)
        rate = gain / (price + 1)
        if jitter is not None:
            rate *= jitter.uniform(0.5, 2.0)
        found.append((-rate, position, longer))
    found.sort(key=lambda f: f[:2])
    return [(position, longer) for _, position, longer in found]


def _take(room: np.ndarray, position: int, longer: Sequence[tuple[int, int]], size: Sequence[int]) -> bool:
    """Holds copies longer if there is room for them all."""
    done: list[tuple[int, int]] = []
    for data, end in longer:
        part = room[end + 1 : position]
        if len(part) and int(part.min()) < size[data]:
            for other, start in done:
                room[start + 1 : position] += size[other]
            return False
        part -= size[data]
        done.append((data, end))
    return True
