"""Cuts a graph into a chain of blocks at its 1-separators, and finds the equal ones (rk-GB, appendix A.4 and A.5).

A cut after forward node p is possible where exactly one value made before it is read after it. Small values that need no
gradient (a mask, a position bias's indices) may cross as well: they stay where they are. Where a block would be large
otherwise, so may larger ones: the plan is a little slower, and found in seconds.

Consecutive cuts leave pieces of one or two nodes (a final norm and its projection); neighbouring small pieces are
joined. For a GPT-2 of n layers this gives the paper's 2n + 2 blocks: the embedding, n attentions, n MLPs, the head. The
paper's five kinds come out too: as there, the last MLP counts as a kind of its own, because its output has one reader
instead of two.
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_codegen.graph.ir import Block, Graph, Kind, Node

SMALL_PIECE = 4  # nodes; pieces below this are joined with neighbouring small ones
JOINED_PIECE = 8  # nodes; the largest block made by joining
SMALL_SHARE = 0.01  # a value without gradient may cross a cut if it is at most this part of the largest value
SMALL_SHARE_OF_ALL = 0.01  # of all values together, for graphs that would have a large block otherwise
LARGE_BLOCK = 128  # nodes; a plan for more takes minutes


def cut_into_blocks(graph: Graph) -> tuple[Block, ...]:
    """The blocks of a graph, in order; together they hold every forward node."""
    sizes = [d.nbytes for d in graph.data if d.kind is Kind.VALUE]
    cuts = _Cuts(graph, SMALL_SHARE * max(sizes, default=0))
    if any(last - first >= LARGE_BLOCK for first, last in cuts.pieces()):
        cuts = _Cuts(graph, SMALL_SHARE_OF_ALL * sum(sizes))
    pieces = _join_small(cuts.pieces())
    kinds: dict[object, int] = {}
    blocks = []
    backward = {n.forward: n for n in graph.backward_nodes}
    for index, (first, last) in enumerate(pieces):
        input = cuts.separator(first - 1) if index else None
        output = cuts.separator(last) if index < len(pieces) - 1 else None
        key = _kind_key(graph, graph.forward_nodes[first : last + 1], backward, input, output)
        kind = kinds.setdefault(key, len(kinds))
        blocks.append(Block(index, first, last, input, output, kind))
    return tuple(blocks)


class _Cuts:
    """Which values cross from the nodes up to p to those after p, for every forward node p. `small` are the bytes of a value
    without gradient that may cross a cut."""

    def __init__(self, graph: Graph, small: float) -> None:
        self.graph, self.small = graph, small
        back = {n.forward for n in graph.backward_nodes}
        self.differentiable = {d for n in graph.forward_nodes if n.id in back for d in n.writes}
        self.crossing = self._crossing()

    def _crossing(self) -> list[list[int]]:
        """A value crosses from its producer to the last forward node that reads it, or whose backward node does."""
        made = {d: n.id for n in reversed(self.graph.forward_nodes) for d in n.writes}
        last_read: dict[int, int] = {}
        for node in self.graph.nodes:
            place = node.id if node.id <= self.graph.loss else node.forward
            for data in node.reads:
                if self.graph.data[data].kind is Kind.VALUE and place is not None:
                    last_read[data] = max(last_read.get(data, -1), place)
        table: list[list[int]] = [[] for _ in range(self.graph.loss)]
        for data, end in sorted(last_read.items()):
            for position in range(made[data], min(end, self.graph.loss)):
                table[position].append(data)
        return table

    def separator(self, position: int) -> int | None:
        """The one value that matters among those that cross after a node, if there is just one."""
        crossing = self.crossing[position]
        main = [d for d in crossing if d in self.differentiable or self.graph.data[d].nbytes > self.small]
        return main[0] if len(main) == 1 else None

    def pieces(self) -> list[tuple[int, int]]:
        """The finest cut into consecutive nodes."""
        cuts = [p for p in range(self.graph.loss - 1) if self.separator(p) is not None]
        starts = [0, *(c + 1 for c in cuts)]
        return [(s, e - 1) for s, e in zip(starts, [*starts[1:], self.graph.loss], strict=True)]


def _join_small(pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    open_piece = False
    for first, last in pieces:
        small = last - first + 1 < SMALL_PIECE
        if small and open_piece and last - joined[-1][0] + 1 <= JOINED_PIECE:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
        open_piece = small
    return joined


def _kind_key(graph: Graph, nodes: Sequence[Node], backward: dict, input: int | None, output: int | None) -> object:
    """What makes two blocks equal: signatures, sizes, and who reads and writes what, by local numbers."""
    local: dict[int, int] = {} if input is None else {input: 0}
    if input is None:
        local[-1] = 0
    inside = {n.id for n in nodes}

    def number(data: Sequence[int]) -> tuple:
        return tuple((local.setdefault(d, len(local)), graph.data[d].kind, graph.data[d].nbytes) for d in data)

    rows: list[object] = []
    for node in nodes:
        back = backward.get(node.id)
        rows.append((node.signature, node.recomputable, number(node.reads), number(node.writes)))
        rows.append(None if back is None else (back.signature, number(back.reads), number(back.writes)))
    fan_out = 0 if output is None else sum(output in n.reads and n.id not in inside for n in graph.nodes[: graph.loss + 1])
    return tuple(rows), None if output is None else local[output], fan_out
