"""The model that the user names, and what it is called with: `model.py:GPT2`, `--init`, `--inputs`.

    target = "file.py:Name" | "package.module:Name"
    Name   = a class of modules | a function that returns a module | a module

The user's code runs here, so whatever it raises becomes one line that names their file and line.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib
import importlib.util
import inspect
import linecache
import os
import re
import sys
import sysconfig
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from remat_codegen.ask.drawing import quick_draws
from remat_codegen.ask.inputs import CACHE, Inputs, as_inputs, make_inputs, parse_init
from remat_codegen.errors import TargetError
from remat_codegen.profile.devices import Device, find, is_name
from remat_codegen.torch_seam import pytree
from remat_codegen.trace import absent

FORM = "a target is written like model.py:Name or package.module:Name"
MODULES = "name a class of modules, a function that returns one, or a module"
PROVIDE = "define example_inputs() beside the model, or give --inputs like 'x=float32[2,3,224,224]'"

# What classes beside models are made from.
NO_MODELS = {"object", "Enum", "IntEnum", "StrEnum", "Flag", "NamedTuple", "TypedDict", "Protocol", "ABC", "Exception"}
_PLACE = re.compile(r"[^\[\];=<>\"']+:[^\W\d]\w*")


class TargetKind(StrEnum):
    """What the target's name stands for."""

    CLASS = "class"
    FUNCTION = "function"
    INSTANCE = "instance"


@dataclass(frozen=True, slots=True)
class Target:
    """A model that is ready to be traced: in training mode, on its device, with inputs beside it.

    `path` and `source` are the file that was named, `name` what was named in it; `init_text` is `--init` as it was written.
    `without_cache` says that the inputs have use_cache=False because training needs no cache, though the model makes one.
    `defaults` are those of forward's arguments, as runtime.told says them before it has run: what forward does not change.
    """

    spec: str
    path: Path
    source: str
    name: str
    kind: TargetKind
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    init_text: str = ""
    without_cache: bool = False
    defaults: Mapping[str, str] = field(default_factory=dict)

    @property
    def class_name(self) -> str:
        """The class of the model, which may have another name than the target."""
        return type(self.module).__name__

    @property
    def label(self) -> str:
        """The target without the folder it was found in: the same on every machine."""
        return f"{self.path.name}:{self.name}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file of the user's that was imported."""

    path: Path
    module: ModuleType


def load_target(spec: str, *, init: str = "", inputs: str | None = None, device: str = "cpu", seed: int = 0) -> Target:
    """Imports, constructs and feeds the model that `spec` names. Raises TargetError, in one line, on whatever is wrong with it.

    The generator is seeded before the import, the construction and the inputs, so that the same seed gives the same model.
    """
    place, name = split_spec(spec)
    args, kwargs = parse_init(init)
    where = place_of(device)
    torch.manual_seed(seed)
    with _importing_from(place):
        loaded = _load(place)
        found = _find(loaded, name)
        torch.manual_seed(seed)
        module, kind = _built(loaded, name, found, args, kwargs, isinstance(where, Device))
        torch.manual_seed(seed)
        given = find_inputs(inputs, loaded, module, seed)
    found = Target(
        spec, loaded.path, read_source(loaded.path), name, kind, module.train(), given.args, given.kwargs, init.strip()
    )
    return placed(found, where)


def placed(target: Target, where: torch.device | Device) -> Target:
    """The target with its module and its inputs on a device, and checked. Raises TargetError where they do not fit."""
    if isinstance(where, Device):
        module, (args, kwargs) = absent.moved(target.module, (target.args, target.kwargs), where)
        cached = Inputs(args, kwargs)
    else:
        module = _moved(target.module, where, target.name)
        cached = Inputs(target.args, target.kwargs).to(where)
    given = _without_cache(module, cached)
    _check_trainable(module, given, target.name)
    _check_call(module, given, target.name)
    return replace(target, module=module, args=given.args, kwargs=given.kwargs, without_cache=given is not cached)


def split_spec(spec: str) -> tuple[str, str]:
    """`model.py:GPT2` as its file (or module) and its name. Raises TargetError where it has no such form."""
    place, _, name = spec.rpartition(":")
    if not place and spec.endswith(".py"):
        raise TargetError("names no model", where=spec, hint=f"write {spec}:{_models_in(Path(spec))}")
    if not place or not name.isidentifier():
        raise TargetError(f"cannot read the target {spec!r}", hint=FORM)
    return place, name


def _models_in(path: Path) -> str:
    """What stands for the name of a class in a file, and which may be meant; read, not imported."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return "Name"
    classes = [(n.name, {ast.unparse(b).rpartition(".")[2] for b in n.bases}) for n in tree.body if isinstance(n, ast.ClassDef)]
    names = [name for name, bases in classes if bases - NO_MODELS]
    return names[0] if len(names) == 1 else f"Name, where Name is one of {', '.join(names)}" if names else "Name"


def place_of(text: str) -> torch.device | Device:
    """The device of that name: one that is here, or a GPU of the table that is not. Raises TargetError where there is none."""
    return find(text) if is_name(text) else find_device(text)


def find_device(text: str) -> torch.device:
    """A device of PyTorch's. Raises TargetError where it is not here."""
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise TargetError(f"unknown device {text!r}", where="--device", hint="write cpu, cuda or cuda:1") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        hint = f"the last one is cuda:{count - 1}" if count else "write cpu, or install a PyTorch for CUDA where there is a GPU"
        raise TargetError(f"{text!r} is not there: this PyTorch sees {count} CUDA devices", where="--device", hint=hint)
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and torch.version.hip is not None):
        kind = "ROCm" if device.type == "cuda" else device.type
        raise TargetError(f"devices of type {kind!r} are not supported", where="--device", hint="write cpu or cuda (NVIDIA)")
    return device


# --- importing -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _importing_from(place: str) -> Iterator[None]:
    """Imports find a file's siblings as `python file.py` would, and packages in the working folder as `python -m` would."""
    folder = str(Path(place).resolve().parent) if place.endswith(".py") else os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _load(place: str) -> Loaded:
    return _load_file(place) if place.endswith(".py") else _load_package(place)


def _load_file(place: str) -> Loaded:
    path = Path(place).resolve()
    if not path.is_file():
        raise TargetError("is a folder" if path.is_dir() else "no such file", where=place, hint=_close_files(path))
    name = _free_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    loader, module = spec.loader, importlib.util.module_from_spec(spec)
    linecache.checkcache(str(path))
    sys.modules[name] = module  # before it runs: dataclasses, pickle and inspect look a class's module up here
    try:
        _run_import(place, path, lambda: loader.exec_module(module))
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return Loaded(path, module)


def _free_name(path: Path) -> str:
    """The file's stem, as if it were imported by a sibling, unless another module has that name."""
    there = sys.modules.get(path.stem)
    unused = there is None and path.stem not in sys.stdlib_module_names
    if unused or _file_of(there) == path:
        return path.stem
    return f"_target_{path.stem}"


def _close_files(path: Path) -> str | None:
    near = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
    return _did_you_mean(path.name, near)


def _load_package(place: str) -> Loaded:
    if not all(part.isidentifier() for part in place.split(".")):
        raise TargetError(f"{place!r} is neither a Python file nor a module's name", hint=FORM)
    importlib.invalidate_caches()
    module = _run_import(place, None, lambda: importlib.import_module(place))
    path = _file_of(module)
    if path is None or path.suffix != ".py":
        raise TargetError("is not written in Python", where=place, hint="name a .py file that makes the model")
    return Loaded(path, module)


def _file_of(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).resolve()


def _run_import(place: str, path: Path | None, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except ModuleNotFoundError as error:
        if path is None and error.name is not None and f"{place}.".startswith(f"{error.name}."):
            raise TargetError(f"no module named {error.name!r}", where=place, hint="run this in the folder it is in") from error
        raise _users_error("cannot be imported", place, error) from error
    except ImportError as error:
        hint = "give it as package.module:Name" if "relative import" in str(error) else None
        raise _users_error("cannot be imported", place, error, hint) from error
    except (Exception, SystemExit) as error:
        raise _users_error("cannot be imported", place, error) from error


def read_source(path: Path) -> str:
    """The text of a Python file, in the encoding that it names. Raises TargetError, naming the file."""
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as error:  # it was imported a moment ago
        raise TargetError(f"cannot be read: {error}", where=str(path)) from error


# --- the user's errors -----------------------------------------------------------------------------------------------------


def _users_error(what: str, place: str, error: BaseException, hint: str | None = None) -> TargetError:
    """The user's own error: its type, its message and their line."""
    line = _users_line(error)
    return TargetError(f"{what}: {_described(error)}", where=line or place.rpartition("/")[2], hint=hint)


def _described(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({'' if error.code is None else error.code!r})"
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first[:300]}" if first else type(error).__name__


def _users_line(error: BaseException) -> str | None:
    """The innermost line of the user's own files that an error came through, as file.py:12."""
    if isinstance(error, SyntaxError) and error.filename is not None and error.lineno is not None:
        return f"{Path(error.filename).name}:{error.lineno}"
    found, frame = None, error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if not _is_library(file):
            found = f"{Path(file).name}:{frame.tb_lineno}"
        frame = frame.tb_next
    return found


def _is_library(file: str) -> bool:
    own = str(Path(__file__).parent.parent) + os.sep
    return file.startswith(("<", own, sysconfig.get_path("stdlib"))) or "site-packages" in file


def _did_you_mean(name: str, candidates: list[str]) -> str | None:
    close = difflib.get_close_matches(name, candidates, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else None


# --- the model -------------------------------------------------------------------------------------------------------------


def _find(loaded: Loaded, name: str) -> Any:
    try:
        return getattr(loaded.module, name)
    except AttributeError:
        names = [n for n in vars(loaded.module) if not n.startswith("_")]
        lower = {n.lower(): n for n in names}
        hint = f"did you mean {lower[name.lower()]}?" if name.lower() in lower else _did_you_mean(name, names)
        raise TargetError(f"has no {name!r}", where=loaded.path.name, hint=hint) from None


def _built(
    loaded: Loaded, name: str, found: Any, args: tuple[Any, ...], kwargs: dict[str, Any], absent: bool
) -> tuple[torch.nn.Module, TargetKind]:
    """The model; without memory for its parameters where it is for a GPU that is absent, and can be built so."""
    if absent and not isinstance(found, torch.nn.Module):
        state = torch.random.get_rng_state()
        with contextlib.suppress(TargetError), torch.device("meta"):
            module, kind = _build(loaded, name, found, args, kwargs)
            if not any(isinstance(v, torch.Tensor) and v.is_meta for m in module.modules() for v in vars(m).values()):
                return module, kind
        torch.random.set_rng_state(state)
    return _build(loaded, name, found, args, kwargs)


def _build(
    loaded: Loaded, name: str, found: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.nn.Module, TargetKind]:
    where = f"{loaded.path.name}:{name}"
    if isinstance(found, torch.nn.Module):
        if args or kwargs:
            hint = "leave out --init, or name what makes it"
            raise TargetError(f"{where} is a module already and takes no arguments", where="--init", hint=hint)
        return check_module(found, where), TargetKind.INSTANCE
    is_class = isinstance(found, type)
    if is_class and not issubclass(found, torch.nn.Module):
        raise TargetError("is a class, but not one of torch.nn.Module", where=where, hint=MODULES)
    if not is_class and not (inspect.isroutine(found) or callable(found)):
        raise TargetError(f"is {type(found).__name__}, not a torch.nn.Module", where=where, hint=MODULES)
    _check_arguments(found, args, kwargs, where)
    try:
        with quick_draws():
            made = found(*args, **kwargs)
    except (Exception, SystemExit) as error:
        raise _users_error(f"{name}() fails", where, error) from error
    if not isinstance(made, torch.nn.Module):
        what = f"returned {type(made).__name__}, not a torch.nn.Module"
        raise TargetError(what, where=f"{where}()", hint="return the model alone")
    return check_module(made, where), TargetKind.CLASS if is_class else TargetKind.FUNCTION


def check_module(module: torch.nn.Module, where: str) -> torch.nn.Module:
    for name, inner in module.named_modules():
        if isinstance(inner, torch.jit.ScriptModule):
            what = f"{f'{name} of it ' if name else ''}is a TorchScript module, which has no Python source"
            raise TargetError(what, where=where, hint="take the module that was scripted")
    lazy = (UninitializedParameter, UninitializedBuffer)
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(tensor, lazy):
            raise TargetError(
                f"{name} has no shape before the first call",
                where=where,
                hint="name a function that returns the module called once",
            )
    return module


def _check_arguments(found: Any, args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> None:
    """What --init says must fit before the constructor runs: then the error is ours, and names the option."""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        unknown = [k for k in kwargs if k not in signature.parameters]
        hint = (
            _did_you_mean(unknown[0], list(signature.parameters)) if unknown else f"it is {where}{_plain_signature(signature)}"
        )
        raise TargetError(f"{where}: {error}", where="--init", hint=hint) from None


def _plain_signature(signature: inspect.Signature) -> str:
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def check_has_data(module: torch.nn.Module, name: str) -> None:
    """Raises TargetError for a model with parameters or buffers on the meta device."""
    if empty := [path for path, t in (*module.named_parameters(), *module.named_buffers()) if t.is_meta]:
        hint = "build it outside of torch.device('meta'), or call to_empty() and initialize it: operations are measured"
        raise TargetError(f"{empty[0]} is on the meta device, without data", where=name, hint=hint)


def _moved(module: torch.nn.Module, device: torch.device, name: str) -> torch.nn.Module:
    check_has_data(module, name)
    try:
        return module.to(device)
    except (RuntimeError, NotImplementedError) as error:
        raise TargetError(f"cannot be moved to {device}: {_described(error)}", where=name) from error


def _hands_on(module: torch.nn.Module) -> bool:
    """Whether a model, as PEFT's, hands on what it is called with to one that takes this argument."""
    base = getattr(module, "get_base_model", None)
    return base is not None and CACHE in inspect.signature(base().forward).parameters


def _without_cache(module: torch.nn.Module, given: Inputs) -> Inputs:
    """The inputs of a training step, without the cache for generation that models of transformers return as they come."""
    if getattr(getattr(module, "config", None), CACHE, None) is not True or CACHE in given.kwargs:
        return given
    with contextlib.suppress(TypeError, ValueError):  # a forward that says nothing of its parameters, or not these
        signature = inspect.signature(module.forward)
        takes = CACHE in signature.parameters or _hands_on(module)
        if takes and CACHE not in signature.bind_partial(*given.args, **given.kwargs).arguments:
            return replace(given, kwargs={**given.kwargs, CACHE: False})
    return given


def _check_trainable(module: torch.nn.Module, given: Inputs, name: str) -> None:
    tensors = [*module.parameters(), *pytree.tree_leaves((given.args, given.kwargs))]
    if not any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors):
        hint = "leave a parameter trainable, or give an input with requires_grad"
        raise TargetError("no parameter requires grad, so there is no training step to plan", where=name, hint=hint)


def _check_call(module: torch.nn.Module, given: Inputs, name: str) -> None:
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*given.args, **given.kwargs)
    except TypeError as error:
        hint = f"forward is forward{_plain_signature(signature)}"
        raise TargetError(f"the inputs do not fit forward: {error}", where=name, hint=hint) from None


# --- its inputs ------------------------------------------------------------------------------------------------------------


def find_inputs(text: str | None, loaded: Loaded, module: torch.nn.Module, seed: int) -> Inputs:
    """`--inputs`; else example_inputs() of the class, of the target's file, or of the file that the class is in."""
    if text is not None:
        return _inputs_of_function(text, loaded) if _PLACE.fullmatch(text.strip()) else make_inputs(text, seed)
    class_file = sys.modules.get(type(module).__module__)
    for holder, where in (
        (module, type(module).__name__),
        (loaded.module, loaded.path.name),
        (class_file, type(module).__module__),
    ):
        function = getattr(holder, "example_inputs", None)
        if callable(function):
            return _called(function, f"{where}:example_inputs()")
    raise TargetError("has no example inputs", where=f"{loaded.path.name}:{type(module).__name__}", hint=PROVIDE)


def _inputs_of_function(text: str, loaded: Loaded) -> Inputs:
    place, name = split_spec(text.strip())
    with _importing_from(place):
        same = place.endswith(".py") and Path(place).resolve() == loaded.path
        beside = loaded if same else _load(place)
        function = _find(beside, name)
        if not callable(function):
            raise TargetError(f"{text.strip()} is no function", where="--inputs", hint="name one that returns the inputs")
        return _called(function, f"{beside.path.name}:{name}()")


def _called(function: Callable[[], Any], where: str) -> Inputs:
    try:
        value = function()
    except (Exception, SystemExit) as error:
        raise _users_error(f"{where.rpartition(':')[2]} fails", where, error) from error
    return as_inputs(value, where)
