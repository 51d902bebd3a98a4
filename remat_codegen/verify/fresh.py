"""Trains a generated file in a process of its own, which has not imported the original, as its user will.

What the file needs is there: PyTorch, the modules that the original's file imports, and the original itself only where the file
wraps one. A file that carries its classes has to do without: constructed as --init says, or unpickled with its own classes.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from remat_codegen.ask.inputs import parse_init
from remat_codegen.ask.target import Target, TargetKind, split_spec
from remat_codegen.trace import Autocast
from remat_codegen.verify.beside import is_out_of_memory, said

RUNNER = Path(__file__).with_name("fresh_runner.py")
LIMIT_S = 3600  # a process that hangs must end some day


@dataclass(frozen=True, slots=True)
class Found:
    """What the process found: the digests of each step by name, or the stage it stopped in and what it said there."""

    steps: tuple[dict[str, str], ...] = ()
    stage: str = ""
    said: str = ""

    @property
    def incomparable(self) -> bool:
        """Whether model or inputs could not be handed over: that is not the file's fault."""
        return self.stage in ("pickle", "unpickle")

    @property
    def out_of_memory(self) -> bool:
        """Whether the process ended for want of memory."""
        return self.stage != "" and is_out_of_memory(self.said)


def carries(generated: Any, target: Target) -> bool:
    """Whether a generated file defines the model's class itself, rather than to wrap the original."""
    found = getattr(generated, target.class_name, None)
    return isinstance(found, type) and issubclass(found, torch.nn.Module) and found.__module__ == generated.__name__


def trained_alone(
    generated: Any,
    target: Target,
    autocast: Autocast,
    device: str,
    seed: int,
    steps: int,
    evaluates: bool,
    without_file: bool = False,
    table: int | None = None,
    loss: str = "cross-entropy",
) -> Found:
    """Several steps in a fresh process. `generated` is the file as it was imported here; nothing has trained `target`.

    `without_file`, the original trains there: processes may round otherwise than this one, by what was set in this one.
    `table` names one of the file's tables by its budget; if not given, the file takes one by itself.
    `loss` is what the steps go back from.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, carried = Path(name), carries(generated, target) and not without_file
        task = _task(generated, target, carried) | {"device": device, "seed": seed, "steps": steps, "evaluates": evaluates}
        task |= {"without_file": without_file, "table": table, "loss": loss}
        task["autocast"] = [(kind, str(dtype).removeprefix("torch.")) for kind, dtype in autocast]
        try:
            _hand_over(folder, target, carried and target.kind is not TargetKind.CLASS)
        except Exception as error:  # whatever the user's objects raise
            return Found(stage="pickle", said=said(error))
        (folder / "task.json").write_text(json.dumps(task))
        code, errors = run_alone(folder)
        written = folder / "found.json"
        if not written.exists():
            last = next(reversed(errors.split("\n")[:-1]), "")
            return Found(stage="process", said=f"it ended with code {code}: {last}"[:300])
        found = json.loads(written.read_text())
        return Found(tuple(found["steps"]), found["stage"], found["said"])


def run_alone(folder: Path) -> tuple[int, str]:
    """Runs fresh_runner.py on a folder in a new process; its exit code, and what it said to stderr."""
    command = [sys.executable, "-I", str(RUNNER), str(folder)]
    ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=LIMIT_S, check=False)
    return ended.returncode, ended.stderr.decode(errors="replace")


def _task(generated: Any, target: Target, carried: bool) -> dict[str, Any]:
    """What the process is told about the file, the original and the settings of this process."""
    place, name = split_spec(target.spec)
    beside = str(target.path.parent) if place.endswith(".py") else os.getcwd()
    return {
        "file": str(Path(generated.__file__).resolve()),
        "module_name": generated.__name__,
        "carried": carried,
        "kind": str(target.kind),
        "class_name": target.class_name,
        "original": str(target.path),
        "original_name": _module_name(target.path, place),
        "place": place,
        "name": name,
        "path": [beside, *(entry or os.getcwd() for entry in sys.path)],
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _module_name(path: Path, place: str) -> str:
    """The name under which the original's file was imported here, by which pickle knows its classes."""
    if not place.endswith(".py"):
        return place
    names = (path.stem, f"_target_{path.stem}")
    return next((n for n in names if getattr(sys.modules.get(n), "__file__", None) == str(path)), path.stem)


def _hand_over(folder: Path, target: Target, whole: bool) -> None:
    """Saves the state (or the whole model), the inputs and the arguments."""
    if whole:
        torch.save(target.module, folder / "model.pt")
    else:
        torch.save(target.module.state_dict(), folder / "state.pt")
    torch.save((target.args, target.kwargs), folder / "inputs.pt")
    (folder / "init.pkl").write_bytes(pickle.dumps(parse_init(target.init_text)))


def differing(found: Found, traces: list[tuple[dict[str, str], dict[str, str]]], steps: int) -> str:
    """The first thing that is neither what the original left behind nor what the file did here; empty where there is none."""
    for index, (step, (original, here)) in enumerate(zip(found.steps, traces, strict=False)):
        for name in dict.fromkeys((*here, *step)):
            if step.get(name) not in (here.get(name), original.get(name)):
                where = f"step {index + 1}" if index < steps else "evaluation"
                return f"{name} differs in {where}"
    return ""
