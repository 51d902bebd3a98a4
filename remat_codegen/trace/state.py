"""What forward leaves in the model: buffers that it assigns, as training steps do, too; and other attributes that it sets,
which a trace holds as they were."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch

from remat_codegen.errors import UnsupportedError
from remat_codegen.torch_seam import buffers_of, exporting, pytree, storage_key, tree_map
from remat_codegen.trace.ir import Origin, Trace
from remat_codegen.trace.values import Decisions, are_constant

ABSENT = object()  # stands for an attribute that was not there
PLAIN = (bool, int, float, str, type(None), torch.Tensor)

PARAMETERS = ("_parameters", "_buffers", "_modules", "_flat_weights")  # these and lists of them; recurrent networks keep one

HOOKS = frozenset(n for n, held in vars(torch.nn.Module()).items() if isinstance(held, dict)) - {*PARAMETERS}
Hooks = list[tuple[dict[Any, Any], dict[Any, Any]]]  # each dict of a module's hooks, and what was in it

Attributes = dict[str, Any]  # by path, `h.0.calls`; containers are copies


@dataclass
class Seen:
    """What forward changed while it was traced: in dicts and lists that it was given, and attributes, as it left them. Among
    the `written` are parameters that it gave modules instead of others. The
    `constant` ones are tensors that it would make again, as no input, parameter or random number is in them.
    `assigned` are the new values of buffers, which the traced forward returns beside its result; `drawn` are the generators
    that a recorded run drew from, but for PyTorch's. `leaf_bytes` are those of parameters and other leaves
    with gradient that it makes itself, and `taken` the parameters that modules have no longer.
    """

    written: list[str] = field(default_factory=list)
    attributes: Attributes = field(default_factory=dict)
    constant: set[str] = field(default_factory=set)
    assigned: dict[str, torch.Tensor] = field(default_factory=dict)
    drawn: list[str] = field(default_factory=list)
    leaf_bytes: int = 0
    taken: tuple[str, ...] = ()

    def left(self) -> Attributes:
        """The attributes that the next call may come out otherwise for, and the buffers."""
        return self.assigned | {name: value for name, value in self.attributes.items() if name not in self.constant}

    def names(self) -> Iterator[str]:
        """What a user may want to know of: not the numbers that libraries keep for themselves."""
        yield from self.written
        for name, value in self.attributes.items():
            if has_tensors(value) or not name.rpartition(".")[2].startswith("_"):
                yield name


@contextlib.contextmanager
def watched(module: torch.nn.Module, seen: Seen, decisions: Decisions) -> Iterator[None]:
    """Fills `seen` with what forward changes, and makes it return the buffers that it assigns, and what it decides by.
    torch.export would copy these buffers into the old ones, which others may hold, but not in submodules, and it takes one for
    another where some are None."""
    containers = list[tuple[str, Any, Any]]()
    attributes: Attributes = {}
    parameters: dict[str, torch.nn.Parameter] = {}
    made: list[torch.Tensor] = []

    def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        named = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        containers.extend((name, c, copy.copy(c)) for name, value in named.items() for name, c in _containers(name, value))
        attributes.update(attributes_of(module))
        parameters.update(module.named_parameters(remove_duplicate=False))
        made.clear()

    def after(module: torch.nn.Module, args: Any, result: Any) -> Any:
        seen.written.extend(part for name, container, copied in containers for part in _changed(name, container, copied))
        now = dict(module.named_parameters(remove_duplicate=False))
        seen.written += [n for n, p in now.items() if parameters.get(n) is not p]
        seen.taken = tuple(n for n in parameters if n not in now)
        seen.assigned |= _assigned_buffers(module, attributes)
        own = {id(parameter) for parameter in module.parameters()}
        leaves = {id(leaf): leaf for leaf in made if leaf.requires_grad and id(leaf) not in own}
        seen.leaf_bytes = sum(leaf.numel() * leaf.element_size() for leaf in leaves.values())
        now = attributes_of(module)
        changed = {n: v for n, v in now.items() if n not in attributes or not _is_same(v, attributes[n])}
        seen.attributes |= changed
        seen.constant |= {name for name, value in changed.items() if are_constant([*tensors_in({name: value})])}
        more = [*seen.assigned.values(), *decisions.settled()]
        return (result, more) if more else result

    hooks = module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after)
    try:
        with mock.patch.object(exporting, "register_buffer_assignment_hook", mock.MagicMock(), create=True), _noting(made):
            yield
    finally:
        made.clear()
        for hook in hooks:
            hook.remove()


def _assigned_buffers(module: torch.nn.Module, before: Attributes) -> dict[str, torch.Tensor]:
    """The buffers that forward has assigned, with their new values; the module gets the old ones back.

    Raises UnsupportedError where the next call would compute something else with the new one.
    """
    own = {storage_key(t) for t in (*module.parameters(), *tensors_in(before))}
    found = {}
    for path, part in module.named_modules():
        for name, tensor in buffers_of(part).items():
            where = f"{path}.{name}".lstrip(".")
            old = before.get(where)
            if old is tensor or old is None or tensor is None:
                continue
            if (old.shape, old.dtype, old.device) != (tensor.shape, tensor.dtype, tensor.device):
                what = f"a {tensor.dtype} of shape {[*tensor.shape]}, and it was {old.dtype} of {[*old.shape]}"
                raise _refused(where, what, "; if only the first call does so, call the model once where it is made")
            if storage_key(tensor) in own:
                raise _refused(where, "what is the memory of a parameter or of a buffer")
            found[where] = tensor.detach() if tensor.requires_grad else tensor
            buffers_of(part)[name] = old
    return found


def tensors_in(attributes: Attributes) -> Iterator[torch.Tensor]:
    """The tensors among attributes, and in dicts, lists and tuples among them."""
    return (leaf for leaf in pytree.tree_leaves(attributes) if isinstance(leaf, torch.Tensor))


def _refused(buffer: str, what: str, otherwise: str = "") -> UnsupportedError:
    hint = f"write into it instead: self.{buffer.rpartition('.')[2]}.copy_(...){otherwise}"
    return UnsupportedError(f"forward assigns to the buffer {buffer} {what}", hint=hint)


def attributes_of(module: torch.nn.Module) -> Attributes:
    """The numbers, texts and tensors that modules hold, and their dicts, lists and tuples of such; not the parameters, and
    not their hooks."""
    found: Attributes = {}
    for path, part in module.named_modules():
        for name, value in (*buffers_of(part).items(), *vars(part).items()):
            if name not in PARAMETERS and name not in HOOKS and _is_plain(value):
                found[f"{path}.{name}".lstrip(".")] = _copied(value)
    return found


def set_attributes(module: torch.nn.Module, values: Attributes) -> None:
    """Gives attributes other values; lists and dicts stay the objects that they are, as others may hold them, too."""
    for path, value in values.items():
        where, _, name = path.rpartition(".")
        part = module.get_submodule(where)
        own: dict[str, Any] = buffers_of(part) if name in buffers_of(part) else vars(part)
        now: Any = own.get(name)
        if value is ABSENT:
            own.pop(name, None)
        elif type(value) is type(now) and isinstance(value, dict):
            now.clear()
            now.update(value)
        elif type(value) is type(now) and isinstance(value, list):
            now[:] = value
        else:
            own[name] = _copied(value)


def put_back(module: torch.nn.Module, held: Attributes) -> None:
    """Gives a module the attributes that `attributes_of` found before, and no others of that kind."""
    now = attributes_of(module)
    changed = {name for name in {**now, **held} if not _is_same(now.get(name, ABSENT), held.get(name, ABSENT))}
    set_attributes(module, {name: held.get(name, ABSENT) for name in changed})


def hooks_of(module: torch.nn.Module) -> Hooks:
    """The dicts that modules hold their hooks in, each with what it holds."""
    return [(held, dict(held)) for part in module.modules() for name, held in vars(part).items() if name in HOOKS]


def have_changed(hooks: Hooks) -> bool:
    """Whether hooks were registered or removed since `hooks_of` found them."""
    return any(list(held.items()) != list(before.items()) for held, before in hooks)


def put_hooks_back(hooks: Hooks) -> None:
    """Leaves the hooks that `hooks_of` found, and no others: forward that has registered some does so again once what it noted
    of that is put back."""
    for held, before in hooks:
        held.clear()
        held.update(before)


def without_data(values: Attributes) -> Attributes:
    """The same with tensors of zeros in place of those of a trace: one for each of these."""
    made: dict[int, torch.Tensor] = {}

    def zeros(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        shape = [n if isinstance(n, int) else n.node.hint for n in leaf.shape]
        return made.setdefault(id(leaf), torch.zeros(shape, dtype=leaf.dtype, device=leaf.device))

    return {name: tree_map(zeros, value) for name, value in values.items()}


def has_tensors(value: Any) -> bool:
    """Whether there is a tensor in it."""
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def _is_plain(value: Any) -> bool:
    return all(isinstance(leaf, PLAIN) for leaf in pytree.tree_leaves(value))


def _copied(value: Any) -> Any:
    return tree_map(lambda leaf: leaf, value)


def _is_same(one: Any, other: Any) -> bool:
    leaves, spec = pytree.tree_flatten(one)
    others, other_spec = pytree.tree_flatten(other)
    return spec == other_spec and all(map(_is_same_leaf, leaves, others))


def _is_same_leaf(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is other
    return bool(type(one) is type(other) and (one == other or one != one))


def _containers(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The dicts and lists in an argument, and how they are reached."""
    if isinstance(value, (dict, list)):
        yield name, value
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, (dict, list, tuple)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in parts:
        yield from _containers(f"{name}[{key!r}]", part)


def _changed(name: str, now: Any, before: Any) -> Iterator[str]:
    if isinstance(now, list):
        yield from () if [*map(id, now)] == [*map(id, before)] else (name,)
        return
    keys = [key for key in {**before, **now} if now.get(key, ABSENT) is not before.get(key, ABSENT)]
    yield from (f"{name}[{key!r}]" for key in keys)


_made: ContextVar[list[torch.Tensor] | None] = ContextVar("made", default=None)


def note_leaf(tensor: torch.Tensor) -> None:
    """Notes that forward gives a tensor that it has made a gradient of its own."""
    if (made := _made.get()) is not None and tensor.requires_grad and tensor.is_leaf:
        made.append(tensor)


@contextlib.contextmanager
def _noting(made: list[torch.Tensor]) -> Iterator[None]:
    """Notes the parameters, and other leaves with gradient, that are made in here."""
    plain = vars(torch.nn.Parameter)["__new__"]

    def new(*args: Any, **kwargs: Any) -> Any:
        made.append(plain.__func__(*args, **kwargs))
        return made[-1]

    token = _made.set(made)
    try:
        with mock.patch.object(torch.nn.Parameter, "__new__", staticmethod(new)):
            yield
    finally:
        _made.reset(token)


def with_returned(trace: Trace, assigned: Iterable[str], decisions: Iterable[tuple[str, bool]]) -> Trace:
    """The trace of a forward that returns `assigned` buffers beside its result, and what it decides by. It reads the old
    buffers as it does inputs: so can second runs."""
    paths, decided = list(assigned), tuple(decisions)
    if not paths and not decided:
        return trace
    variables, inputs, state = list(trace.variables), list(trace.inputs), list[tuple[str, int | None]]()
    for path in paths:
        known = next((v for v in variables if v.origin is Origin.BUFFER and path in (v.path, *v.aliases)), None)
        if known is not None and known.aliases:
            others = [name for name in (known.path, *known.aliases) if name != path]
            raise _refused(path, f"a tensor, but not to {' and '.join(others)}, which is the same buffer")
        if known is not None and trace.readers[known.id]:
            variables[known.id] = replace(known, origin=Origin.INPUT)
            inputs.append(known.id)
            state.append((path, known.id))
        else:
            state.append((path, None))
    spec = trace.output_spec
    children = spec.children() if hasattr(spec, "children") else spec.children_specs
    found = replace(trace, variables=tuple(variables), inputs=tuple(inputs), output_spec=children[0])
    return replace(found, state=tuple(state), decisions=decided)
