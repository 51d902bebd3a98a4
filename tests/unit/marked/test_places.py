"""Where in the source operations are made, and the tree of evaluations that this gives."""

from __future__ import annotations

import inspect
import itertools
import linecache
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from remat_codegen.marked.evaluations import build
from remat_codegen.trace.tracing import trace


def text_at(file, span):
    line, column, end_line, end_column = span
    lines = [text.encode() for text in linecache.getlines(file)[line - 1 : end_line]]
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    return b"".join(lines).decode()


def own(operation):
    """The expressions of this file that an operation comes from, outermost first."""
    return [text_at(__file__, c.span) for c in operation.calls if c.function.file == __file__]


def texts(vertex):
    return text_at(vertex.text.function.file, vertex.text.span)


def in_this_file(tree):
    return [v for v in tree.vertices if v.text is not None and v.text.function.file == __file__]


class Block(nn.Module):
    def __init__(self, skip=None):
        super().__init__()
        self.norm1 = nn.LayerNorm(4)
        self.skip = skip or nn.Identity()

    def forward(self, x):
        h = F.silu(self.norm1(x))
        h = h * 2 if x.shape[0] > 1 else h
        return h + self.skip(x)


class Loops(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(nn.Linear(4, 4))])

    def embed(self, t):
        return t.sin()

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        for _ in range(2):
            x = x * 3
        return sum([p.exp() for p in (x, x)])


def traced(module, *args):
    return trace(module, args or (torch.randn(2, 4),), {}).operations


def test_each_operation_has_the_frames_that_made_it():
    found = {op.base: op for op in traced(Loops())}
    assert own(found["sin"]) == ["self.embed(x)", "t.sin()"]
    assert own(found["layer_norm"]) == ["block(x)", "self.norm1(x)"]
    assert own(found["silu"]) == ["block(x)", "F.silu(self.norm1(x))"]
    assert own(found["linear"]) == ["block(x)", "self.skip(x)"]
    assert own(found["exp"]) == ["p.exp()"]
    call = found["silu"].calls[1]
    assert call.function.name == "Block.forward"
    assert call.function.line == inspect.getsourcelines(Block.forward)[1]
    assert [c.function.name for c in found["silu"].calls][2:] == ["silu"]  # F.silu's own, once


def test_frames_name_the_module_and_count_its_calls():
    """Also those that make no operation: of an Identity."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.ReLU()
            self.same = self.a

        def forward(self, x):
            for module in (self.a, self.same):
                x = module(x)
            return self.a(x)

    calls = [op.calls[1] for op in traced(Shared())]
    assert [(c.module, c.number) for c in calls] == [("a", 0), ("a", 1), ("a", 2)]
    assert [c.enters for c in calls] == [(("a", 0),), (("a", 1),), (("a", 2),)]
    found = traced(Loops())
    assert {(c.module, c.number) for op in found for c in op.calls if c.function.name == "Loops.embed"} == {("", 0)}
    blocks = [c for op in found for c in op.calls if c.function.name == "Block.forward"]
    assert {(c.module, c.number) for c in blocks} == {("blocks.0", 0), ("blocks.1", 0)}


def test_inner_functions_belong_to_the_module_around_them():
    class Nested(nn.Module):
        def forward(self, x):
            def scaled(y):
                return y * len(self._modules)

            twice = lambda y: scaled(y) + self.training  # noqa: E731
            return twice(x)

    mul, add = traced(Nested())
    assert own(mul) == ["twice(x)", "scaled(y)", "y * len(self._modules)"]
    assert own(add) == ["twice(x)", "scaled(y) + self.training"]
    assert all(c.module == "" for c in mul.calls)


def test_local_names_that_hold_tensors():
    class Held(nn.Module):
        def forward(self, x):
            pair, sizes, kept = (x, 1), list(x.shape), {"x": [x]}
            return pair[0] + len(sizes) + len(kept)

    assert traced(Held())[0].calls[0].tensors == ("x", "pair", "kept")


def test_places_are_no_part_of_what_an_operation_is():
    operation = traced(Loops())[0]
    other = replace(operation, calls=())
    assert operation == other and repr(operation) == repr(other) and operation.calls


def test_library_code_is_there_and_machinery_is_not():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x)[0]

    operation = next(op for op in traced(Attends(), torch.randn(2, 3, 4)) if op.base == "bmm" or "attention" in op.base)
    names = [c.function.name for c in operation.calls]
    assert names[1:3] == ["MultiheadAttention.forward", "multi_head_attention_forward"]
    assert not any("_call_impl" in n or "dispatch" in n for n in names)


# ------------------------------------------------------------------------------------------------------------------ the tree


def test_an_expression_has_inside_what_it_evaluates():
    tree = build(trace(Block(), (torch.randn(2, 4),), {}))
    outer = next(v for v in in_this_file(tree) if texts(v) == "F.silu(self.norm1(x))")
    inner = tree.children(outer)[0]
    assert (outer.end - outer.begin, inner.called, texts(inner)) == (2, ("norm1", 0), "self.norm1(x)")
    assert outer.called is None and outer.markable and outer.text.module == "" and outer.text.tensors == ("x",)
    assert tree.root.called == ("", 0) and (tree.root.begin, tree.root.end) == (0, 4)
    assert "h * 2 if x.shape[0] > 1 else h" in map(texts, in_this_file(tree))  # the whole right side


def test_vertices_nest_and_cover_all_operations():
    tree = build(trace(Loops(), (torch.randn(2, 4),), {}))
    for vertex in tree.vertices:
        children = tree.children(vertex)
        assert all(vertex.begin <= c.begin < c.end <= vertex.end for c in children)
        assert all(a.end <= b.begin for a, b in itertools.pairwise(children))
    for operation in range(tree.root.end):
        assert operation in tree.own(tree.innermost(operation))


def test_each_time_that_a_loop_comes_by_is_an_evaluation():
    tree = build(trace(Loops(), (torch.randn(2, 4),), {}))
    found = [texts(v) for v in in_this_file(tree)]
    assert found.count("x * 3") == 2 and found.count("block(x)") == 2 and found.count("p.exp()") == 2
    assert found.count("sum([p.exp() for p in (x, x)])") == 1 and found.count("[p.exp() for p in (x, x)]") == 1
    calls = [v.called for v in in_this_file(tree) if texts(v) == "block(x)"]
    assert calls == [("blocks.0", 0), ("blocks.1", 0)]


def test_a_loop_that_skips_parts_of_its_expression_is_told_apart():
    """The first time only the inner call makes an operation, the second time only the outer one."""

    class Skips(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.ModuleList([nn.ReLU(), nn.Identity()])
            self.outer = nn.ModuleList([nn.Identity(), nn.ReLU()])

        def forward(self, x):
            for i in range(2):
                x = self.outer[i](self.inner[i](x))
            return x

    tree = build(trace(Skips(), (torch.randn(2, 4),), {}))
    whole = [v for v in in_this_file(tree) if texts(v).startswith("self.outer")]
    assert [(v.begin, v.end) for v in whole] == [(0, 1), (1, 2)]


class Chain(nn.Module):
    def forward(self, x):
        # fmt: off
        return (x.exp()
                .sin()
                .cos())
        # fmt: on


def test_methods_called_over_several_lines_are_found():
    """Python places these calls at the method's name."""
    tree = build(trace(Chain(), (torch.randn(2),), {}))
    assert [len(texts(v).split("\n")) for v in in_this_file(tree)] == [3, 2, 1]
    assert all(v.markable for v in in_this_file(tree))


def test_sums_of_generators_are_one_evaluation():
    class Sums(nn.Module):
        def forward(self, x):
            for _ in range(2):
                x = sum(p.exp() for p in (x, x))
            return x

    tree = build(trace(Sums(), (torch.randn(2),), {}))
    sums = [v for v in in_this_file(tree) if texts(v).startswith("sum")]
    assert [v.end - v.begin for v in sums] == [4, 4]


def test_changes_in_place_are_statements_that_can_be_marked():
    class Adds(nn.Module):
        def forward(self, x):
            y = x.exp()
            y += x.sin()
            return y

    tree = build(trace(Adds(), (torch.randn(2),), {}))
    found = {texts(v): v for v in in_this_file(tree)}
    assert found["x.sin()"].markable and found["y += x.sin()"].markable
