"""Rotor: the optimal checkpointing of a chain with two choices per block (Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova
2019).

A block either keeps all that its backward pass needs, or only its input, and then runs forward again when its turn comes; by
dynamic programming over sub-chains and memory (`rk_rotor.Table`) both are chosen for all blocks at once, and blocks may be
passed over several times.

Cost model: the table's (sizes rounded up to slots), for the families with exactly these two options; then the simulator
judges the sequences, and the fastest that fits is taken. Complexity: O(L^2 M L) for L blocks and M slots, with a row for each
distinct sub-chain only. Ties: the table's. Oracle: `best_sequence` of `tests/graphs.py`. A graph that is no chain of blocks
is one block: all or nothing.
"""

from __future__ import annotations

from remat_codegen.graph.ir import Graph
from remat_codegen.planners.base.deadline import NO_LIMIT, Effort, stoppable
from remat_codegen.planners.base.judge import Candidate, check, is_chain
from remat_codegen.planners.base.keeping import candidate, chosen, keeping
from remat_codegen.planners.base.result import Plan
from remat_codegen.planners.chain.chain import Chain
from remat_codegen.planners.chain.options import Family, Grid, Piece, solve_family
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule.order import fixed

SLOTS = 2000  # memory slots in the need of a step without recomputation
TIGHTEST = 12  # how many of the smallest memories are always tried


@stoppable
def plan(graph: Graph, profile: Profile, budget_bytes: int, *, slots: int = SLOTS, effort: Effort = NO_LIMIT) -> Plan:
    """The fastest sequence of the chain within the budget."""
    plain = candidate(graph, profile, range(len(graph.nodes)))
    if plain.peak_bytes <= budget_bytes:
        return chosen("rotor", [plain], profile, budget_bytes)
    if not is_chain(graph):
        rebuilt = candidate(graph, profile, keeping(graph, ()))
        return chosen("rotor", [rebuilt], profile, budget_bytes, ("no chain of blocks: everything is rebuilt",))
    chain = chain_of(graph, profile)
    table = chain.table(plain.peak_bytes, slots)
    columns = table.distinct()

    def candidate_of(memory: int) -> Candidate:
        found = chain.candidate(table.operations(memory))
        check(graph, found.schedule)
        return found

    tried = {m: candidate_of(m) for m in columns[:TIGHTEST]}
    low, high = min(len(columns), TIGHTEST) - 1, len(columns)
    while high - low > 1:
        middle = (low + high) // 2
        effort.tell("fitting the budget", len(columns) - (high - low), len(columns))
        tried[columns[middle]] = found = candidate_of(columns[middle])
        low, high = (middle, high) if found.peak_bytes <= budget_bytes else (low, middle)
    return chosen("rotor", list(tried.values()) or [plain], profile, budget_bytes)


def chain_of(graph: Graph, profile: Profile) -> Chain:
    """The graph as a chain of blocks with two options each."""
    return Chain(graph, profile, lambda pieces: [two_options(p) for p in pieces], fixed(graph))


def two_options(piece: Piece) -> Family:
    """The family of a piece that keeps all or nothing."""
    return solve_family(piece, Grid(largest=0), lambda graph, profile: [keeping(graph, ())])
