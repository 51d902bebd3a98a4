"""Trains a generated file where nothing else of this package is: `python -I fresh_runner.py FOLDER`, started by fresh.py.

The folder holds `task.json` and `init.pkl`, what to do; `state.pt` or `model.pt`, and `inputs.pt`, what with. Written is
`found.json`: the digests of each step, or what went wrong and where.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import os
import pickle
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch


class Stopped(Exception):
    """What went wrong, in which part of the work."""

    def __init__(self, stage: str, said: str) -> None:
        super().__init__(said)
        self.stage = stage


@contextmanager
def doing(stage: str) -> Iterator[None]:
    """In here, whatever the user's code raises is told with the stage's name."""
    try:
        yield
    except Stopped:
        raise
    except BaseException as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        raise Stopped(stage, f"{type(error).__name__}: {first}"[:300]) from error


class WithoutOriginal(importlib.abc.MetaPathFinder):
    """Refuses to import the original's file for a generated one. Others may: a package may import all that is in it."""

    def __init__(self, original: str, generated: str) -> None:
        self.original, self.generated = os.path.realpath(original), generated

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """None where others may go on to look for the module."""
        if not self._asked_by_the_file():
            return None
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(name, path, target)
            if found is not None and found.origin and os.path.realpath(found.origin) == self.original:
                raise ModuleNotFoundError(f"No module named {name!r}: it is the original's, which is not here", name=name)
            if found is not None:
                return None
        return None

    def _asked_by_the_file(self) -> bool:
        """Whether the innermost code that is not importlib's own is the generated file's."""
        frame: Any = sys._getframe(2)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        return frame is not None and frame.f_globals.get("__name__") == self.generated


def loaded(name: str, path: str) -> ModuleType:
    """A file as a module of this name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pickling(generated: ModuleType | None, task: Any) -> Any:
    """The pickle module, but that what the original's file defines is found in the generated one, where that carries it."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if not task.carried or module != task.original_name:
                return super().find_class(module, name)
            found: Any = generated
            for part in name.split("."):
                if not hasattr(found, part):
                    raise Stopped("unpickle", f"the file does not carry {name}")
                found = getattr(found, part)
            return found

    return SimpleNamespace(Unpickler=Unpickler, load=pickle.load, __name__="pickle")


def made_original(task: Any) -> torch.nn.Module:
    """The original as the target says, for a file that wraps one."""
    torch.manual_seed(task.seed)
    name = task.original_name
    module = loaded(name, task.original) if task.place.endswith(".py") else importlib.import_module(task.place)
    found = getattr(module, task.name)
    torch.manual_seed(task.seed)
    with task.quick_draws():
        return found if isinstance(found, torch.nn.Module) else found(*task.init[0], **task.init[1])


def planned(generated: ModuleType | None, model: torch.nn.Module, task: Any) -> torch.nn.Module:
    """A model with the file's training steps: one whose class the file carries has them, unless a table is named."""
    if generated is None or (task.carried and task.table is None):
        return model
    found: torch.nn.Module = generated.rematerialize(model, **({} if task.table is None else {"budget": task.table}))
    return found


def made(generated: ModuleType | None, original: torch.nn.Module | None, task: Any, folder: Path) -> torch.nn.Module:
    """The model that is trained, in the state that the original had. `original` is there where the file wraps one."""
    if task.carried and task.kind != "class":
        with doing("unpickle"):  # only the file's classes are here: its own are what a factory's model is made of
            model = torch.load(folder / "model.pt", pickle_module=pickling(generated, task), weights_only=False)
            return planned(generated, model if task.device == "cpu" else model.to(task.device), task)
    with doing("make"):
        torch.manual_seed(task.seed)
        with task.quick_draws():
            model = getattr(generated, task.class_name)(*task.init[0], **task.init[1]) if original is None else original
        model = model.train().to(task.device)
        model.load_state_dict(torch.load(folder / "state.pt", weights_only=False))
        return planned(generated, model, task)


def steps(task: Any, folder: Path, training: ModuleType) -> Iterator[dict[str, str]]:
    """The digests of each step, and of an evaluation."""
    sys.path[:] = task.path
    if task.carried:
        sys.meta_path.insert(0, WithoutOriginal(task.original, task.module_name))
    with doing("make"):  # before the file that wraps it, which imports its library, too
        original = None if task.carried else made_original(task)
    with doing("import"):
        generated = None if task.without_file else loaded(task.module_name, task.file)
    model = made(generated, original, task, folder)
    with doing("unpickle"):
        args, kwargs = torch.load(folder / "inputs.pt", pickle_module=pickling(generated, task), weights_only=False)
        training.know_dataclasses((args, kwargs))
    casts = [(device, getattr(torch, dtype)) for device, dtype in task.autocast]
    run = training.Run(model, args, kwargs, casts, task.loss)
    for index in range(task.steps):
        training.seed_all(task.seed + index)
        with doing(f"step {index + 1}"):
            run.step()
        run.note_generators()
        yield training.digests(run.state())
        run.update()
    if task.evaluates:
        training.seed_all(task.seed)
        with doing("evaluation"):
            run.evaluate()
        yield training.digests(run.results())


def main(folder: Path) -> None:
    """Reads the task and writes what came of it."""
    package = Path(__file__).parents[1]
    training = loaded("_training", str(package / "trace" / "training.py"))
    drawing = loaded("_drawing", str(package / "ask" / "drawing.py"))
    sys.modules["remat_codegen"] = None  # type: ignore[assignment]  # whoever imports it from here on fails
    task = SimpleNamespace(**json.loads((folder / "task.json").read_text()), quick_draws=drawing.quick_draws)
    with open(folder / "init.pkl", "rb") as file:
        task.init = pickle.load(file)
    torch.set_num_threads(task.threads)  # rounding depends on it; what else the original's file sets, its own file has to
    torch.use_deterministic_algorithms(task.deterministic)
    random.seed(task.seed)
    found: dict[str, Any] = {"stage": "", "said": "", "steps": []}
    try:
        found["steps"].extend(steps(task, folder, training))
    except Stopped as stopped:
        found |= {"stage": stopped.stage, "said": str(stopped)}
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
