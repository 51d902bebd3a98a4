"""What tests of marks share: models traced, marked at some level, and run with stand-ins for `parts`."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from remat_codegen.marked.evaluations import Tree, Vertex, build
from remat_codegen.marked.marking import Mark, refusal_of
from remat_codegen.marked.names import name_for
from remat_codegen.marked.syntax import syntax_of
from remat_codegen.torch_seam import pytree
from remat_codegen.trace.tracing import trace


class Once:
    """Parts that run once."""

    def part(self, name: str, run: Callable[..., Any], *inputs: Any) -> Any:
        return run(*inputs)


class Twice:
    """Parts that run on copies of their inputs first, with the same random numbers."""

    def part(self, name: str, run: Callable[..., Any], *inputs: Any) -> Any:
        state = torch.get_rng_state()
        run(*pytree.tree_map(lambda v: v.detach().clone() if isinstance(v, torch.Tensor) else v, inputs))
        torch.set_rng_state(state)
        return run(*inputs)


def tree_of(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
    return build(trace(module, args, kwargs))


def in_file(tree: Tree, file: str) -> list[Vertex]:
    return [v for v in tree.vertices if v.markable and v.text.function.file == file and v.text.module is not None]


def leaves(tree: Tree, file: str) -> list[Vertex]:
    """The innermost expressions of a file."""
    found = in_file(tree, file)
    outer = {a.id for v in found for a in tree.ancestors(v)}
    return [v for v in found if v.id not in outer]


def whole(tree: Tree, file: str) -> list[Vertex]:
    """The expressions that no other one of the same function's frame is around."""
    return [v for v in in_file(tree, file) if not _is_around(tree, v)]


def _is_around(tree: Tree, vertex: Vertex) -> bool:
    outer = tree.vertices[vertex.parent]
    same = outer.text is not None and outer.text.function == vertex.text.function and outer.text.module == vertex.text.module
    return same and outer.called is None and outer.markable


def marks_for(source: str, tree: Tree, vertices: Iterable[Vertex], module: torch.nn.Module) -> list[Mark]:
    """One mark for each expression of these vertices that can be marked."""
    syntax, found, taken = syntax_of(source), {}, set()
    for v in vertices:
        children = {n for n, _ in module.get_submodule(v.text.module).named_children()}
        known = found.get(v.text.span)
        name = known.name if known else name_for(syntax, v.text.span, {n for f, n in taken if f == v.text.function}, children)
        taken.add((v.text.function, name))
        inputs = tuple(dict.fromkeys((*(known.inputs if known else ()), *v.text.tensors)))
        mark = Mark(v.text.span, name, inputs, (), tree.spans(v.text.function.file))
        if not refusal_of(source, mark):
            found[v.text.span] = mark
    return list(found.values())


def loaded(source: str, file: str, parts: str | None = None, holder: Any = None, package: str = "") -> types.ModuleType:
    """A file's text as a module, in which `parts` gives `holder`."""
    module = types.ModuleType(Path(file).stem)
    module.__file__, module.__package__ = file, package
    if parts is not None:
        setattr(module, parts, lambda owner: holder)
    exec(compile(source, file, "exec"), vars(module))
    return module


def results(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """What a training step computes: outputs and gradients."""
    torch.manual_seed(3)
    outputs = [o for o in pytree.tree_leaves(module(*args, **kwargs)) if isinstance(o, torch.Tensor)]
    sum(o.sum() * (i + 1) for i, o in enumerate(outputs) if o.requires_grad).backward()
    return [*outputs, *(p.grad for p in module.parameters() if p.grad is not None)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
