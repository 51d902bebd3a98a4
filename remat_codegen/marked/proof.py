"""Shows that marks change nothing: a written file is traced with an empty table, and has to do what its model does."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch

from remat_codegen.errors import RematError
from remat_codegen.marked.replays import helper
from remat_codegen.torch_seam import proxy_tensor
from remat_codegen.trace import Trace, trace
from remat_codegen.trace.autograd_functions import function_call
from remat_codegen.trace.frames import only_lines
from remat_codegen.trace.refusals import MARKED
from remat_codegen.trace.state import attributes_of, hooks_of, put_hooks_back, set_attributes


def difference(text: str, module: torch.nn.Module, args: Any, kwargs: Any, original: Trace) -> str | None:
    """What the text of a file does otherwise than the model that it was written for; None where that is nothing.

    Both are traced on the same inputs, without data: each call of an operation has to be the same, with the same arguments.
    The table has to name what is there. `module` is left as it was.
    """
    try:
        acting: list[str] = []
        with _left_as_it_was(module), imported(text) as file, _new_hooks_watched(acting):
            tables = [*file.PLANS.values()] if hasattr(file, "PLANS") else [file.PLAN]
            plans = [dict(table) for table in tables]
            for table in tables:
                table.clear()
            marked = file.rematerialize(module)
            for plan in plans:
                getattr(file, helper(file, "Table"))(marked, plan, [*module.modules()])
            _call_plainly(module, getattr(file, helper(file, "InstanceMethod")))
            with only_lines():
                ours = trace(module, args, kwargs, original.autocast, recorded=original.run is not None)
    except (RematError, ValueError, TypeError, AttributeError, NameError) as error:
        return str(error).partition("\n")[0]
    if acting:
        return f"{acting[0]} gets a hook in forward that does more than look, and parts would run again without it"
    return _first_difference(ours, original, {path: id(m) for path, m in module.named_modules(remove_duplicate=False)})


def _first_difference(ours: Trace, original: Trace, modules: Mapping[str, int]) -> str | None:
    for mine, theirs in zip(ours.operations, original.operations, strict=False):
        if _call(mine) != _call(theirs) or not _in_one_module(mine.module_path, theirs.module_path, modules):
            line = f" ({theirs.source.file}:{theirs.source.line})" if theirs.source is not None else ""
            return f"{theirs.base} is another call{line}"
    if len(ours.operations) != len(original.operations):
        return f"it makes {len(ours.operations)} calls instead of {len(original.operations)}"
    return None if ours.outputs == original.outputs else "it gives something else"


def _in_one_module(ours: str, theirs: str, modules: Mapping[str, int]) -> bool:
    """Whether two paths are those of one module, which may have several. Where a method is bound to its module, as ours are
    here, torch.export may know no more than the end of the path to a module without parameters that the method calls."""
    same = ours in modules and modules[ours] == modules.get(theirs)
    if same or ours == theirs or theirs.endswith(f".{ours}"):
        return True
    this = modules.get(theirs)
    return any(path.endswith(f".{ours}") for path, module in modules.items() if module == this)


def _call(operation: Any) -> tuple[Any, ...]:
    settings = operation.grad_enabled, operation.autocast
    return _meant(operation.target), operation.args, operation.kwargs, operation.results, *settings


def _meant(target: Any) -> Any:
    """What an operation is; of the user's own Functions, of which a file has a copy, the name and what its methods do."""
    call = function_call(target)
    if call is None:
        return target
    methods = {n: inspect.unwrap(getattr(call.function, n)).__code__ for n in ("forward", "setup_context", "backward")}
    does = [(n, code.co_code, code.co_names) for n, code in methods.items()]
    return call.function.__qualname__, does, call.arguments, call.trained


def _call_plainly(module: torch.nn.Module, kind: Any) -> None:
    """Sets the methods that a file runs where it has put objects that call them, for which a trace cannot look."""
    for owner in module.modules():
        for name, method in [(n, v) for n, v in vars(owner).items() if isinstance(v, kind)]:
            while isinstance(method, kind):
                method = method.__wrapped__
            vars(owner)[name] = method


@contextlib.contextmanager
def imported(text: str) -> Iterator[Any]:
    """A file's text as a module, whose functions find their own, as torch.jit.script asks for it."""
    found, file = types.ModuleType(MARKED), f"<{MARKED}>"
    sys.modules[MARKED] = found
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    try:
        exec(compile(text, file, "exec"), vars(found))
        yield found
    finally:
        del sys.modules[MARKED]
        linecache.cache.pop(file, None)


@contextlib.contextmanager
def _new_hooks_watched(acting: list[str]) -> Iterator[None]:
    """Fills `acting` with the modules to which forward gives hooks that do more than look. The step that registers them does
    not know them where it runs parts again; a later one does."""

    def registering(register: Callable[..., Any]) -> Callable[..., Any]:
        def register_watched(module: torch.nn.Module, hook: Callable[..., Any], **how: Any) -> Any:
            ours = str(getattr(hook, "__module__", "")).startswith(("remat_codegen.", "torch."))  # the trace's own
            return register(module, hook if ours else watching(hook), **how)

        return register_watched

    def watching(hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: torch.nn.Module, *given: Any) -> Any:
            before, held = _what_is_there(module), [*vars(module).values()]  # held, so that ids stay their own
            result = hook(module, *given)
            if result is not None or before != _what_is_there(module):
                acting.append(f"a {type(module).__name__}")
            held.clear()
            return result

        return call

    with contextlib.ExitStack() as patched:
        for name in ("register_forward_hook", "register_forward_pre_hook"):
            own = getattr(torch.nn.Module, name)
            patched.enter_context(mock.patch.object(torch.nn.Module, name, registering(own)))
        yield


def _what_is_there(module: torch.nn.Module) -> tuple[int, list[tuple[str, int]]]:
    """What a hook that only looks leaves as it is: how many operations are traced, and what the module holds."""
    mode = proxy_tensor.get_proxy_mode()
    return 0 if mode is None else len(mode.tracer.graph.nodes), [(name, id(value)) for name, value in vars(module).items()]


@contextlib.contextmanager
def _left_as_it_was(module: torch.nn.Module) -> Iterator[None]:
    """Takes back what a file sets on the modules that it takes over, what forward writes into their dicts and lists, and the
    hooks of a forward pass that failed."""
    before, hooks = [(m, dict(vars(m))) for m in module.modules()], hooks_of(module)
    containers = {name: value for name, value in attributes_of(module).items() if isinstance(value, (dict, list))}
    try:
        yield
    finally:
        for owner, attributes in before:
            vars(owner).clear()
            vars(owner).update(attributes)
        set_attributes(module, containers)
        put_hooks_back(hooks)
