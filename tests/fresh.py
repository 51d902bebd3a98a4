"""What the tests of files in a process of their own share: a file is generated as the command line does, and trained in a new
process that imports what its user would: the generated file alone, where that carries the class.

Each process is forked from one that has imported PyTorch and nothing else, so that it starts at once; so are those in which
`verify` trains a file, but in the tests of just that (test_fresh.py).
"""

from __future__ import annotations

import concurrent.futures
import functools
import importlib
import io
import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

RUNNER = Path(__file__).parents[1] / "remat_codegen" / "verify" / "fresh_runner.py"
FORWARD = "    def forward(self, x):\n        return self.b(torch.tanh(self.a(x)).exp().sin())\n"
INIT = "    def __init__(self):\n        super().__init__()\n        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)\n"
INPUTS = """

def example_inputs():
    return (torch.randn(512, 4, generator=torch.Generator().manual_seed(1)),)
"""


def model_file(top: str = "", forward: str = FORWARD, bottom: str = "", extra: str = "", init: str = INIT) -> str:
    """A small model, with statements before and after it."""
    return f"import torch\nfrom torch import nn\n{top}\n\nclass Net(nn.Module):\n{init}{forward}{extra}{INPUTS}\n{bottom}"


def in_a_process(folder: Path, function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function in a new process that finds modules in a folder; returns what it returns, or raises what it raises."""
    with _pool() as pool:
        return _unpacked(pool.submit(_in_folder, folder, function, _packed(args)).result())


@functools.cache
def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo"])
    return context


def run_alone(folder: Path) -> tuple[int, str]:
    """What remat_codegen.verify.fresh.run_alone does, in a process that need not import PyTorch first."""
    process = _context().Process(target=_run, args=(folder, dict(os.environ)))
    process.start()
    process.join()
    said = folder / "stderr"
    return process.exitcode, said.read_text(errors="replace") if said.exists() else ""


def _run(folder: Path, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with open(folder / "stderr", "w") as errors, open(os.devnull, "w") as nowhere:
        os.dup2(errors.fileno(), 2)
        os.dup2(nowhere.fileno(), 1)
    sys.argv = ["fresh_runner.py", str(folder)]
    runpy.run_path(os.fspath(RUNNER), run_name="__main__")


def _pool() -> concurrent.futures.ProcessPoolExecutor:
    return concurrent.futures.ProcessPoolExecutor(1, mp_context=_context(), max_tasks_per_child=1)


def _in_folder(folder: Path, function: Callable[..., Any], args: bytes) -> bytes:
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    torch.set_num_threads(1)
    return _packed(function(*_unpacked(args)))


def _packed(value: Any) -> bytes:
    """A value as bytes: tensors that are sent as they are share memory, which ends with their process."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _unpacked(value: bytes) -> Any:
    return torch.load(io.BytesIO(value))


def generate(target: str, *words: str) -> str:
    """The file that the command line makes, in the folder that it is called in."""
    from click.testing import CliRunner

    from remat_codegen.cli.main import cli

    done = CliRunner().invoke(cli, ["generate", target, "--budget", "80%", "-o", "made.py", "--quiet", *words])
    assert done.exit_code == 0, done.output
    return Path("made.py").read_text()


def train(imports: list[str], name: str, kind: str, state: dict[str, Any] | None) -> tuple[dict[str, Any], list[Any]]:
    """The state that a model is trained from, and what it computes, with its gradients. The model is of the first of the
    modules that are imported; the last of them wraps it, where `kind` is wrapped."""
    assert "remat_codegen" not in sys.modules
    modules = [importlib.import_module(i) for i in imports]
    torch.manual_seed(0)
    model = getattr(modules[0], name)()
    state = {k: v.clone() for k, v in model.state_dict().items()} if state is None else state
    model.load_state_dict(state)
    found = _trained(modules[-1].rematerialize(model)) if kind == "wrapped" else []
    return state, found + _trained(model)


def _trained(model: torch.nn.Module) -> list[Any]:
    """What a model computes, and its gradients, in training and evaluation."""
    inputs = torch.randn(512, 4, generator=torch.Generator().manual_seed(1))
    found = []
    for training in (True, False):
        model.train(training)
        model.zero_grad()
        out = model(inputs)
        out.sum().backward()
        found += [out.detach(), *(p.grad for p in model.parameters())]
    return found


def trains_as_the_original(text: str, folder: Path, carried: bool, name: str = "Net") -> str:
    """Asserts that a generated file trains, in a process of its own, as the original does in another, and that the original
    still does beside it; returns the generated text."""
    (folder / "model.py").write_text(text)
    made = in_a_process(folder, generate, f"model.py:{name}")
    wraps = "a class that wraps" in made or "\nHand a model to `rematerialize`" in made
    assert carried != wraps, "it wraps" if carried else "it carries"
    state, want = in_a_process(folder, train, ["model"], name, "original", None)
    if carried:
        _, found = in_a_process(folder, train, ["made"], name, "carried", state)
        found += in_a_process(folder, train, ["model", "made"], name, "original", state)[1]
    else:
        _, found = in_a_process(folder, train, ["model", "made"], name, "wrapped", state)
    assert len(found) == 2 * len(want) and all(map(torch.equal, found, want + want))
    return made
