"""The one room for what PyTorch does not promise: private names, and public ones whose meaning moves between versions.

All other modules take such names from here, and `NAMES` lists them: what each is for, and what happens without it. A version
that lacks one is refused in a sentence, when this module is imported; a newer version than was tried is used with a warning.
What runs where this package is not cannot take them from here: `runtime.py`, which is copied into generated files, uses
`UntypedStorage._cdata`, `Tensor._version`, `torch._neg_view` and `torch._C._current_graph_task_id`; `parts.py`, also
copied, uses these, `Tensor._base`, `Module._modules`, `_parameters` and `_buffers`, `torch._C._current_autograd_node`, a node's
`_sequence_nr`, and the stack of hooks on what autograd saves (`torch._C._autograd`: `_top_`, `_push_` and
`_pop_saved_tensors_default_hooks`); `training.py`, by which a fresh process trains such a file, uses `torch.utils._pytree`.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

import torch

from remat_codegen.errors import VersionError, VersionWarning

OLDEST, NEWEST_TRIED = (2, 11), (2, 15)  # CONTRIBUTING says how a version is tried


@dataclass(frozen=True, slots=True)
class Name:
    """A name of PyTorch's: what it is for, and what happens without it. What is `optional` is None where it is missing."""

    path: str
    purpose: str
    without: str
    optional: bool = False


NAMES: dict[str, Name] = {}


def _version(text: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else NEWEST_TRIED


def check_version(text: str) -> None:
    """Raises VersionError for a PyTorch older than those supported; warns of one newer than those tried."""
    found = _version(text)
    oldest, newest = (".".join(map(str, v)) for v in (OLDEST, NEWEST_TRIED))
    if found < OLDEST:
        what = f"PyTorch {text} is older than {oldest}, the oldest that remat-codegen works with"
        raise VersionError(what, hint=f"install {oldest} or newer")
    if found > NEWEST_TRIED:
        said = f"PyTorch {text} is newer than {newest}, the newest that remat-codegen was tried with"
        warnings.warn(said, VersionWarning, stacklevel=3)


def _missing(name: Name) -> VersionError:
    what = f"PyTorch {torch.__version__} has no {name.path}, {name.purpose}: without it {name.without}"
    newest = ".".join(map(str, NEWEST_TRIED))
    return VersionError(what, hint=f"install PyTorch {newest}, the newest that remat-codegen was tried with")


def _take(path: str, purpose: str, without: str, *, optional: bool = False) -> Any:
    """What a name stands for. Raises VersionError where PyTorch has no such name."""
    name = NAMES[path] = Name(path, purpose, without, optional)
    first, *parts = path.split(".")
    found: Any = importlib.import_module(first)
    for index, part in enumerate(parts):
        try:
            if not hasattr(found, part) and isinstance(found, ModuleType):
                importlib.import_module(".".join([first, *parts[: index + 1]]))
            found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            if optional:
                return None
            raise _missing(name) from error
    return found


def _held(path: str, example: Any, purpose: str, without: str) -> None:
    """The same for what only instances have, such as this `example`."""
    name = NAMES[path] = Name(path, purpose, without)
    if not hasattr(example, path.rpartition(".")[2]):
        raise _missing(name)


check_version(torch.__version__)

# --- structures, modes, tensors without data -------------------------------------------------------------------------------

pytree = _take(
    "torch.utils._pytree", "which flattens nested arguments and results as torch.export does", "no call can be described"
)


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """`pytree.tree_map`, but that a torch.Size in there stays one."""
    return pytree.tree_map(function, tree, is_leaf=lambda thing: isinstance(thing, torch.Size))


TorchDispatchMode = _take(
    "torch.utils._python_dispatch.TorchDispatchMode", "which sees the kernels that run", "nothing can be recorded or proved"
)
disable_current_modes = _take(
    "torch.utils._python_dispatch._disable_current_modes",
    "which computes real values in the middle of a trace",
    "a constant that forward decides by cannot be looked at",
)
FakeTensorMode = _take(
    "torch._subclasses.FakeTensorMode", "under which autograd runs without memory", "no step can be recorded"
)
is_fake = _take("torch._subclasses.fake_tensor.is_fake", "which tells a trace's tensors from the user's", "nothing is refused")
unset_fake_temporarily = _take(
    "torch._subclasses.fake_tensor.unset_fake_temporarily",
    "which runs an operation of unknown needs on real data",
    "what such operations save is not known",
)
DATA_DEPENDENT: tuple[type[Exception], ...] = tuple(
    _take(path, "which is raised where a trace would have to know a value", "the message would be PyTorch's own")
    for path in (
        "torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode",
        "torch._subclasses.fake_tensor.DataDependentOutputException",
        "torch._subclasses.fake_tensor.DynamicOutputShapeException",
    )
)
detect_fake_mode = _take(
    "torch._guards.detect_fake_mode", "which finds the mode that a trace's tensors belong to", "torch.vmap cannot be planned"
)
suggest_memory_format = _take(
    "torch._prims_common.suggest_memory_format",
    "which says how kernels lay out results",
    "channels_last cannot be planned",
)
PythonPrinter = _take("torch.utils._sympy.printers.PythonPrinter", "which writes sizes as Python", "no size may change")

_held("torch.nn.Module._buffers", torch.nn.Module(), "in which modules hold their buffers", "assigned buffers are not noticed")
_held(
    "torch.nn.Module._forward_hooks",
    torch.nn.Module(),
    "in which modules hold their hooks",
    "models with hooks are not told apart",
)


def buffers_of(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """A module's own buffers, by name: the dict that it holds them in."""
    return module._buffers


for _name in ("_forward_pre_hooks", "_forward_hooks"):
    _held(f"torch.nn.Module.{_name}", torch.nn.Module(), "in which modules hold their hooks", "none are seen")


def is_hooked(module: torch.nn.Module) -> bool:
    """Whether hooks of a module fire in the forward pass."""
    return bool(module._forward_pre_hooks or module._forward_hooks)


_held("torch.nn.Module._parameters", torch.nn.Module(), "in which modules hold their parameters", "none can be put elsewhere")


def parameters_of(module: torch.nn.Module) -> dict[str, torch.nn.Parameter | None]:
    """A module's own parameters, by name: the dict that it holds them in."""
    return module._parameters


def has_forward_hooks(module: torch.nn.Module) -> bool:
    """Whether a module has hooks on its forward pass."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


@contextlib.contextmanager
def unchecked_distributions() -> Iterator[None]:
    """torch.distributions take their arguments as they are in here."""
    distribution = torch.distributions.Distribution
    before = distribution._validate_args
    distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        distribution.set_default_validate_args(before)


# --- traces ----------------------------------------------------------------------------------------------------------------

proxy_tensor = _take(
    "torch.fx.experimental.proxy_tensor",
    "which says what node of a trace a tensor comes from",
    "nothing is found there",
)
OpOverload = _take("torch._ops.OpOverload", "the type of operations", "operations cannot be told from Python functions")
_take("torch.ops.aten.add.Tensor._schema", "an operation's signature", "no argument of an operation is known")
_take("torch.ops.aten._assert_tensor_metadata.default", "torch.export's own assertions", "they count as the user's")
_take("torch.ops.aten._to_copy.default", "a cast, as kernels see it", "autocast's copies of parameters are not counted")
_take("torch.compiler.is_compiling", "by which libraries ask whether they are traced", "they compute something else then")
exporting = _take("torch.export._trace", "which copies assigned buffers wrongly, and is kept from it", "they are wrong")
_vmap_ends = _take("torch._C._functorch._vmap_decrement_nesting", "which ends a torch.vmap", "torch.vmap cannot be planned")
functorch_is_active = _take(
    "torch._C._are_functorch_transforms_active", "which says that torch.vmap runs", "a Function in it is not refused"
)
no_torch_function = _take(
    "torch._C.DisableTorchFunction", "which hides what an operation does inside from modes", "Functions are traced in parts"
)
_PLAIN_TENSOR = _take("torch._C.TensorBase", "whose properties are looked at while forward runs", "x.data is not traced")
plain_data, plain_dtype, plain_requires_grad = (vars(_PLAIN_TENSOR)[name] for name in ("data", "dtype", "requires_grad"))
plain_requires_grad_ = _PLAIN_TENSOR.requires_grad_
BackwardHook = _take(
    "torch.nn.modules._functions.BackwardHookFunction",
    "by which modules' hooks run",
    "these are not named",
    optional=True,
)
CheckpointFunction = _take(
    "torch.utils.checkpoint.CheckpointFunction", "reentrant checkpointing", "it is not named in a refusal", optional=True
)

_CHECKPOINTS = {  # by name: what runs around what a model checkpoints; the first from 2.14 on, the other before
    name: _take(f"torch.utils.checkpoint.{name}", "which runs around checkpoints", "they are not priced", optional=True)
    for name in ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
}
_CHECKPOINT_HOLDERS = ("torch.utils.checkpoint", "torch.distributed._composable.checkpoint_activation")


@contextlib.contextmanager
def checkpoint_generator(make: Callable[[Any], Any]) -> Iterator[None]:
    """In here, torch.utils.checkpoint (not reentrant) runs `make` of its generator function around what it is given."""
    known: list[tuple[str, Any]] = [(name, own) for name, own in _CHECKPOINTS.items() if own is not None][:1]
    held = [(m, n, own) for n, own in known for m in map(sys.modules.get, _CHECKPOINT_HOLDERS) if hasattr(m, n)]
    with contextlib.ExitStack() as around:
        for module, name, own in held:
            if inspect.unwrap(getattr(module, name)) is inspect.unwrap(own):  # generated files wrap it
                around.enter_context(mock.patch.object(module, name, make(own)))
        yield


_lazily = _take(
    "torch.fx._lazy_graph_module._use_lazy_graph_module",
    "which puts off writing graphs as code",
    "traces take longer",
    optional=True,
)


def without_code() -> contextlib.AbstractContextManager[None]:
    """In here, traced graphs are written as Python code only when they are run, as few are: a twentieth of a trace's time."""
    return contextlib.nullcontext() if _lazily is None else _lazily(True)


def trace_in_progress() -> Any:
    """What makes the nodes of the trace in progress, None where there is none. Not to be asked for while one is made."""
    mode = proxy_tensor.get_proxy_mode()
    return None if mode is None else mode.tracer


def made_by(tensor: torch.Tensor, tracer: Any) -> torch.fx.Node | None:
    """The node of a trace whose result a tensor is."""
    slot = None if tracer is None else proxy_tensor.get_proxy_slot(tensor, tracer, None)
    return None if slot is None else slot.proxy.node


def recorded_graph(run: Callable[..., Any], module: torch.nn.Module, tensors: list[torch.Tensor]) -> torch.fx.GraphModule:
    """The operations of `run(*tensors)`, which calls `module`, noted while they run for real: what Python asks of a tensor's
    value is answered. Its placeholders are the tensors, in their order."""
    run._orig_mod = module  # type: ignore[attr-defined]  # by which nodes say in what modules they were made
    noting = proxy_tensor.make_fx(run, pre_dispatch=True, record_module_stack=True, _error_on_data_dependent_ops=False)
    with _vmaps_as_exported():
        found: torch.fx.GraphModule = noting(*tensors)
    return found


_FINDS_MODE = "torch._export.utils._maybe_find_pre_dispatch_tf_mode_for_export"
_mode_noting_vmaps = _take(_FINDS_MODE, "which has torch.vmap noted", "one in a recorded run is refused", optional=True)


@contextlib.contextmanager
def _vmaps_as_exported() -> Iterator[None]:
    """Has a torch.vmap be noted as torch.export notes it: from where it begins to where it ends."""

    def mode() -> Any:
        with mock.patch.object(torch.compiler, "is_exporting", lambda: True):
            return _mode_noting_vmaps()

    with mock.patch(_FINDS_MODE, mode) if _mode_noting_vmaps is not None else contextlib.nullcontext():
        yield


ENTERS_AUTOCAST = _take(
    "torch.amp.autocast_mode._enter_autocast", "which begins a cast in a recorded run", "casts inside of forward are not seen"
)
EXITS_AUTOCAST = _take(
    "torch.amp.autocast_mode._exit_autocast", "which ends a cast in a recorded run", "casts inside of forward are not seen"
)
SWITCHES_GRADIENTS = _take(
    "torch._C._set_grad_enabled", "which switches gradients in a recorded run", "no_grad inside of forward is not seen"
)


CALLS_MODULE = _take("torch.nn.Module._call_impl", "which calls a module's forward", "no call of one is known").__code__
HANDS_OVER = _take(
    "torch.overrides.handle_torch_function", "by which a function runs once more, under a mode", "it is found twice"
).__code__


@contextlib.contextmanager
def counted_calls(begins: Callable[[torch.nn.Module], None], ends: Callable[[torch.nn.Module], None]) -> Iterator[None]:
    """In here, `begins` is called with each module before its forward runs, and `ends` after it, also where that raises."""
    hooks = torch.nn.modules.module
    first = hooks.register_module_forward_pre_hook(lambda module, _: begins(module))
    last = hooks.register_module_forward_hook(lambda module, *_: ends(module), always_call=True)
    try:
        yield
    finally:
        first.remove()
        last.remove()


# --- autograd --------------------------------------------------------------------------------------------------------------

_take("torch.UntypedStorage._cdata", "which tells pieces of memory apart", "no view is known to be one")
_take("torch.Tensor._version", "which counts changes in place", "they are not noticed")
_held(
    "torch.autograd.graph.Node._sequence_nr",
    torch.zeros(1, requires_grad=True).exp().grad_fn,
    "which numbers the nodes of autograd",
    "the way back is not known to belong to an operation",
)
next_sequence_number = _take(
    "torch.autograd._get_sequence_nr", "which numbers autograd's nodes", "the way back is not known to belong to an operation"
)
current_node = _take(
    "torch._C._current_autograd_node", "which says where autograd is on its way back", "no gradient's life is known"
)


def storage_key(tensor: torch.Tensor) -> int:
    """A number that tensors share if they share memory, for as long as that memory lives."""
    key: int = tensor.untyped_storage()._cdata
    return key


def key_of_storage(storage: torch.UntypedStorage) -> int:
    """The same of a storage."""
    key: int = storage._cdata
    return key


_tensor_use_count, _storage_use_count = (
    _take(path, "which counts who holds something", "sums of gradients all seem to be new tensors", optional=True)
    for path in ("torch.Tensor._use_count", "torch._C._storage_Use_Count")
)


def reference_counts(tensor: torch.Tensor) -> tuple[int, int] | None:
    """How many hold a tensor, and its memory, the caller and what called it included."""
    if _tensor_use_count is None or _storage_use_count is None:
        return None
    return _tensor_use_count(tensor), _storage_use_count(storage_key(tensor))


def version(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place."""
    return tensor._version


def sequence_number(node: Any) -> int:
    """The number of a node of autograd's: nodes made later have higher ones, leaves the highest."""
    number: int = node._sequence_nr()
    return number


def schema(operation: Any) -> Any:
    """The signature of an operation: `name`, `arguments`, `returns`, `is_mutable`."""
    return operation._schema


def is_compiled(thing: Any) -> bool:
    """Whether torch.compile has made a function, or a module is one that `compile()` was called of, or that it has made."""
    if isinstance(thing, torch.nn.Module):
        return hasattr(thing, "_orig_mod") or getattr(thing, "_compiled_call_impl", None) is not None
    attributes = getattr(thing, "__dict__", {})
    return "_torchdynamo_orig_callable" in attributes and not attributes.get("_torchdynamo_disable")


def is_functorch(target: Any) -> bool:
    """Whether what a trace calls belongs to torch.func."""
    return str(getattr(target, "__module__", "")).startswith("torch._functorch")


def leave_vmap() -> None:
    """Ends the innermost torch.vmap that was begun."""
    _vmap_ends()


# --- attention -------------------------------------------------------------------------------------------------------------

_enabled_kernels = _take(
    "torch.nn.attention._cur_sdpa_kernel_backends", "which says which kernels attention may take", "a choice is not noticed"
)


def attention_kernels() -> tuple[Any, ...]:
    """The kernels that attention may take at this moment (SDPBackend), first choice first."""
    return tuple(_enabled_kernels(with_priority=True))


# --- a device that is not there ---------------------------------------------------------------------------------------------

ABSENT, UNNAMED = "absent", "privateuseone"  # the type of a device that PyTorch leaves to others; before it has a name
_WITHOUT = "nothing can be planned for a GPU that is not there"
_DeviceModule, _DeviceHooks, _DeviceGuard = (
    _take(f"torch.utils.backend_registration.{name}", purpose, _WITHOUT, optional=True)
    for name, purpose in (
        ("_DummyBackendModule", "which stands for the module of a device without data"),
        ("_DummyPrivateUse1Hook", "which says that such a device is there"),
        ("_DummyDeviceGuard", "which autograd asks of it"),
    )
)
_name_device = _take("torch._C._rename_privateuse1_backend", "which names a device", _WITHOUT)
_add_module = _take("torch._register_device_module", "which makes a device's module known", _WITHOUT)
_devices = _take("torch._C._acc", "which makes a device known that Python stands for", _WITHOUT, optional=True)
_excluded = _take("torch._C._ExcludeDispatchKeyGuard", "which leaves autocast out", "a cast would call itself")
_has_kernel = _take(
    "torch._C._dispatch_has_kernel_for_dispatch_key", "which tells what autocast casts", "another version's casts are taken"
)
_Keys = _take("torch._C.DispatchKeySet", "a set of dispatch keys", "a cast would call itself")
_Key = _take("torch._C.DispatchKey", "by which kernels are found", "a cast would call itself")
_others_name = _take(
    "torch._C._get_privateuse1_backend_name", "which tells whether another library has that device", "it would be overwritten"
)


def register_absent() -> None:
    """Makes the device ABSENT known, whose tensors have no data. It is this process's accelerator from then on, as autograd
    asks for one, but not an available one. Raises VersionError where that cannot be done."""
    if None in (_DeviceModule, _DeviceHooks, _DeviceGuard, _devices):
        raise _missing(NAMES["torch._C._acc"])
    if (taken := _others_name()) != UNNAMED:
        what = f"this process has a device of another library, {taken}, beside which none can be planned for that is not there"
        raise VersionError(what, hint="plan in a process that does not import it")

    class Module(_DeviceModule):  # type: ignore[misc, valid-type]
        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.bfloat16, torch.float16]

        def is_available(self) -> bool:
            return False

        def device_count(self) -> int:  # without an index: torch.random.fork_rng asks each for its generator
            return 0

    class Hooks(_DeviceHooks):  # type: ignore[misc, valid-type]
        def is_available(self) -> bool:
            return False

    _name_device(ABSENT)
    _add_module(ABSENT, Module())
    _devices.register_python_privateuseone_hook(Hooks())
    _devices.register_python_privateuseone_device_guard(_DeviceGuard())


_formulas = _take(
    "torch.utils.flop_counter.flop_registry",
    "which counts the floating-point operations of products",
    "no time can be estimated",
    optional=True,
)


def flop_formula(operation: Any) -> Callable[..., int] | None:
    """What counts an operation's floating-point operations, by its arguments and its result (`out_val`); None where it is no
    product. Attention on CPUs, which PyTorch does not list, is as much work as flash attention."""
    if _formulas is None:
        raise _missing(NAMES["torch.utils.flop_counter.flop_registry"])
    packet = operation.overloadpacket
    if operation.namespace == "aten" and "_for_cpu" in packet.__name__:
        packet = getattr(torch.ops.aten, packet.__name__.replace("_for_cpu", ""), packet)
    found: Callable[..., int] | None = _formulas.get(packet)
    return found


_fake_results = _take(
    "torch._subclasses.fake_impls.register_op_impl",
    "which says what an operation gives on tensors without data",
    "no recurrent network can be planned for a GPU that is not there",
    optional=True,
)


def set_fake_result(operation: Any, result: Callable[..., Any]) -> None:
    """Has `result(mode, operation, *args)` say what an operation gives on tensors without data; NotImplemented leaves it to
    PyTorch. Raises VersionError where that cannot be done."""
    if _fake_results is None:
        raise _missing(NAMES["torch._subclasses.fake_impls.register_op_impl"])
    with contextlib.suppress(AssertionError):  # PyTorch has one of its own
        _fake_results(operation)(result)


def autocast_casts(operation: str) -> bool:
    """Whether autocast casts what an operation (`aten::linear`) of CUDA is given, in this version."""
    return bool(_has_kernel(operation, "AutocastCUDA"))


def autocast_excluded() -> Any:
    """A context in which autocast does nothing on the device that was registered, though it stays on."""
    return _excluded(_Keys(_Key.AutocastPrivateUse1))


# --- autograd.Function -----------------------------------------------------------------------------------------------------

_FUNCTION_TYPE = _take("torch.autograd.function.FunctionMeta", "the type of Functions", "a Function's backward is not seen")
_take("torch.autograd.Function._backward_cls", "which `apply` looks up first", "a Function's backward is not seen")
PLAIN_APPLY = torch.autograd.Function.__dict__["apply"]
_ASKED_BY_VMAP = ("setup_context", "vmap", "generate_vmap_rule")
_WATCHED = frozenset({"_backward_cls", "forward", *_ASKED_BY_VMAP})

Applied = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class FunctionCalls:
    """Has `replacement(cls, args, kwargs)` compute what a call of an autograd.Function gives, where it would get a backward.

    `apply` is C++ from PyTorch 2.14 on, and users hold it under other names (`swish = Swish.apply`). But it looks the class's
    `forward` up in the class each time, just after `_backward_cls`: that is where another one is put in its place.
    """

    def __init__(self, replacement: Applied, in_vmap: Callable[[Any], None]) -> None:
        self.replacement, self.in_vmap = replacement, in_vmap
        self.applied: tuple[Any, bool] | None = None  # the class that `apply` has just been called of, and the grad mode
        self.made: Any = None  # the class whose `setup_context` is not to run: its forward did not either
        self.paused = False

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """Replaces them in here. Raises VersionError where this PyTorch calls Functions in another way."""
        usual = type.__getattribute__

        def get(cls: Any, name: str) -> Any:
            found = usual(cls, name)
            return self._looked_up(cls, name, found) if name in _WATCHED and not self.paused else found

        with mock.patch.object(_FUNCTION_TYPE, "__getattribute__", get, create=True):
            self._check()
            yield

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """Functions run as they are in here."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    def _looked_up(self, cls: Any, name: str, found: Any) -> Any:
        if cls.__module__.startswith("torch._"):
            return found
        if name == "_backward_cls":
            self.applied = cls, torch.is_grad_enabled()
        elif name == "forward" and self.applied == (cls, True):
            return self._forward(cls, found)
        elif name == "setup_context" and self.made is cls:
            self.made = None
            return lambda ctx, inputs, output: _mark_constants(ctx, output)
        elif name in _ASKED_BY_VMAP and functorch_is_active():
            self.in_vmap(cls)
        return found

    def _forward(self, cls: Any, usual: Callable[..., Any]) -> Callable[..., Any]:
        """What `apply` calls instead of the class's own forward."""
        self.applied = None
        with self.own():
            apart = cls.setup_context is not torch.autograd.Function.setup_context

        def forward(*given: Any, **kwargs: Any) -> Any:
            args = given if apart else given[1:]
            with _recording_gradients():
                if not any(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
                    with torch.no_grad():  # nothing goes back through it: what it computes is traced
                        return usual(*given, **kwargs)
                result = self.replacement(cls, args, kwargs)
            if apart:
                self.made = cls
            else:
                _mark_constants(given[0], result)
            return result

        return forward

    def _check(self) -> None:
        """Calls a Function of ours, to see whether that is noticed."""
        seen: list[Any] = []

        def noting(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            seen.append(cls)
            return args[0].clone()

        usual, self.replacement = self.replacement, noting
        try:
            _Probe.apply(torch.zeros((), requires_grad=True))
        finally:
            self.replacement = usual
        if not seen:
            raise _missing(NAMES["torch.autograd.Function._backward_cls"])


class _Probe(torch.autograd.Function):
    """Shows whether calls of Functions are seen."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads


@contextlib.contextmanager
def _recording_gradients() -> Iterator[None]:
    """Gradients are recorded in here, and a trace does not show that they were not around it: that is how `apply` works."""
    with no_torch_function():
        torch.set_grad_enabled(True)
    try:
        yield
    finally:
        with no_torch_function():
            torch.set_grad_enabled(False)


def _mark_constants(ctx: Any, results: Any) -> None:
    """Results that got no gradient inside get none outside."""
    results = results if isinstance(results, tuple) else (results,)
    ctx.mark_non_differentiable(*(r for r in results if isinstance(r, torch.Tensor) and not r.requires_grad))


# --- torch.compile, which plans are measured beside ------------------------------------------------------------------------


@contextlib.contextmanager
def compiling_with(*, recompile_limit: int, activation_memory_budget: float) -> Iterator[None]:
    """torch.compile works with such a budget in here, and draws the random numbers that eager PyTorch draws.

    Raises VersionError where this PyTorch knows no such settings. They are looked for only here: to import them takes seconds.
    """
    without = "it cannot be compared with"
    dynamo = _take("torch._dynamo.config", "which bounds how often torch.compile compiles", without)
    functorch = _take("torch._functorch.config", "which holds torch.compile's memory budget", without)
    inductor = _take("torch._inductor.config", "which has torch.compile draw eager PyTorch's random numbers", without)
    budget = functorch.patch(activation_memory_budget=activation_memory_budget)
    with dynamo.patch(recompile_limit=recompile_limit), budget, inductor.patch(fallback_random=True):
        yield
