"""A model that is there already, rather than one that the command line names: what `remat_codegen.plan` is given.

It is planned on a copy, which shares its parameters and nothing else, so that the model stays as it is: tracing leaves tensors
without data in what a model caches.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from remat_codegen.ask.inputs import Inputs
from remat_codegen.ask.target import Loaded, Target, TargetKind, check_module, find_inputs, place_of, placed, read_source
from remat_codegen.errors import TargetError
from remat_codegen.profile.devices import Device
from remat_codegen.trace.attributes import computed_attributes

INSTANCE_METHOD = "InstanceMethod"  # the class of parts.py, of which each generated file has its own
LEFT_OUT = "left_out"  # its function that says that a model with a plan does not checkpoint
PROVIDE = "give them as a tuple of arguments, a dict of keyword arguments, one tensor, or a text like 'x=float32[2,3]'"


def given_target(model: torch.nn.Module, inputs: Any, device: str, seed: int) -> Target:
    """A copy of a model with its inputs, ready to be traced on a device. Raises TargetError on whatever is wrong with them.

    A model in training mode keeps the modes of its modules, as they are trained; of another all modules are in training mode.
    """
    if not isinstance(model, torch.nn.Module):
        raise TargetError(f"the model is a {type(model).__name__}, not a torch.nn.Module")
    name = type(model).__name__
    check_module(model, name)
    _check_original(model)
    where = place_of(device)
    loaded = _file_of(type(model))
    given = _inputs(inputs, loaded, model, seed)
    copied = _copy(model, shared=isinstance(where, Device) or _same(where, device_of(model)))
    copied = without_plan(copied if copied.training else copied.train())
    path, source = loaded.path, _source(type(model), loaded)
    found = Target(spec_of(model), path, source, name, TargetKind.INSTANCE, copied, given.args, given.kwargs)
    return placed(found, where)


def _check_original(model: torch.nn.Module) -> None:
    """Raises TargetError for a model whose class stands in a generated file: its steps are planned already."""
    home = sys.modules.get(type(model).__module__)
    if home is not None and callable(getattr(home, "rematerialize", None)) and hasattr(home, "PLANNED_PEAK_BYTES"):
        what = f"is of a generated file already, {Path(getattr(home, '__file__', None) or home.__name__).name}"
        raise TargetError(what, where=type(model).__name__, hint="plan the model that the file was made from")


def without_plan(model: torch.nn.Module) -> torch.nn.Module:
    """The same model as it was before a generated file's `rematerialize(model)` gave it methods that keep to a plan."""
    for module in model.modules():
        attributes = vars(module)
        for name, method in list(attributes.items()):
            while type(method).__name__ == INSTANCE_METHOD and hasattr(method, "before"):
                method = method.before
                attributes[name] = method
                if method is None:
                    del attributes[name]
            if getattr(method, "__name__", "") == LEFT_OUT:
                del attributes[name]
    return model


def device_of(model: torch.nn.Module) -> torch.device:
    """Where a model lies: the device of its first parameter or buffer."""
    return next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))


def _same(one: torch.device, other: torch.device) -> bool:
    return (one.type, one.index or 0) == (other.type, other.index or 0)


def spec_of(model: torch.nn.Module) -> str:
    """How a header names a model that no command builds: by its class. A script's is named by the file, not by __main__."""
    kind = type(model)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    place = Path(file).name if kind.__module__ == "__main__" and file is not None else kind.__module__
    return f"{place}:{kind.__name__}"


def _file_of(kind: type) -> Loaded:
    """The module that a class stands in, and its file. In a notebook there is none: the module's name stands for it."""
    module = sys.modules.get(kind.__module__) or ModuleType(kind.__module__)
    file = getattr(module, "__file__", None)
    return Loaded(Path(kind.__module__) if file is None else Path(file).resolve(), module)


def _source(kind: type, loaded: Loaded) -> str:
    """The text of a class's file, else that of the class, else those of its methods: the header has a digest of it."""
    if loaded.path.suffix == ".py" and loaded.path.is_file():
        return read_source(loaded.path)
    return _text_of(kind) or "".join(_text_of(f) for f in vars(kind).values() if inspect.isfunction(f))


def _text_of(thing: Any) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""


def _copy(model: torch.nn.Module, shared: bool) -> torch.nn.Module:
    """A copy of a model. One on another device has parameters of its own, since they are moved there."""
    known: dict[int, Any] = dict(computed_attributes(model))
    known |= {id(p): p for p in model.parameters()} if shared else {}
    try:
        return copy.deepcopy(model, known)
    except Exception as error:  # whatever the objects raise that the model holds
        what = f"cannot be copied, which planning needs: {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        raise TargetError(what, where=type(model).__name__) from error


def _inputs(value: Any, loaded: Loaded, model: torch.nn.Module, seed: int) -> Inputs:
    """What forward is called with: as it is given, drawn as a text says, or what `example_inputs()` returns."""
    if value is None:
        if not any(callable(getattr(holder, "example_inputs", None)) for holder in (model, loaded.module)):
            raise TargetError("has no example_inputs()", where=type(model).__name__, hint=PROVIDE)
        return find_inputs(None, loaded, model, seed)
    if isinstance(value, str):
        return find_inputs(value, loaded, model, seed)
    if isinstance(value, torch.Tensor):
        return Inputs((value,), {})
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):  # those of tokenizers are no dicts
        return Inputs((), dict(value))
    if type(value) is tuple:
        return Inputs(value, {})
    kind = "dicts whose keys are not all names" if isinstance(value, Mapping) else f"of type {type(value).__name__}"
    raise TargetError(f"inputs cannot be {kind}", hint=PROVIDE)
