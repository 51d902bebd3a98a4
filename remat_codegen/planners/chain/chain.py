"""A graph as a chain of blocks with their options, and what a sequence of runs of blocks makes of the whole step (Rockmate,
section 3.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from remat_codegen.graph.ir import Block, Graph
from remat_codegen.planners.base.deadline import NO_LIMIT, Effort
from remat_codegen.planners.base.judge import Candidate, cost
from remat_codegen.planners.chain.options import Family, Grid, Piece, cut_out, pinned_data, solve_family
from remat_codegen.planners.chain.rk_rotor import Backward, Link, Operation, Table
from remat_codegen.planners.search import hierarchy
from remat_codegen.profile.costs import Profile
from remat_codegen.schedule import runs_once, with_forgets, without_dead_runs

MANY_KINDS = 40  # of blocks: each is solved for fewer budgets
MOST_KINDS = 80  # of blocks: none is solved by integer programs
FAMILIES_SECONDS = 180.0  # for the integer programs of all kinds together, the same for each


@lru_cache(maxsize=256)
def family_of(piece: Piece, grid: Grid) -> Family:
    """Families do not depend on the budget: a second plan of the same model finds them here."""
    return solve_family(piece, grid, hierarchy.family_orders)


def _coarser(grid: Grid, kinds: int) -> Grid:
    """Fewer budgets where there are many kinds of blocks, and no integer programs where there are very many."""
    if kinds > MOST_KINDS:
        return replace(grid, largest=0)
    return replace(grid, saved_levels=min(grid.saved_levels, 4), peak_levels=1) if kinds > MANY_KINDS else grid


def of_options(graph: Graph, profile: Profile, grid: Grid, effort: Effort = NO_LIMIT) -> Chain:
    """The chain whose blocks have the options that the grid asks for, solved by integer programs."""

    def solved(pieces: Sequence[Piece]) -> list[Family]:
        spaced = replace(_coarser(grid, len(pieces)), family_s=FAMILIES_SECONDS / len(pieces))
        families = []
        for done, piece in enumerate(pieces):
            effort.tell("solving blocks", done, len(pieces))
            families.append(family_of(piece, spaced))
        return families

    return Chain(graph, profile, solved, runs_once(graph))


class Chain:
    """A graph as a chain of pieces with their families, which `solved` gives for the different ones, in the same order. What
    stands in `once` runs once, unless everything of it that is read stays anyway."""

    def __init__(
        self, graph: Graph, profile: Profile, solved: Callable[[Sequence[Piece]], Sequence[Family]], once: frozenset[int]
    ) -> None:
        self.graph, self.profile, self.once = graph, profile, once
        self.pinned = pinned_data(graph)
        cut = [cut_out(graph, profile, b, self.pinned) for b in graph.blocks]
        self.nodes = [nodes for _, nodes in cut]
        distinct = list(dict.fromkeys(piece for piece, _ in cut))
        self.distinct = list(solved(distinct))
        families = dict(zip(distinct, self.distinct, strict=True))
        self.families = [families[piece] for piece, _ in cut]
        self.settled = self._settled()
        self.links = [Link(f, self._sealed(b)) for f, b in zip(self.families, graph.blocks, strict=True)]

    @property
    def coarse(self) -> bool:
        """Whether the blocks are of so many kinds that each was solved for fewer budgets."""
        return len(self.distinct) > MANY_KINDS

    @property
    def timed_out(self) -> bool:
        """Whether any integer program was stopped early."""
        return any(f.timed_out for f in self.distinct)

    def notes(self) -> tuple[str, ...]:
        """For the user: what the plan is made of."""
        options = sum(len(f.options) for f in self.distinct)
        solves = sum(f.solves for f in self.distinct)
        blocks = f"{options} options from {solves} integer programs"
        return (blocks, "some integer programs ran out of time") if self.timed_out else (blocks,)

    def _settled(self) -> frozenset[int]:
        """Forward nodes that need not run again, because everything of theirs that is read stays."""
        read = {d for n in self.graph.nodes for d in n.reads}
        return frozenset(n.id for n in self.graph.forward_nodes if all(d in self.pinned or d not in read for d in n.writes))

    def _sealed(self, block: Block) -> bool:
        return any(i in self.once and i not in self.settled for i in range(block.first, block.last + 1))

    def table(self, plain_bytes: int, slots: int) -> Table:
        """The dynamic program, with enough slots for the options that keep all."""
        unit = max(1, -(-plain_bytes // slots))
        kept = 0
        for link in self.links:
            most = max(link.family.options, key=lambda o: o.saved_bytes)
            kept += -(-(most.saved_bytes + link.family.piece.output_bytes) // unit)
        extra = max(
            max(o.forward_peak_bytes, o.backward_peak_bytes) + f.piece.entering_bytes for f in self.distinct for o in f.options
        )
        return Table(self.links, unit, kept + extra // unit + 2)

    def candidate(self, operations: Sequence[Operation]) -> Candidate:
        """The schedule of a sequence of runs of blocks, not yet validated: many are tried, one is chosen."""
        order = self._order(operations)
        return cost(self.graph, self.profile, with_forgets(self.graph, without_dead_runs(self.graph, order)))

    def _order(self, operations: Sequence[Operation]) -> list[int]:
        """From runs of blocks to runs of nodes."""
        order: list[int] = []
        ran: set[int] = set()
        for operation in operations:
            nodes = self.nodes[operation.block]
            if isinstance(operation, Backward):
                local = self.families[operation.block].options[operation.option].backward
                own = operation.block == len(self.nodes) - 1
                order.extend(nodes[i] for i in local if nodes[i] != self.graph.loss or own)
                continue
            forward = nodes[: nodes.index(self.graph.loss)]
            order.extend(i for i in forward if i not in ran or i not in self.settled)
            ran.update(forward)
        return order
