"""Finds the candidates of a traced model: modules' calls, which need no text, and expressions that can be marked."""

from __future__ import annotations

import ast
import linecache
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from remat_codegen.graph.ir import Node
from remat_codegen.graph.record import NO_MEMORY
from remat_codegen.graph.simplify import Model, allocates, changes_given
from remat_codegen.marked.candidates import Candidate, Candidates
from remat_codegen.marked.changed import ChangedBuffer, changed_buffers, past_autograd, reading_followers
from remat_codegen.marked.compiled import is_compiled_function
from remat_codegen.marked.evaluations import Text, Tree, Vertex
from remat_codegen.marked.given import calls_in, given_to_calls, given_to_expression, taken_out
from remat_codegen.marked.holders import Holders, node_of
from remat_codegen.marked.library import Library, Owner, at_top, first_line, is_only_called, method_in, text_of
from remat_codegen.marked.lookups import Caller, Lookups
from remat_codegen.marked.markable import IN_PLACE
from remat_codegen.marked.marking import GIVEN, Mark, refusal_of
from remat_codegen.marked.origins import callers
from remat_codegen.marked.outside import outside_of
from remat_codegen.marked.syntax import span_of, syntax_of
from remat_codegen.trace.places import Function, Span, is_around

MOST_WAYS = 4  # to mark an expression, of which each is a candidate
_LAYER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


class Found:
    """The candidates of a model. `sources` are the texts, by file, that can be marked, and `library` what of other files."""

    def __init__(
        self, model: Model, tree: Tree, sources: Mapping[str, str] | None = None, library: Library | None = None
    ) -> None:
        self.model, self.tree, self.library = model, tree, library
        self.sources = {**(library.sources(tree) if library is not None else {}), **(sources or {})}
        self.record, self.trace = model.record, model.trace
        self.node_of = node_of(model)
        self.holders = Holders(model)
        self.working = [self._working(node) for node in model.graph.forward_nodes]
        self.numbers, self.times = self._counted()
        self.refused: dict[Hashable, bool] = {}
        self.compiled: dict[Function, bool] = {}
        self.by_name: dict[Function, tuple[Owner, ...] | None] = {}
        self.given: dict[Function, frozenset[Caller]] = {}
        self.names_given: dict[tuple[str, Span, tuple[Span, ...], tuple[str, ...] | None], frozenset[str]] = {}

    @cached_property
    def candidates(self) -> Candidates[Vertex]:
        """All candidates, of single vertices and of several that make one node."""
        return Candidates(self.ways)

    @cached_property
    def ways(self) -> tuple[Candidate[Vertex], ...]:
        """The same, with all ways to mark the same nodes."""
        single = (self.candidate((self._handed(v),)) for v in self.tree.vertices)
        return tuple(c for c in (*single, *self.several) if c is not None)

    @cached_property
    def several(self) -> tuple[Candidate[Vertex], ...]:
        """For each node, what the smallest vertices hold that make it; the same without what else is evaluated in them; and
        with a vertex for each of its operations, `relu(self.norm(x))` as the call of norm and relu alone, or for those of each
        text."""
        innermost = [self._innermost(n) for n in range(len(self.working))]
        covering = [self._covering(found) for found in innermost]
        alone = [tuple(self._without_others(v, self.working[n]) for v in vertices) for n, vertices in enumerate(covering)]
        apart = [tuple(self._without_others(v, operations) for v, operations in found) for found in innermost]
        by_text = [tuple(self._without_others(v, operations) for v, operations in self._by_text(f)) for f in innermost]
        ways: dict[frozenset[Vertex], tuple[Vertex, ...]] = {}
        for way in (*covering, *self._in_other_ways([*alone, *apart, *by_text])):
            ways.setdefault(frozenset(way), way)
        return tuple(c for c in map(self.candidate, ways.values()) if c is not None)

    def is_module(self, vertex: Vertex) -> bool:
        """Whether a vertex is a module's call, which a row can name."""
        return vertex.called is not None and vertex.called[0] != ""

    def is_marked(self, vertex: Vertex) -> bool:
        """Whether a vertex is an expression that can be marked, in a module's forward whose text can be written."""
        text = vertex.text
        if self.is_module(vertex) or not vertex.markable or text is None or text.module is None:
            return False
        if not self._is_written(text) or self._refused(vertex, text) or self._is_compiled(vertex):
            return False
        return not self._is_statement(vertex) or self._changes_a_tensor(vertex)

    def _is_compiled(self, vertex: Vertex) -> bool:
        """Whether a function that is compiled evaluates it."""
        around = {v.text.function for v in (vertex, *self.tree.ancestors(vertex)) if v.text is not None}
        for function in around - self.compiled.keys():
            self.compiled[function] = is_compiled_function(function)
        return any(self.compiled[function] for function in around)

    def _is_statement(self, vertex: Vertex) -> bool:
        return self._statement(vertex) is not None

    def _statement(self, vertex: Vertex) -> ast.AugAssign | None:
        """The statement `y += x` that it is."""
        assert vertex.text is not None
        syntax = syntax_of(self.sources[vertex.text.function.file])
        node = None if syntax is None else syntax.find(vertex.text.span)
        return node if isinstance(node, ast.AugAssign) else None

    def _changes_a_tensor(self, vertex: Vertex) -> bool:
        """Whether `y += x` is a tensor's operation, in place, wherever it is evaluated: a number would be another one."""
        assert vertex.text is not None
        place = vertex.text.function, vertex.text.span
        return all(self._is_in_place(v) for v in self.tree.vertices if v.text and (v.text.function, v.text.span) == place)

    def _is_in_place(self, vertex: Vertex) -> bool:
        own = self.tree.own(vertex)
        return len(own) == 1 and self.trace.operations[own[0]].base in IN_PLACE.values()

    def mark(self, vertex: Vertex, name: str) -> Mark:
        """The mark for an expression."""
        assert vertex.text is not None
        text = vertex.text
        return Mark(text.span, name, text.tensors, vertex.outside, self.made.get(text.function.file))

    @cached_property
    def made(self) -> dict[str, frozenset[Span]]:
        """By file: the expressions that make operations."""
        found: dict[str, set[Span]] = {}
        for vertex in self.tree.vertices:
            if vertex.text is not None:
                found.setdefault(vertex.text.function.file, set()).add(vertex.text.span)
        return {file: frozenset(spans) for file, spans in found.items()}

    def _refused(self, vertex: Vertex, text: Text) -> bool:
        key = text.function.file, text.span, vertex.outside
        if key not in self.refused:
            self.refused[key] = bool(refusal_of(self.sources[text.function.file], self.mark(vertex, "part")))
        return self.refused[key]

    # ------------------------------------------------------------------ which nodes

    def _working(self, node: Node) -> tuple[int, ...]:
        """The operations of a node that have to run again for it: all but those that only look."""
        operations = [self.trace.operations[op] for op in self.model.bodies[node.id].operations]
        return tuple(op.id for op in operations if allocates(self.record, op) or self.record.operations[op.id].mutated)

    def _can_run_again(self, vertex: Vertex) -> bool:
        if vertex.parent is None or not (self.is_module(vertex) or self.is_marked(vertex)):
            return False
        return vertex.end > vertex.begin and not self._is_quiet(vertex) and not self._is_overtaken(vertex)

    def _is_overtaken(self, vertex: Vertex) -> bool:
        """Whether a buffer that it may read is changed in place while it runs or later, and no copy is kept."""
        module = vertex.called[0] if vertex.called is not None and self.is_module(vertex) else self.owner(vertex)
        return any(vertex.begin <= c.last and not c.is_copied and c.is_within(module) for c in self.changed)

    @cached_property
    def changed(self) -> tuple[ChangedBuffer, ...]:
        """The buffers that the forward pass changes in place."""
        return changed_buffers(self.trace, self.record)

    @cached_property
    def past_autograd(self) -> frozenset[int]:
        """The operations that no part can have, since forward changes what they make or read, in ways that nobody notices."""
        return past_autograd(self.trace, self.record) | reading_followers(self.trace, self.record)

    def _is_quiet(self, vertex: Vertex) -> bool:
        """Whether all of it is evaluated under no_grad, where no part is one."""
        operations = self.trace.operations[vertex.begin : vertex.end]
        return bool(operations) and not any(operation.grad_enabled for operation in operations)

    def candidate(self, vertices: tuple[Vertex, ...]) -> Candidate[Vertex] | None:
        """What vertices hold, if that is whole nodes that can run again."""
        if not all(map(self._can_run_again, vertices)) or any(map(self._holds_by_functions, vertices)):
            return None
        operations = {op for v in vertices for op in self._operations(v)}
        if not operations.isdisjoint(self.past_autograd):
            return None
        nodes = sorted({self.node_of[op] for op in operations if op in self.node_of and self._works(op)})
        if not nodes or nodes != list(range(nodes[0], nodes[-1] + 1)):
            return None
        if any(not operations.issuperset(self.working[n]) for n in nodes):
            return None
        if not all(self._runs_again(n) for n in nodes) or not any(self.model.graph.nodes[n].recomputable for n in nodes):
            return None
        if self._leaves_in_objects(vertices, nodes) or self._leaves_in_attributes(vertices, nodes):
            return None
        texts = {v.text: v.outside for v in vertices if not self.is_module(v) and v.text is not None}
        marks = dict.fromkeys(((t.function, t.span), outside) for t, outside in texts.items())
        given, copies = self._given(vertices, nodes[0]), frozenset[Hashable]().union(*map(self._copies, vertices))
        key, handed = tuple(map(self.key, vertices)), self._handed_on(vertices)
        unkept = len(vertices) > 1 and self._changes_what_is_made(operations)
        unkept = unkept or self._gives_more(vertices[-1], nodes)
        unread = self._unread(vertices)
        forks = self._forks(vertices)
        return Candidate(nodes[0], nodes[-1], vertices, key, tuple(marks), given, copies, *handed, unkept, unread, forks)

    def _gives_more(self, vertex: Vertex, nodes: Sequence[int]) -> bool:
        """Whether a vertex of these nodes gives something that backward needs and nobody reads, such as the weights of an
        attention: variables have it afterwards, or one item is taken of what it gives."""
        graph, last = self.model.graph, self.last_held
        own = {self.back_of[n] for n in nodes if n in self.back_of}
        inside = own.union(nodes)
        read = ((d, graph.readers[d]) for n in nodes for d in graph.nodes[n].writes if d not in graph.outputs)
        needed = [d for d, by in read if not own.isdisjoint(by) and inside.issuperset(by)]
        return any(last.get(d, -1) >= vertex.end for d in needed) or (bool(needed) and self._is_indexed(vertex))

    def _leaves_in_objects(self, vertices: Sequence[Vertex], nodes: Sequence[int]) -> bool:
        """Whether an object that is given to a vertex has in the end what is made here or later, and no others' gradients need,
        as a tree the states of its nodes: a part has what it is given until it runs again, and then that, too."""
        graph, inside = self.model.graph, {self.back_of[n] for n in nodes if n in self.back_of}
        unread = (d for d in self.in_objects if not any(r > graph.loss and r not in inside for r in graph.readers[d]))
        held = frozenset[int]().union(*(self.in_objects[d] for d in unread if graph.producers[d][0] >= nodes[0]))
        if not held:
            return False
        texts = ((self._names_given(v, text), text.objects) for v in vertices if (text := self._text_around(v)))
        return any(number in held and name in names for names, objects in texts for name, number in objects)

    def _leaves_in_attributes(self, vertices: Sequence[Vertex], nodes: Sequence[int]) -> bool:
        """Whether attributes of modules have, when vertices have run, what they made and others need, beside what an expression
        gives: a part lends that, but nothing else, so that autograd would hold it. (Modules may give it; nobody knows that.)"""
        graph, inside = self.model.graph, {*nodes, *(self.back_of[n] for n in nodes if n in self.back_of)}
        operations, last = self.trace.operations, vertices[-1]
        left = {of for later in operations[last.end :][:1] for _, of in later.attributes}
        data = {self.model.data_of[v] for of in left for v in operations[of].made}
        data -= set() if self.is_module(last) else {self.model.data_of[v] for v in operations[last.end - 1].made}
        made = (d for d in data if d is not None and graph.producers[d][0] in inside)
        return any(not inside.issuperset(graph.readers[d]) for d in made)

    @cached_property
    def back_of(self) -> dict[int, int]:
        """The backward nodes of forward nodes."""
        return {n.forward: n.id for n in self.model.graph.backward_nodes if n.forward is not None}

    @cached_property
    def last_held(self) -> dict[int, int]:
        """By data: the last operation that runs while variables of the model's code hold it, not only attributes of modules."""
        by = ((op.id, {*op.held}.difference(op.by_attributes)) for op in self.trace.operations)
        held = ((op, v) for op, some in by for of in some for v in self.trace.operations[of].made)
        return {d: op for op, v in held if (d := self.model.data_of[v]) is not None}

    @cached_property
    def in_objects(self) -> dict[int, frozenset[int]]:
        """By data: the plain objects that have it when forward ends."""
        made = ((self.model.data_of[v], op.in_objects) for op in self.trace.operations if op.in_objects for v in op.made)
        return {d: objects for d, objects in made if d is not None}

    def _is_indexed(self, vertex: Vertex) -> bool:
        """Whether an item is taken of what a module or a function gives, there or where the caller of a function gets it."""
        above = self._above(vertex)
        if isinstance(above, ast.Return) and not self.is_module(vertex):
            text = self._text_around(vertex)
            caller = next((v for v in self.tree.ancestors(vertex) if v.text not in (None, text)), None)
            return caller is not None and (isinstance(self._syntax_of(caller), ast.Subscript) or self._is_indexed(caller))
        own = self._syntax_of(vertex) if self.is_module(vertex) else None
        return isinstance(above, ast.Subscript) or isinstance(own, ast.Subscript)

    def _above(self, vertex: Vertex) -> ast.AST | None:
        """What the expression of a vertex stands in."""
        text, node = self._text_around(vertex), self._syntax_of(vertex)
        syntax = syntax_of(self._source(text.function.file)) if text is not None else None
        return syntax.parents.get(node) if syntax is not None and node is not None else None

    def _syntax_of(self, vertex: Vertex) -> ast.AST | None:
        """The expression that a vertex is, or that calls the module."""
        text = self._text_around(vertex)
        syntax = syntax_of(self._source(text.function.file)) if text is not None else None
        return syntax.find(text.span) if syntax is not None and text is not None else None

    def _changes_what_is_made(self, operations: Iterable[int]) -> bool:
        return any(self.record.storages[s].operation is not None for s in self.record.mutated_by(operations))

    def _handed_on(self, vertices: Sequence[Vertex]) -> tuple[int, frozenset[int], tuple[int, ...]]:
        """The bytes of what vertices before the last one make that others of them read, and no data node holds; the data that
        the first one reads; and what several of them read, once for each but the first."""
        if len(vertices) == 1:
            return 0, frozenset(), ()
        own = [set(self._operations(vertex)) for vertex in vertices]
        made = [{v for op in ops for v in self.trace.operations[op].made if self.model.data_of[v] is None} for ops in own]
        read = [{v for op in ops for v in self.trace.operations[op].reads} for ops in own]
        handed = {v for i, mine in enumerate(made[:-1]) for v in mine if any(v in theirs for theirs in read[i + 1 :])}
        storages = [self.record.storages[s] for s in self.record.storages_of(handed)]
        data = [{d for d in map(self.model.data_of.__getitem__, theirs) if d is not None} for theirs in read]
        often = tuple(d for i, theirs in enumerate(data) for d in sorted(theirs) if any(d in before for before in data[:i]))
        return sum(s.nbytes for s in storages if s.operation is not None), frozenset(data[0]), often

    def _forks(self, vertices: Sequence[Vertex]) -> bool:
        """Whether one of several vertices gives something to several. What one changes in place is its own from then on."""
        own = [set(self._operations(vertex)) for vertex in vertices]
        read = [self.record.storages_of(v for op in ops for v in self.trace.operations[op].reads) for ops in own]
        changed, everything = [self.record.mutated_by(ops) for ops in own], set[int]().union(*own)
        given: Counter[int] = Counter()  # by storage: to how many vertices, since one has made or changed it
        for ops, reads, changes in zip(own, read, changed, strict=True):
            given.update(s for s in reads if self.record.storages[s].operation in everything - ops)
            if any(given[s] > 1 for s in reads):
                return True
            given.update({s: -given[s] for s in changes})
        return False

    def _given(self, vertices: Iterable[Vertex], first: int) -> tuple[int, ...]:
        """The data, made before a node, that vertices are given in lists and objects, or find in attributes."""
        vertices = [*vertices]
        operations = {op for vertex in vertices for op in self._contents_given(vertex)}
        operations.update(op for vertex in vertices for op in self._in_attributes(vertex))
        data = {self.model.data_of[v] for op in operations for v in self.trace.operations[op].made}
        return tuple(sorted(d for d in data if d is not None and self.model.graph.producers[d][0] < first))

    def _unread(self, vertices: Iterable[Vertex]) -> tuple[tuple[int, int], ...]:
        """The storages, each with its bytes, of what vertices are given that no node reads: no operation does, as of arguments
        that a method does not use; or only others of the node that makes it, as where it adds to what a convolution gives."""
        vertices = [*vertices]
        operations = {op for vertex in vertices for op in self._contents_given(vertex) if op < vertex.begin}
        inside = {op for vertex in vertices for op in range(vertex.begin, vertex.end)}  # what one hands on to another
        made = {v for op in operations for v in self.trace.operations[op].made if self.model.data_of[v] is None}
        storages = sorted({self.record.variables[v].storage for v in made} - {NO_MEMORY})
        own = [self.record.storages[s] for s in storages]
        return tuple((s.id, s.nbytes) for s in own if s.operation is not None and s.operation not in inside and s.nbytes)

    def _in_attributes(self, vertex: Vertex) -> Iterator[int]:
        """The operations whose results attributes of the vertex's module hold, or of modules in there, as it begins."""
        module = vertex.called[0] if vertex.called is not None and self.is_module(vertex) else self.owner(vertex)
        for path, operation in self.trace.operations[vertex.begin].attributes:
            if not module or path.startswith(f"{module}."):
                yield operation

    def _contents_given(self, vertex: Vertex) -> Iterator[int]:
        """The operations whose results are in the lists and objects that a vertex is given."""
        text = self._text_around(vertex)
        names = self._names_given(vertex, text) if text is not None and text.contents else ()
        for name, operations in text.contents if text is not None else ():
            yield from operations if name in names else ()
        yield from self._arguments_of(vertex)

    def _arguments_of(self, vertex: Vertex) -> Iterator[int]:
        """The operations, before a vertex, whose results are in variables of the module's method, or of functions that get what
        an expression takes out of something: the pyramid's level in `self.pe(xs[i])`."""
        own = None if self.is_module(vertex) or vertex.text is None else vertex.text.function
        if own is not None and not self._takes_out(vertex):
            return
        for inner in self.tree.outermost(vertex, lambda v: v.text is not None and v.text.function != own):
            if inner.text is not None and inner.begin >= vertex.begin:  # else it is handed in itself
                yield from (op for _, operations in inner.text.contents for op in operations if op < vertex.begin)
            if own is None:
                break  # the first of a module's own method has all

    def _takes_out(self, vertex: Vertex) -> bool:
        """Whether an expression calls something with what it takes out of a list, a dict or an object."""
        syntax = None if vertex.text is None else syntax_of(self._source(vertex.text.function.file))
        node = syntax.find(vertex.text.span) if syntax is not None and vertex.text is not None else None
        calls = calls_in(node) if isinstance(node, ast.expr) else ()
        return any(taken_out(argument) for call in calls for argument in (*call.args, *(k.value for k in call.keywords)))

    def _holds_by_functions(self, vertex: Vertex) -> bool:
        """Whether a vertex is given a function that holds tensors: a part would hold those, whoever makes them again."""
        text = self._text_around(vertex)
        functions = {name[:-2] for name in text.tensors if name.endswith("()")} if text is not None else set()
        return bool(functions) and text is not None and not functions.isdisjoint(self._names_given(vertex, text))

    def _text_around(self, vertex: Vertex) -> Text | None:
        """The expression that a vertex is, or that calls the module."""
        around = (v.text for v in (vertex, *self.tree.ancestors(vertex)) if v.text is not None)
        return next(around, None) if self.is_module(vertex) else vertex.text

    def _names_given(self, vertex: Vertex, text: Text) -> frozenset[str]:
        """The names of what a vertex is given by the expression, and attributes of these."""
        syntax = syntax_of(self._source(text.function.file))
        node = None if syntax is None else syntax.find(text.span)
        if syntax is None or not isinstance(node, ast.expr):
            return frozenset()
        if self.is_module(vertex):  # where there are several calls, a tensor may be another one's
            return given_to_calls(node).difference(text.alone if len(calls_in(node)) > 1 else ())
        mark = self.mark(vertex, "part")
        key = text.function.file, mark.span, mark.outside, mark.inputs
        if key not in self.names_given:
            outside = outside_of(syntax, node, mark.outside, mark.made, mark.inputs or ())
            self.names_given[key] = given_to_expression(node, outside.nodes)
        return self.names_given[key]

    def _source(self, file: str) -> str:
        return self.sources[file] if file in self.sources else "".join(linecache.getlines(file))

    @cached_property
    def works(self) -> tuple[int, ...]:
        """The operations that are work, in order."""
        return tuple(op.id for op in self.trace.operations if self._is_work(op.id))

    def _working_in(self, vertex: Vertex) -> range:
        """Which of `works` are in a vertex."""
        return range(bisect_left(self.works, vertex.begin), bisect_left(self.works, vertex.end))

    def _is_work(self, operation: int) -> bool:
        return operation in self.node_of and self._works(operation)

    def _works(self, operation: int) -> bool:
        return operation in self.working[self.node_of[operation]]

    def _runs_again(self, node: int) -> bool:
        """Whether a node can run again, or is one whose effect on buffers the helpers take back."""
        if self.model.graph.nodes[node].recomputable:
            return True
        operations = [self.trace.operations[op] for op in self.model.bodies[node].operations]
        return all(changes_given(self.record, op) and not allocates(self.record, op) for op in operations)

    def _innermost(self, node: int) -> list[tuple[Vertex, list[int]]]:
        """The innermost vertices that can run again, each with the operations of a node that it is for; none where one of these
        has no such vertex."""
        found: dict[int, tuple[Vertex, list[int]]] = {}
        for op in self.working[node]:
            innermost = self.tree.innermost(op)
            ways = [v for v in map(self._handed, (innermost, *self.tree.ancestors(innermost))) if self._can_run_again(v)]
            if not ways:
                return []
            made = [self._working_in(v) for v in ways]
            vertex = min((v for v, m in zip(ways, made, strict=True) if m == made[0]), key=lambda v: len(self._copies(v)))
            found.setdefault(vertex.id, (vertex, []))[1].append(op)
        return list(found.values())

    def _covering(self, innermost: Sequence[tuple[Vertex, list[int]]]) -> tuple[Vertex, ...]:
        """Of some vertices, those that lie in no other one."""
        made = {v.id: self._operations(v) for v, _ in innermost}
        return tuple(v for v, _ in innermost if not any(made[v.id] < made[o] for o in made))

    def _by_text(self, innermost: Sequence[tuple[Vertex, list[int]]]) -> list[tuple[Vertex, list[int]]]:
        """The same with one vertex for those that stand in it: `(x * scale) * gain` is one expression."""
        found: dict[int, tuple[Vertex, list[int]]] = {}
        for vertex, operations in innermost:
            around = [v for v, _ in innermost if v.id != vertex.id and self._is_around(v, vertex)]
            outer = min(around, key=lambda v: v.begin - v.end, default=vertex)
            found.setdefault(outer.id, (outer, []))[1].extend(operations)
        return sorted(found.values(), key=lambda pair: pair[0].end)

    # ------------------------------------------------------------------ what is handed in

    def _without_others(self, vertex: Vertex, operations: Sequence[int]) -> Vertex:
        """A vertex without the expressions in it that make none of these operations."""
        return self.without(vertex, lambda v: not any(v.begin <= op < v.end for op in operations))

    def without(self, vertex: Vertex, fits: Callable[[Vertex], bool]) -> Vertex:
        """A vertex without the outermost expressions that fit, of those in its own text."""
        if not self._is_own(vertex) or self._is_statement(vertex):
            return vertex
        inner = [*self.tree.outermost(vertex, lambda v: self._is_around(vertex, v) and fits(v))]
        handed = {op for v in inner for op in range(v.begin, v.end)}
        first = min((op for op in range(vertex.begin, vertex.end) if op not in handed), default=vertex.end)
        looking = [v for v in inner if v.end > v.begin and not self._working_in(v)]
        late = {v.id for v in looking if v.begin > first}  # which would come before something else
        return replace(vertex, outside=tuple(v.text.span for v in inner if v.text is not None and v.id not in late))

    def _is_own(self, vertex: Vertex) -> bool:
        """Whether it is an expression that could be marked, in a text that can."""
        return not self.is_module(vertex) and vertex.text is not None and self._is_written(vertex.text)

    def _is_written(self, text: Text) -> bool:
        """Whether the text that an expression stands in can be in the file, so that it can be marked."""
        file = text.function.file
        if file not in self.sources or self.library is None:
            return file in self.sources
        if text.function.is_at_top:
            if self._is_carried(text.function) and hasattr(at_top(text.function), "__wrapped__"):
                return False  # for an original, the file's own one would read the file's classes
            met = self.with_callers(text.function) is not None
            return met and (text.function in self.makes_several or not self.giving(text.function))
        carried = self._is_carried(text.function)
        return (carried or self.owner_of(text) is not None) and self._is_met(text, not carried)

    def _is_carried(self, function: Function) -> bool:
        return self.library is None or function.name.partition(".")[0] in self.library.carried.get(function.file, ())

    def with_callers(self, function: Function) -> tuple[Owner, ...] | None:
        """What a file has for marks in a function to be met: of files that are not carried, the function and all that call it,
        by name. None where those would call another one than the file's."""
        if function not in self.by_name:
            self.by_name[function] = self._with_callers(function)
        return self.by_name[function]

    def copied(self, text: Text) -> tuple[Owner, ...]:
        """What a file has copies of, from files that are not carried, for marks in a function or method to be met."""
        if text.function.is_at_top:
            return self.with_callers(text.function) or ()
        owner = self.owner_of(text)
        return () if owner is None else (owner,)

    def copied_for(self, candidate: Candidate[Vertex]) -> frozenset[Owner]:
        """What a file has copies of if this is a part."""
        texts = (v.text for v in candidate.vertices if self.is_marked(v) and v.text is not None)
        return frozenset(owner for text in texts for owner in self.copied(text))

    def _with_callers(self, function: Function) -> tuple[Owner, ...] | None:
        assert self.library is not None
        calling = self._calling(function)
        found = [c for c in calling or () if c.function.file not in self.library.carried]
        owners = [self.library.caller(c.function, c.path) for c in found]
        if calling is None or None in owners or not self._are_carried([c for c in calling if c not in found]):
            return None
        closures = [(c.function, c.path or "") for c, o in zip(found, owners, strict=True) if o is not None and o.is_closure]
        if any(self.lookups is not None and self.lookups.runs_what_it_stands_for(*c) for c in closures):
            return None
        away = [c.function for c, o in zip(found, owners, strict=True) if o is not None and o.module]
        if not self._may_be_given(calling, away):
            return None
        return tuple(sorted((o for o in owners if o is not None), key=lambda o: (o.module, o.kind, o.method)))

    def _calling(self, function: Function) -> frozenset[Caller] | None:
        """A function and what calls it, as far as that is to be known."""
        assert self.library is not None
        carried = function.file in self.library.carried
        return None if self.lookups is None else self.lookups.all_callers(function, not carried)

    def _are_carried(self, calling: Sequence[Caller]) -> bool:
        """Whether these, of carried files, are in the file, and their text tells which methods call such functions."""
        functions = [c.function for c in calling if c.function.is_at_top]
        known = (c.given or any(self._is_known_to_call(c.function, f) for f in functions) for c in calling)
        return all(self._is_carried(c.function) for c in calling) and all(known)

    def _may_be_given(self, calling: Iterable[Caller], away: Sequence[Function]) -> bool:
        """Whether a file can say `with_marks(F.normalize)(x)` wherever something of these is called that is given: that is a
        function of a file `away` from the model's, as it stands there, and nobody has that word."""
        assert self.lookups is not None
        functions = {c.function for c in calling if c.function.is_at_top}
        given = {f for f in functions if any(c is None or c.given for c in self.lookups.callers.get(f, ()))}
        if not given.issubset(away) or any(hasattr(at_top(f), "__wrapped__") for f in given):
            return False
        known = all(c.function.file in self.sources for c in calling if c.given)
        return not given or (known and not any(GIVEN in source for source in self.sources.values()))

    def giving(self, function: Function) -> frozenset[Caller]:
        """What calls a function with marks, or what calls that, by an expression which has to give the one of the file."""
        if function not in self.given:
            calling = (self._calling(function) if self.library is not None else None) or ()
            self.given[function] = frozenset(c for c in calling if c.given is not None)
        return self.given[function]

    @cached_property
    def makes_several(self) -> frozenset[Function]:
        """The functions that make several operations in one call: where it is one, the call itself can be marked."""
        calls = ((c.frame, c.function) for op in self.trace.operations if self._is_work(op.id) for c in op.calls)
        return frozenset(function for (_, function), times in Counter(calls).items() if times > 1)

    def _copies(self, vertex: Vertex) -> frozenset[Hashable]:
        """What is called, wherever that is, of which a file has to give its own for an expression to be met."""
        text = vertex.text if not self.is_module(vertex) else None
        giving = self.giving(text.function) if text is not None and text.function.is_at_top else ()
        return frozenset((c.function.file, c.given) for c in giving)

    def _is_known_to_call(self, caller: Function, function: Function) -> bool:
        """Whether the text of a carried file tells that a function, or a method, may call another one: helpers go by that."""
        source = self.sources[function.file]
        if not caller.is_at_top:
            return caller.name in callers(source, [function.name])
        node = method_in(source, "", caller.name)
        return node is not None and caller.line == first_line(node)

    def _is_met(self, text: Text, sure: bool) -> bool:
        """Whether a module's calls of the method that an expression stands in come by its marks."""
        return text.module is None or self.lookups is None or self.lookups.is_met(text.function, text.module, sure)

    @cached_property
    def lookups(self) -> Lookups | None:
        """How the model's methods are found while it runs."""
        if self.library is None:
            return None
        return Lookups(self.trace, self.library.modules, text_of, self._may_be_meant_by_name)

    def _may_be_meant_by_name(self, function: Function) -> bool:
        """Whether a file's own one of a function may have its name, for all that names it."""
        carried = self.library is not None and function.file in self.library.carried
        return carried or is_only_called(function.file, function.name)

    def owner_of(self, text: Text) -> Owner | None:
        """The class of a library that an expression stands in."""
        return None if self.library is None else self.library.owner(text)

    def _handed(self, vertex: Vertex) -> Vertex:
        """A vertex, `y += x` without x: that is always handed in."""
        if not self._is_own(vertex) or (statement := self._statement(vertex)) is None:
            return vertex
        return replace(vertex, outside=() if isinstance(statement.value, ast.Name) else (span_of(statement.value),))

    @staticmethod
    def _is_around(outer: Vertex, inner: Vertex) -> bool:
        """Whether an expression stands in the text of another one."""
        first, second = outer.text, inner.text
        if first is None or second is None or (first.function, first.number) != (second.function, second.number):
            return False
        return is_around(first.span, second.span)

    def _in_other_ways(self, found: Sequence[tuple[Vertex, ...]]) -> list[tuple[Vertex, ...]]:
        """The same, each expression also marked in the ways of other evaluations, those first that have most handed in: in some
        of them that may make no operation, as a shortcut that gives its input."""
        ways: dict[tuple[Function, Span], Counter[tuple[Span, ...]]] = {}
        for vertex in (v for vertices in found for v in vertices if v.text is not None):
            assert vertex.text is not None
            ways.setdefault((vertex.text.function, vertex.text.span), Counter())[vertex.outside] += 1
        several = ([self._otherwise(v, ways) for v in vertices] for vertices in found)
        return [tuple(s[min(n, len(s) - 1)] for s in same) for same in several for n in range(max(map(len, same), default=0))]

    def _otherwise(self, vertex: Vertex, ways: Mapping[tuple[Function, Span], Counter[tuple[Span, ...]]]) -> list[Vertex]:
        """A vertex in the ways in which its expression is marked, among those by which it makes the same."""
        if vertex.text is None:
            return [vertex]
        counted = ways[vertex.text.function, vertex.text.span]
        own = self._operations(vertex)
        alike = (replace(vertex, outside=way) for way in sorted(counted, key=lambda w: (-len(w), -counted[w])))
        return [v for v in alike if v.outside == vertex.outside or self._operations(v) == own][:MOST_WAYS]

    def _operations(self, vertex: Vertex) -> set[int]:
        """What a vertex makes, less what is handed in."""
        given = self.tree.outermost(
            vertex, lambda v: self._is_around(vertex, v) and v.text is not None and v.text.span in vertex.outside
        )
        outside = {op for v in given for op in range(v.begin, v.end)} if vertex.outside else set[int]()
        return set(range(vertex.begin, vertex.end)) - outside

    # ------------------------------------------------------------------ names

    def _counted(self) -> tuple[dict[int, int], Counter[Hashable]]:
        """By vertex: how often that call or expression of the same module was evaluated before, but under no_grad; and how
        often each is in a step. Those under no_grad have no number."""
        times: Counter[Hashable] = Counter()
        numbers = {}
        for vertex in self.tree.vertices:
            if not self._is_quiet(vertex):
                code = self.code(vertex)
                numbers[vertex.id] = times[code]
                times[code] += 1
        return numbers, times

    def code(self, vertex: Vertex) -> Hashable:
        """What the table names: a module, or an expression in its forward. Evaluations of the same are told apart by number."""
        if self.is_module(vertex):
            assert vertex.called is not None
            return vertex.called[0]
        text = vertex.text
        return None if text is None else (text.module, text.function, text.span)

    def owner(self, vertex: Vertex) -> str:
        """The path of the module that a call or an expression stands in."""
        if vertex.called is not None and self.is_module(vertex):
            return vertex.called[0].rpartition(".")[0]
        return "" if vertex.text is None else vertex.text.module or ""

    def key(self, vertex: Vertex) -> tuple[Hashable, ...]:
        """Equal for the same code, of any layer."""
        if self.is_module(vertex):
            assert vertex.called is not None
            path, number = vertex.called
            return "module", _LAYER.sub("*", path), number if self.times[path] > 1 else 0
        assert vertex.text is not None
        return "text", vertex.text.function, vertex.text.span, vertex.outside
