"""What a training step does to memory, seen by running it once on fake tensors: no memory, no time, real autograd.

Each operation of the trace is run under FakeTensorMode with gradients; `saved_tensors_hooks` show what autograd saves for
it, and storage identity tells views, in-place results and saved values apart without knowing any operation by name. Then the
engine itself walks back, and the life of each gradient storage is followed through weak references to it.

The steps of the backward pass are named by the operation they undo: the engine takes nodes by descending sequence number, so
undoing operation i is one contiguous stretch, and stretches come in exactly the reverse order of the operations.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from remat_codegen.errors import UnsupportedError
from remat_codegen.graph.fake_strides import Layouts
from remat_codegen.graph.gradients import Gradient, Lives, Undoing
from remat_codegen.graph.nature import (
    is_opaque,
    is_random,
    real_phantoms,
    rows_at_most,
    storage_bytes,
    written_arguments,
    written_tensors,
)
from remat_codegen.graph.single_numbers import single_number_bytes
from remat_codegen.graph.sums import ADD, Sums
from remat_codegen.graph.unplannable import check_backward, check_devices, check_trained, without_data
from remat_codegen.torch_seam import (
    FakeTensorMode,
    TorchDispatchMode,
    current_node,
    key_of_storage,
    next_sequence_number,
    pytree,
    schema,
    sequence_number,
    storage_key,
    version,
)
from remat_codegen.trace import (
    BY_VALUES,
    Like,
    Operation,
    Origin,
    Ref,
    Trace,
    Variable,
    absent,
    autocasting,
    called,
    function_call,
    location,
    substitute,
)
from remat_codegen.trace.training import LOSSES as LOSSES
from remat_codegen.trace.training import example_loss as example_loss
from remat_codegen.trace.training import goes_into_numbers, taking_gradient, usual_loss

NO_MEMORY = -1  # the storage of a size
LEAF_SEQUENCE = 2**63  # sequence numbers of AccumulateGrad nodes lie above this


@dataclass(frozen=True, slots=True)
class Storage:
    """A piece of memory of the forward pass. `operation` is None for parameters, buffers, constants and inputs."""

    id: int
    nbytes: int
    operation: int | None


@dataclass(frozen=True, slots=True)
class Cast:
    """A copy that autocast makes of a leaf with gradient, and keeps for whoever else needs it. `saved` says whether autograd
    saves it, too."""

    leaf: int  # its variable
    nbytes: int
    saved: bool


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """What one operation does to memory, forward and while the engine goes back through it."""

    saved: tuple[int, ...]  # storages (values, parameters, inputs) that autograd saves for its backward
    phantoms: tuple[int, ...]  # bytes of each tensor that autograd saves beside them
    mutated: tuple[int, ...]  # storages that it changes in place
    random: bool  # whether it draws random numbers
    backward: bool = False  # whether the engine reaches it
    unsaved: bool = False  # whether autograd would save something for it that is never read, as the engine does not reach it
    stop: int | None = None  # the variable whose node it reaches first: a result, or the base of what is changed in place
    gradient_bytes: int | None = None  # of what is alive when the engine goes back through it, if that makes or asks for any
    most_gradient_bytes: int = 0  # the most that gradients take at once, while it is undone
    added_bytes: int = 0  # the most that gradients take, while it is undone, when one of an earlier operation is added to
    # What it asks for of what autograd saved, in this order: storages, None of what is saved beside those; and the bytes of
    # the gradients that are alive then.
    asked: tuple[tuple[int | None, int], ...] = ()
    # Storages and bytes that autograd saves for nobody, where the engine does not come, as long as somebody has the result.
    lost: tuple[int, ...] = ()
    lost_bytes: tuple[int, ...] = ()
    casts: tuple[Cast, ...] = ()  # those of leaves, under autocast


@dataclass(frozen=True, slots=True)
class VariableRecord:
    """How one variable lies in memory, and the gradient that comes back to it."""

    storage: int  # NO_MEMORY of a size
    requires_grad: bool  # once forward is over: writing into a tensor can make it require grad
    strides: tuple[int, ...] | None  # None of a size
    gradient_strides: tuple[int, ...] | None  # None where no gradient comes, and of what no operation makes
    tensor: int  # the first variable that is the same tensor, as what is cast to the type that it has


@dataclass(frozen=True, slots=True)
class Record:
    """What one training step does to memory."""

    storages: tuple[Storage, ...]
    operations: tuple[OperationRecord, ...]  # a row for each operation of the trace
    variables: tuple[VariableRecord, ...]  # a row for each variable of the trace
    gradients: tuple[Gradient, ...]  # in the order in which they are born
    shared_cast_bytes: int = 0  # autocast's copies of all parameters and inputs, where operations share such a copy; else 0
    loss: str = LOSSES[0]  # what the step goes back from
    single_number_bytes: int = 0  # of what a step on the CPU holds beside its tensors

    def storages_of(self, variables: Iterable[int]) -> set[int]:
        """The storages that variables lie in."""
        return {self.variables[v].storage for v in variables}

    def maker_of(self, variable: int) -> int | None:
        """The operation that allocates the memory of a variable; None of what is given."""
        return self.storages[self.variables[variable].storage].operation

    def mutated_by(self, operations: Iterable[int]) -> set[int]:
        """The storages that operations change in place."""
        return {storage for op in operations for storage in self.operations[op].mutated}


def record(trace: Trace, loss: str | None = None) -> Record:
    """Runs one training step of `trace` on fake tensors, back from one of LOSSES, the usual one if not given.

    Raises ValueError where there is nothing to go back from, UnsupportedError where this is no loss of the model.
    """
    values = {} if trace.run is None else trace.run.values
    true = {v: int(value.count_nonzero()) for v, value in values.items() if value.dtype is torch.bool}
    with without_device(trace) as here, Layouts():
        return _Recorder(here, true, loss).run()


@contextlib.contextmanager
def without_device(trace: Trace) -> Iterator[Trace]:
    """Tensors in here have no data. Gives a trace that can be run there and gone back through: where its GPU is not there, one
    of the device that stands for it."""
    if trace.gpu is None:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield trace
        return
    with absent.on(trace.gpu):
        yield absent.as_absent(trace)


def _chosen(asked: str | None, outputs: list[torch.Tensor]) -> str:
    """The loss that was asked for, or the usual one for such outputs."""
    if asked == "model" and taking_gradient(outputs) and not goes_into_numbers(outputs):
        what = "--loss model is for a forward that returns its loss, a number that all else goes into that takes a gradient"
        raise UnsupportedError(what, hint="detach what does not, or leave out --loss")
    return asked or usual_loss(outputs)


class _GoingBack(TorchDispatchMode):
    """Follows every storage allocated while the engine walks back."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.prim.device.default:  # which autograd asks of every gradient, also where nothing else is called
            self.recorder.at_present_node()
            return func(*args)
        if func is torch.ops.aten.index.Tensor:
            args = args[0], rows_at_most(args[1], self.recorder.count)
        if schema(func).is_mutable:
            self.recorder.check_written(written_tensors(func, args, kwargs or {}))
        if self.recorder.sums.are_in_place(func, args):
            self.recorder.at_present_node()
            self.recorder.lives.add_to(args[0])
            return args[0].add_(args[1])
        out = func(*args, **(kwargs or {}))
        self.recorder.at_present_node()
        for tensor in pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.recorder.see(tensor)
        if func is ADD:
            self.recorder.lives.add(args[0], args[1], out)
        return out


class _Found(TorchDispatchMode):
    """Gives kernels whose results depend on values those that they gave when the trace was recorded."""

    def __init__(self, found: Sequence[tuple[str, Any]]) -> None:
        super().__init__()
        self.found = iter(found)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if BY_VALUES.isdisjoint(func.tags):
            return func(*args, **(kwargs or {}))
        name, given = next(self.found, ("", None))
        return pytree.tree_map(_made, given) if name == str(func) else func(*args, **(kwargs or {}))


def _made(value: Any) -> Any:
    if not isinstance(value, Like):
        return value
    return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=value.device)


class _Casts(TorchDispatchMode):
    """Notes which leaves with gradient are copied as autocast copies what it keeps, and the copies."""

    def __init__(self, copies: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self.copies = copies

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        is_copy = func is torch.ops.aten._to_copy.default and args[0].dtype is torch.float32 and out.dtype.itemsize == 2
        if is_copy and args[0].is_leaf and args[0].requires_grad:
            self.copies.append((args[0], out))
        return out


def _shared_casts(rows: Sequence[OperationRecord]) -> int:
    """The bytes of all copies that autocast keeps, where any is needed twice: who shares a copy also shares the sum of its
    gradients, in its type."""
    casts = [cast for row in rows for cast in row.casts]
    kept = {cast.leaf: cast.nbytes for cast in casts}
    return sum(kept.values()) if len(kept) < len(casts) else 0


@dataclass
class _Recorder:
    trace: Trace
    true: Mapping[int, int]  # by variable: in how many places a mask is True, where that is known
    loss: str | None = None
    tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    storages: list[Storage] = field(default_factory=list)
    of_storage: dict[int, int] = field(default_factory=dict)  # _cdata -> storage id; storages are kept alive by `tensors`
    of_variable: dict[int, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)  # _cdata of masks -> in how many places they are True
    starts: list[int] = field(default_factory=list)
    reached: dict[int, int] = field(default_factory=dict)  # operation -> the number of the first of its autograd nodes
    gradient_strides: dict[int, tuple[int, ...]] = field(default_factory=dict)
    same: dict[int, list[int]] = field(default_factory=dict)  # by the id of a tensor: the variables that it is
    leaves: dict[int, int] = field(default_factory=dict)  # ids of the tensors with gradient that forward is given -> variables
    end: int = LEAF_SEQUENCE  # the number of the next autograd node, once the loss has got its own
    step: int = 0
    single_number_bytes: int = 0
    sums: Sums = field(init=False)
    saved: dict[int, Any] = field(default_factory=dict)  # _cdata -> reference to a storage of no variable, while it lives
    lives: Lives = field(init=False)

    def run(self) -> Record:
        self.sums, self.lives = Sums(self.trace.accelerator or "cpu"), Lives(lambda: self.step)
        for variable in self.trace.variables:
            if variable.origin not in (Origin.RESULT, Origin.SIZE):
                self._given(variable)
        self.starts = [next_sequence_number()]
        rows = [self._operation(op) for op in self.trace.operations]
        check_devices(self.trace, [v.id in self.tensors and self.tensors[v.id].requires_grad for v in self.trace.variables])
        nodes = [self._sequence_numbers(op, row.mutated) for op, row in zip(self.trace.operations, rows, strict=True)]
        self._backward()
        undoing = self.lives.undoing()
        return Record(
            storages=tuple(self.storages),
            operations=tuple(self._row(rows[op.id], op, nodes[op.id], undoing.get(op.id)) for op in self.trace.operations),
            variables=tuple(self._variable(v.id) for v in self.trace.variables),
            gradients=tuple(self.lives.gradients()),
            shared_cast_bytes=_shared_casts(rows),
            loss=self.loss or LOSSES[0],
            single_number_bytes=self.single_number_bytes,
        )

    def _row(self, row: OperationRecord, op: Operation, nodes: dict[int, int], undoing: Undoing | None) -> OperationRecord:
        """The row of an operation with what the way back shows. Where that does not come, autograd saves for nobody."""
        if op.id in self.reached:
            row = replace(row, backward=True, stop=nodes.get(self.reached[op.id]))
            if undoing is None:
                return row
            asked = tuple((self.of_storage.get(key), nbytes) for key, nbytes in undoing.asked)
            most, added = undoing.most_bytes, undoing.added_bytes
            return replace(row, gradient_bytes=undoing.first_bytes, most_gradient_bytes=most, added_bytes=added, asked=asked)
        casts = tuple(replace(cast, saved=False) for cast in row.casts)
        row = replace(row, lost=row.saved, lost_bytes=row.phantoms, casts=casts)
        computes = bool(row.mutated) or any(self.storages[self.of_variable[v]].operation == op.id for v in op.made)
        unsaved = computes and not is_opaque(op) and bool(row.saved or row.phantoms)
        return replace(row, saved=(), phantoms=(), unsaved=True) if unsaved else row

    def _variable(self, variable: int) -> VariableRecord:
        tensor = self.tensors.get(variable)
        if tensor is None:  # a size
            return VariableRecord(NO_MEMORY, False, None, None, variable)
        gradient = self.gradient_strides.get(variable)
        first = self.same[id(tensor)][0]
        return VariableRecord(self.of_variable[variable], tensor.requires_grad, tuple(tensor.stride()), gradient, first)

    def _given(self, variable: Variable) -> None:
        tensor = torch.empty_strided(variable.shape, variable.stride, dtype=variable.dtype, device=variable.device)
        tensor.requires_grad_(variable.requires_grad)
        if variable.requires_grad and variable.origin is not Origin.INPUT:
            tensor.grad = torch.zeros_like(tensor)  # so that gradients of leaves are accumulated in place, as in a long run
        self.leaves |= {id(tensor): variable.id} if variable.requires_grad else {}
        self._adopt(
            variable.id, tensor, tensor.untyped_storage().nbytes(), None
        )  # an input is another one in every step, and has none before

    def _adopt(self, variable: int, tensor: torch.Tensor, nbytes: int, operation: int | None) -> None:
        key = storage_key(tensor)
        if key not in self.of_storage:
            self.of_storage[key] = len(self.storages)
            self.storages.append(Storage(len(self.storages), nbytes, operation))
        self.tensors[variable] = tensor
        if variable in self.true:
            self.counts[key] = self.true[variable]
        self.of_variable[variable] = self.of_storage[key]

    def _operation(self, op: Operation) -> OperationRecord:
        """Runs an operation, and notes what that shows of it."""
        packed: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            packed.append(tensor.detach())
            return packed[-1]

        def unpack(tensor: torch.Tensor) -> torch.Tensor:
            self.at_present_node()  # that may compute nothing: where the gradient that it gets is undefined
            self.lives.ask(tensor.untyped_storage())
            return tensor

        args = substitute(op.args, self.tensors)
        kwargs = substitute(dict(op.kwargs), self.tensors)
        check_trained(op, args)
        given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        versions = [version(t) for t in given]
        saving = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
        found = () if self.trace.run is None else self.trace.run.found.get(op.id, ())
        # Modes cost time, those that would see nothing too.
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        casts = _Casts(copies) if op.autocast else contextlib.nullcontext()
        known = _Found(found) if found else contextlib.nullcontext()
        named = without_data(lambda: op)
        with torch.set_grad_enabled(op.grad_enabled), autocasting(op.autocast), casts, known, saving, named:
            out = op.target(*args, **kwargs)
        self.starts.append(next_sequence_number())
        for variable, tensor in zip(op.results, out if op.many else (out,), strict=True):
            if variable is not None:
                self._adopt(variable, tensor, storage_bytes(op, args, tensor), op.id)
        mutated = {self.of_storage[storage_key(t)] for t, v in zip(given, versions, strict=True) if version(t) != v}
        mutated |= {self.of_storage[storage_key(t)] for t in written_arguments(op, args, kwargs)}
        mutated |= self._given_back(op)
        saved, phantoms = self._classify(op, packed)
        kept = self._casts(copies, {storage_key(t) for t in packed}) if copies else ()
        copies.clear()
        packed.clear()  # what is saved holds on to `pack`, and would by this to all that is saved with it
        if is_opaque(op) and self.trace.gpu is None:  # where that is not there, a rule has said it
            with autocasting(op.autocast):
                phantoms = real_phantoms(op, args, kwargs)
        return OperationRecord(saved, phantoms, tuple(sorted(mutated)), is_random(op), casts=kept)

    def _casts(self, copies: list[tuple[torch.Tensor, torch.Tensor]], saved: set[int]) -> tuple[Cast, ...]:
        """Autocast's copies of what forward is given, by storages that autograd has saved; without those that forward makes."""
        made = [(leaf, copy.untyped_storage().nbytes(), storage_key(copy)) for leaf, copy in copies if id(leaf) in self.leaves]
        own = [(self.leaves[id(leaf)], n, key) for leaf, n, key in made if key not in self.of_storage]
        return tuple(Cast(leaf, nbytes, key in saved) for leaf, nbytes, key in own)

    def _given_back(self, op: Operation) -> set[int]:
        """What an autograd.Function returns as it was given, of several things that operations have made: no view of one
        tensor, but as if it had changed that."""
        given = {self.of_variable[v] for v in op.reads} if function_call(op.target) is not None else set()
        made = {s for s in given if s != NO_MEMORY and self.storages[s].operation is not None}
        return made.intersection(self.of_variable[v] for v in op.made) if len(made) > 1 else set()

    def _classify(self, op: Operation, packed: list[torch.Tensor]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        saved, phantoms = [], {}
        for tensor in packed:
            key = storage_key(tensor)
            if key in self.of_storage:
                saved.append(self.of_storage[key])
            else:
                phantoms[key] = tensor.untyped_storage().nbytes()
                released = functools.partial(self._released, key, phantoms[key], op.id)
                self.saved[key] = weakref.ref(tensor.untyped_storage(), released)
        return tuple(dict.fromkeys(saved)), tuple(phantoms.values())

    def _released(self, key: int, nbytes: int, op: int, _: Any) -> None:
        self.saved.pop(key, None)
        self.lives.release(nbytes, op)

    def _sequence_numbers(self, op: Operation, mutated: tuple[int, ...]) -> dict[int, int]:
        """The sequence number of an autograd node -> the variable that has it, of an operation's results and what it changes.

        Writing into a view gives its base another node, not the view.
        """
        changed = [v.id for v in self.trace.results() if self.of_variable[v.id] in mutated] if mutated else []
        numbers: dict[int, int] = {}
        for variable in (*op.made, *changed):
            node = _grad_fn(self.tensors[variable])
            if node is not None:
                numbers.setdefault(sequence_number(node), variable)
        return numbers

    # ------------------------------------------------------------------ the backward pass

    def _backward(self) -> None:
        outputs = [self.tensors[ref.variable] for ref in self.trace.outputs if isinstance(ref, Ref)]
        self.loss = _chosen(self.loss, outputs)
        self.step = len(self.trace.operations)
        forward_only = dict(self.of_storage)
        kept_forward = list(self.tensors.values())
        handles = list(self._watched())
        with _GoingBack(self):
            loss = example_loss(outputs, self.loss)
            self.end = next_sequence_number()
            self.of_storage = forward_only
            if not self.trace.accelerator:
                self.single_number_bytes = single_number_bytes(loss, self._is_followed)
            with without_data(self._undone):
                loss.backward()
            del loss
        for handle in handles:
            handle.remove()
        del kept_forward
        self._keep_what_stays()

    def _keep_what_stays(self) -> None:
        """The gradients of inputs, and what a user's own backward holds on to, live from where they come until the step ends:
        as if what is undone last read them."""
        passing = (Origin.INPUT, Origin.RESULT, Origin.SIZE)  # there are others in each step
        lasting = [self.tensors[v.id] for v in self.trace.variables if v.origin not in passing]
        grads = [t.grad for t in lasting if t.is_leaf and t.grad is not None]
        self.lives.stay_but(grads, min(self.reached, default=None))

    def _is_followed(self, tensor: torch.Tensor) -> bool:
        key = storage_key(tensor)
        return key in self.of_storage or key in self.saved

    def _watched(self) -> Iterator[Any]:
        """Notes the gradients that come to results, with their strides, and to parameters."""
        for variable, tensor in self.tensors.items():
            self.same.setdefault(id(tensor), []).append(variable)
        for variables in self.same.values():
            tensor = self.tensors[variables[0]]
            leaf = self.trace.variables[variables[0]].origin is not Origin.RESULT
            if tensor.requires_grad and (leaf or _grad_fn(tensor) is not None):
                yield tensor.register_hook(functools.partial(self._note, variables))

    def _note(self, variables: Sequence[int], grad: torch.Tensor | None) -> None:
        if grad is None:
            return
        for variable in variables:
            if self.trace.variables[variable].origin is Origin.RESULT:
                self.gradient_strides[variable] = tuple(grad.stride())
            self.lives.belongs(grad, variable)

    def at_present_node(self) -> None:
        """Notes which operation the engine goes back through at this moment, if it does."""
        node = current_node()
        if node is not None:
            self.at_node(sequence_number(node))

    def at_node(self, sequence: int) -> None:
        if sequence >= self.end:  # a leaf's, or of a graph that a Function's own backward builds and goes back through
            return
        if sequence >= self.starts[-1]:
            self.step = len(self.trace.operations)
            return
        self.step = bisect.bisect_right(self.starts, sequence) - 1
        self.reached.setdefault(self.step, sequence)

    def _undone(self) -> Operation:
        """The operation that the engine goes back through, or the last one."""
        return self.trace.operations[min(self.step, len(self.trace.operations) - 1)]

    def check_written(self, tensors: Iterable[torch.Tensor]) -> None:
        """Refuses a backward of the user's own that writes into what it has saved, or is given: others read that."""
        self.at_present_node()
        for key in (storage_key(t) for t in tensors):
            born = self.lives.alive[key].born if key in self.lives.alive else self.step
            check_backward(self._undone(), key in self.of_storage or key in self.saved or born != self.step)

    def count(self, mask: torch.Tensor) -> int | None:
        """In how many places a mask is True, if that is known."""
        return self.counts.get(storage_key(mask))

    def see(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided:
            op = self._undone()
            raise UnsupportedError(
                f"{called(op.target)} has a sparse gradient, which is not supported", where=location(op.source)
            )
        storage = tensor.untyped_storage()
        key = key_of_storage(storage)
        if key in self.of_storage or key in self.saved or key in self.lives.alive or not storage.nbytes():
            return
        self.lives.begin(storage)


def _grad_fn(tensor: torch.Tensor) -> Any:
    """A tensor's autograd node; None for a view that an in-place operation on its base has made unusable."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None
