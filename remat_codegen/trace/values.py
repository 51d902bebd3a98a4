"""Values of tensors that forward asks for (`if mask.all():`). torch.export refuses to decide by any of them. Those that no
input, parameter or random number is in are the same in every call, and can be computed. So can those of inputs: a file looks at
these again in every step."""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from remat_codegen.errors import UnsupportedError
from remat_codegen.torch_seam import OpOverload, disable_current_modes, proxy_tensor, pytree, schema
from remat_codegen.trace.refusals import asking_line

ASKING = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist")  # how Python asks for a tensor's value


def are_constant(tensors: list[torch.Tensor]) -> bool:
    """Whether tensors of a trace are computed from nothing that may be another in the next call, nor had such a thing written
    into them."""
    nodes = _makers(tensors)
    if nodes is None or any(_varies(node) for node in nodes):
        return False
    return not nodes or not any(_varies(node) for node in _with_written(nodes))


def are_drawn(tensors: list[torch.Tensor]) -> bool:
    """Whether tensors of a trace are computed from random numbers, and from nothing else that varies."""
    nodes = _makers(tensors)
    varying = {node for node in _with_written(nodes) if _varies(node)} if nodes else set[torch.fx.Node]()
    return bool(varying) and not any(node.op == "placeholder" for node in varying)


@dataclass
class Decisions:
    """What forward decides by the values of its inputs. `made` are a tensor of the trace with one truth value, what it was, the
    line that asks for it, and a number that is the same for tensors that are computed alike. `given` are the arguments to
    decide by; None where forward may not."""

    given: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    made: list[tuple[torch.Tensor, bool, str, str]] = field(default_factory=list)
    inputs: dict[torch.fx.Node, torch.Tensor] = field(default_factory=dict)
    numbers: dict[Any, str] = field(default_factory=dict)
    casts: list[Any] = field(default_factory=list)

    @contextlib.contextmanager
    def answered(self, module: torch.nn.Module) -> Iterator[None]:
        """Answers where `module` asks for values."""
        before = {name: getattr(torch.Tensor, name) for name in ASKING}
        own = {name: name in vars(torch.Tensor) for name in ASKING}

        def answering(name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
            def ask(tensor: torch.Tensor) -> Any:
                known = self._computed(tensor, name)
                if known is None:
                    return usual(tensor)
                with disable_current_modes():
                    return usual(known)

            return ask

        hook = module.register_forward_pre_hook(self._begin, with_kwargs=True)
        for name, usual in before.items():
            setattr(torch.Tensor, name, answering(name, usual))
        try:
            yield
        finally:
            hook.remove()
            for name, usual in before.items():
                setattr(torch.Tensor, name, usual) if own[name] else delattr(torch.Tensor, name)

    def _begin(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Finds which of a trace's tensors are the arguments."""
        self.made, self.inputs, self.numbers, self.casts = [], {}, {}, _casts()
        if self.given is None:
            return
        signature = inspect.signature(module.forward)
        traced, given = (pytree.tree_leaves(dict(signature.bind(*a, **k).arguments)) for a, k in ((args, kwargs), self.given))
        for leaf, value in zip(traced, given, strict=True):
            node = _maker(leaf) if isinstance(leaf, torch.Tensor) else None
            if node is not None:
                self.inputs[node] = value

    def _computed(self, tensor: torch.Tensor, name: str) -> torch.Tensor | None:
        """A tensor of a trace, computed; None where it may be another in the next call, other than by what is given, where
        something was changed in place, or where it was computed under other casts than the model is called under."""
        nodes, made = _makers([tensor]), _maker(tensor)
        if not nodes or made is None or nodes & _changed(made.graph):
            return None
        ours = nodes & set(self.inputs)
        if any(_varies(node) or node.op != "call_function" for node in nodes - ours):
            return None
        if ours and not (name == "__bool__" or (name != "tolist" and tensor.dtype == torch.bool)):
            return None  # numbers: other inputs have others
        if _casts() != self.casts or nodes & _cast_otherwise(made.graph):
            return None
        values, numbers = dict[torch.fx.Node, Any](self.inputs), {node: node.name for node in ours}
        with disable_current_modes():  # and no other mode here: entering one would be traced
            for node in (n for n in made.graph.nodes if n in nodes - ours):  # in their order
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **kwargs)
                key = str(node.target), repr(torch.fx.map_arg((node.args, node.kwargs), numbers.__getitem__))
                numbers[node] = self.numbers.setdefault(key, f"{len(self.numbers)}")
            if ours and numbers[made] not in (number for *_, number in self.made):
                self.made.append((tensor, bool(values[made]), asking_line(), numbers[made]))
            return values[made]

    def settled(self) -> list[torch.Tensor]:
        """The tensors that were decided by. Raises UnsupportedError where one of them was changed in place afterwards."""
        tensors = [tensor for tensor, *_ in self.made]
        makers = {node for node in map(_maker, tensors) if node is not None}
        if makers and makers & _changed(next(iter(makers)).graph):
            raise UnsupportedError("what forward decides by is changed in place")
        return tensors

    def lines(self) -> list[tuple[str, bool]]:
        """The lines that ask, and what they found."""
        return [(line, value) for _, value, line, _ in self.made]


def _makers(tensors: list[torch.Tensor]) -> set[torch.fx.Node] | None:
    """The nodes of a trace that tensors come from; None where nothing is traced or there is no tensor."""
    if proxy_tensor.get_proxy_mode() is None or not tensors:
        return None
    return _ancestors({node for node in map(_maker, tensors) if node is not None})


def _maker(tensor: torch.Tensor) -> torch.fx.Node | None:
    mode = proxy_tensor.get_proxy_mode()
    slot = proxy_tensor.get_proxy_slot(tensor, mode.tracer, None) if mode is not None else None
    return None if slot is None else slot.proxy.node


def _varies(node: torch.fx.Node) -> bool:
    return node.op == "placeholder" or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _with_written(nodes: set[torch.fx.Node]) -> set[torch.fx.Node]:
    """Nodes of a trace, and what else their values come from where something was written into one of them in place."""
    neighbours, written = in_one_memory(next(iter(nodes)).graph)
    changed = reached(written, neighbours)
    found = set(nodes)
    while more := {n for node in found & changed for n in neighbours[node]} - found:
        found |= _ancestors(more)
    return found


def _changed(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The nodes of a trace whose memory it changes in place so far."""
    neighbours, written = in_one_memory(graph)
    return reached(written, neighbours)


def in_one_memory(graph: torch.fx.Graph) -> tuple[dict[torch.fx.Node, set[torch.fx.Node]], set[torch.fx.Node]]:
    """For each node of a trace that may share memory with others: what it was made from, and what was made from it. And
    the nodes that are written into."""
    neighbours: dict[torch.fx.Node, set[torch.fx.Node]] = {}
    written = set[torch.fx.Node]()
    for node in graph.nodes:
        for given, is_written in _shared(node):
            neighbours.setdefault(node, set()).add(given)
            neighbours.setdefault(given, set()).add(node)
            written |= {given} if is_written else set()
    return neighbours, written


def reached(start: set[torch.fx.Node], neighbours: dict[torch.fx.Node, set[torch.fx.Node]]) -> set[torch.fx.Node]:
    """The nodes that some are linked with, and those themselves."""
    found, new = set(start), start
    while new:
        new = {n for known in new for n in neighbours.get(known, ())} - found
        found |= new
    return found


def _shared(node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, bool]]:
    """The arguments whose memory an operation may return, or writes; and whether it does."""
    if node.target is operator.getitem:
        yield from ((given, False) for given in node.all_input_nodes)
    if isinstance(node.target, OpOverload):
        for place, argument in enumerate(schema(node.target).arguments):
            value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            shared = argument.alias_info
            leaves = pytree.tree_leaves(value) if shared is not None else []
            yield from ((leaf, bool(shared and shared.is_write)) for leaf in leaves if isinstance(leaf, torch.fx.Node))


def _casts() -> list[Any]:
    """What autocast does at this moment."""
    devices = ("cpu", "cuda")
    return [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]


def _cast_otherwise(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The nodes of a trace that were made in a region with an autocast of its own."""
    depth, found = 0, set[torch.fx.Node]()
    for node in graph.nodes:
        depth += {"_enter_autocast": 1, "_exit_autocast": -1}.get(getattr(node.target, "__name__", ""), 0)
        found |= {node} if depth else set()
    return found


def _ancestors(nodes: set[torch.fx.Node]) -> set[torch.fx.Node]:
    found = set(nodes)
    while more := {node for known in found for node in known.all_input_nodes} - found:
        found |= more
    return found
