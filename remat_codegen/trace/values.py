"""Values of tensors that forward asks for (`if mask.all():`). torch.export refuses to decide by any of them. Those that no
input, parameter or random number is in are the same in every call, and can be computed. So can those of inputs: a file looks at
these again in every step."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from remat_codegen.trace.refusals import is_library

LONGEST = 120  # characters of a line that asks for a value, in messages
ASKING = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist")  # how Python asks for a tensor's value


def are_constant(tensors: list[torch.Tensor]) -> bool:
    """Whether tensors of a trace are computed from nothing that may be another in the next call."""
    nodes = _makers(tensors)
    return nodes is not None and not any(_varies(node) for node in nodes)


@dataclass
class Decisions:
    """What forward decides by the values of its inputs. `made` are a tensor of the trace with one truth value, what it was, and
    the line that asks for it. `given` are the arguments to decide by; None where forward may not."""

    given: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    made: list[tuple[torch.Tensor, bool, str]] = field(default_factory=list)
    inputs: dict[torch.fx.Node, torch.Tensor] = field(default_factory=dict)
    known: set[Any] = field(default_factory=set)

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
                with _disable_current_modes():
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
        self.made, self.inputs, self.known = [], {}, set()
        if self.given is None:
            return
        signature = inspect.signature(module.forward)
        traced, given = (pytree.tree_leaves(dict(signature.bind(*a, **k).arguments)) for a, k in ((args, kwargs), self.given))
        for leaf, value in zip(traced, given, strict=True):
            node = _maker(leaf) if isinstance(leaf, torch.Tensor) else None
            if node is not None:
                self.inputs[node] = value

    def _computed(self, tensor: torch.Tensor, name: str) -> torch.Tensor | None:
        """A tensor of a trace, computed; None where it may be another in the next call, other than by what is given, or where
        something was changed in place."""
        nodes = _makers([tensor])
        made = _maker(tensor)
        if not nodes or made is None or _are_changed(nodes):
            return None
        ours = nodes & set(self.inputs)
        if any(_varies(node) or node.op != "call_function" for node in nodes - ours):
            return None
        if ours and not (name == "__bool__" or (name != "tolist" and tensor.dtype == torch.bool)):
            return None  # numbers: other inputs have others
        values = dict[torch.fx.Node, Any](self.inputs)
        with _disable_current_modes():  # and no other mode here: entering one would be traced
            for node in (n for n in made.graph.nodes if n in nodes - ours):  # in their order
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **kwargs)
            if ours:
                self._note(tensor, made, values[made])
            return values[made]

    def _note(self, tensor: torch.Tensor, made: torch.fx.Node, value: torch.Tensor) -> None:
        key = _key(made)
        if key not in self.known:
            self.known.add(key)
            self.made.append((tensor, bool(value), _asking_line()))


def _key(node: Any) -> Any:
    """The same for nodes that compute the same."""
    if node.op == "placeholder":
        return node.name
    return str(node.target), str(torch.fx.map_arg((node.args, node.kwargs), lambda n: repr(_key(n))))


def _asking_line() -> str:
    """The line that asks for a value: where it is, and its text."""
    frame = next(f for f in reversed(traceback.extract_stack()) if not is_library(f.filename))
    text = (frame.line or "").strip().rstrip(":")
    return f"{frame.filename.rpartition('/')[2]}:{frame.lineno} (`{text[:LONGEST]}`)"


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


def _are_changed(nodes: set[torch.fx.Node]) -> bool:
    """Whether a trace changes something of nodes, or of what looks at it, in place so far."""
    graph = next(iter(nodes)).graph
    changing = [n for n in graph.nodes if isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable]
    return any(nodes & _ancestors(set(n.all_input_nodes)) for n in changing)


def _ancestors(nodes: set[torch.fx.Node]) -> set[torch.fx.Node]:
    found = set(nodes)
    while more := {node for known in found for node in known.all_input_nodes} - found:
        found |= more
    return found
