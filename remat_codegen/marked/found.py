"""What can be a part in a traced model: modules' calls, which need no text, and expressions that can be marked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from remat_codegen.graph.ir import Node
from remat_codegen.graph.simplify import Model, allocates, changes_given
from remat_codegen.marked.candidates import Candidate, Candidates
from remat_codegen.marked.demand import Held
from remat_codegen.marked.text import Mark, refusal_of
from remat_codegen.marked.words import Text, Tree, Vertex
from remat_codegen.profile.costs import Profile
from remat_codegen.trace import Operation, refs
from remat_codegen.trace.places import Span

_LAYER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


class Found:
    """The candidates of a model. `sources` are the texts, by file, that can be marked."""

    def __init__(self, model: Model, tree: Tree, sources: Mapping[str, str] | None = None) -> None:
        self.model, self.tree, self.sources = model, tree, sources or {}
        self.record, self.trace = model.record, model.trace
        self.node_of = {op: node for node, body in enumerate(model.bodies) for op in body.operations}
        self.working = [self._working(node) for node in model.graph.forward_nodes]
        self.calls = self._counted()
        self.refused: dict[tuple[str, Span], bool] = {}

    @cached_property
    def candidates(self) -> Candidates[Vertex]:
        """All candidates, of single vertices and of several that make one node."""
        single = [self._candidate((v,)) for v in self.tree.vertices if self._can_run_again(v)]
        several = [self._candidate(self._covering(n)) for n in range(len(self.working))]
        return Candidates(c for c in (*single, *several) if c is not None)

    @property
    def held(self) -> Held:
        """By forward node: data that variables of the model's code hold while it runs."""
        found: dict[int, set[int]] = {}
        for operation in self.trace.operations:
            node = self.node_of.get(operation.id)
            if node is None:
                continue
            variables = (v for op in operation.held for v in self.trace.operations[op].results if v is not None)
            data = {self.model.data_of[v] for v in variables} - {None}
            found.setdefault(node, set()).update(d for d in data if d is not None)
        return {node: sorted(self._made_before(data, node)) for node, data in found.items()}

    def _made_before(self, data: set[int], node: int) -> Iterator[int]:
        return (d for d in data if self.model.graph.producers[d][0] < node)

    def with_held(self, profile: Profile) -> Profile:
        """The costs of nodes, with what variables of the model's code hold while they run and no data node is: results that
        only the node uses which made them. (A part that begins behind that node does not have them when it runs again; it is
        counted as if it had.)"""
        held = [0] * len(profile.workspace_bytes)
        for operation in self.trace.operations:
            node = self.node_of.get(operation.id)
            if node is not None:
                held[node] = max(held[node], sum(self.record.storages[s].nbytes for s in self._held_within(operation, node)))
        workspaces = tuple(a + b for a, b in zip(profile.workspace_bytes, held, strict=True))
        return replace(profile, workspace_bytes=workspaces)

    def _held_within(self, operation: Operation, node: int) -> set[int]:
        """The storages that are no data nodes, are held while an operation runs, and are not in its own node's workspace."""
        variables = {v for op in operation.held for v in self.trace.operations[op].results if v is not None}
        storages = {self.record.of_variable[v] for v in variables if self.model.data_of[v] is None}
        makers = {s: self.record.storages[s].operation for s in storages}
        own = [self.trace.operations[op] for op in self.model.bodies[node].operations if op >= operation.id]
        read = {self.record.of_variable[v] for op in own for v in refs((op.args, dict(op.kwargs)))}
        made = {s: self.node_of.get(op) for s, op in makers.items() if op is not None}
        return {s for s, maker in made.items() if maker is not None and (maker != node or s not in read)}

    def is_module(self, vertex: Vertex) -> bool:
        """Whether a vertex is a module's call, which a row can name."""
        return vertex.called is not None and vertex.called[0] != ""

    def is_marked(self, vertex: Vertex) -> bool:
        """Whether a vertex is an expression that can be marked, in a module's forward whose text can be written."""
        text = vertex.text
        if self.is_module(vertex) or not vertex.markable or text is None or text.module is None:
            return False
        return text.function.file in self.sources and not self._refused(text)

    def mark(self, text: Text, name: str) -> Mark:
        """The mark for an expression."""
        return Mark(text.span, name, text.tensors, made=self.made.get(text.function.file))

    @cached_property
    def made(self) -> dict[str, frozenset[Span]]:
        """By file: the expressions that make operations."""
        found: dict[str, set[Span]] = {}
        for vertex in self.tree.vertices:
            if vertex.text is not None:
                found.setdefault(vertex.text.function.file, set()).add(vertex.text.span)
        return {file: frozenset(spans) for file, spans in found.items()}

    def _refused(self, text: Text) -> bool:
        key = text.function.file, text.span
        if key not in self.refused:
            self.refused[key] = bool(refusal_of(self.sources[text.function.file], self.mark(text, "part")))
        return self.refused[key]

    # ------------------------------------------------------------------ which nodes

    def _working(self, node: Node) -> tuple[int, ...]:
        """The operations of a node that have to run again for it: all but those that only look."""
        operations = [self.trace.operations[op] for op in self.model.bodies[node.id].operations]
        return tuple(op.id for op in operations if allocates(self.record, op) or self.record.mutated[op.id])

    def _can_run_again(self, vertex: Vertex) -> bool:
        if vertex.parent is None or not (self.is_module(vertex) or self.is_marked(vertex)):
            return False
        return vertex.end > vertex.begin

    def _candidate(self, vertices: tuple[Vertex, ...]) -> Candidate[Vertex] | None:
        """What vertices hold, if that is whole nodes that can run again."""
        operations = {op for v in vertices for op in range(v.begin, v.end)}
        nodes = sorted({self.node_of[op] for op in operations if op in self.node_of and self._works(op)})
        if not nodes or nodes != list(range(nodes[0], nodes[-1] + 1)):
            return None
        if any(not operations.issuperset(self.working[n]) for n in nodes):
            return None
        if not all(self._runs_again(n) for n in nodes) or not any(self.model.graph.nodes[n].recomputable for n in nodes):
            return None
        keys = tuple(map(self.key, vertices))
        return Candidate(nodes[0], nodes[-1], vertices, keys, len({k for k in keys if k[0] == "text"}))

    def _works(self, operation: int) -> bool:
        return operation in self.working[self.node_of[operation]]

    def _runs_again(self, node: int) -> bool:
        """Whether a node can run again, or is one whose effect on buffers the helpers take back."""
        if self.model.graph.nodes[node].recomputable:
            return True
        operations = [self.trace.operations[op] for op in self.model.bodies[node].operations]
        return all(changes_given(self.record, op) and not allocates(self.record, op) for op in operations)

    def _covering(self, node: int) -> tuple[Vertex, ...]:
        """The smallest vertices that can run again for all that a node does; none where there are none."""
        found: dict[int, Vertex] = {}
        for op in self.working[node]:
            innermost = self.tree.innermost(op)
            ways = (v for v in (innermost, *self.tree.ancestors(innermost)) if self._can_run_again(v))
            vertex = next(ways, None)
            if vertex is None:
                return ()
            found[vertex.id] = vertex
        return tuple(
            v for v in found.values() if not any(o.begin <= v.begin and v.end <= o.end for o in found.values() if o is not v)
        )

    # ------------------------------------------------------------------ names

    def _counted(self) -> Counter[str]:
        """How often each module is called in a step."""
        return Counter(v.called[0] for v in self.tree.vertices if v.called is not None)

    def key(self, vertex: Vertex) -> tuple[Hashable, ...]:
        """Equal for the same code, of any layer."""
        if self.is_module(vertex):
            assert vertex.called is not None
            path, number = vertex.called
            return "module", _LAYER.sub("*", path), number if self.calls[path] > 1 else 0
        assert vertex.text is not None
        return "text", vertex.text.function, vertex.text.span
