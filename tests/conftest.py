"""What all tests share: `--update-golden`, one thread, a seed, and small models."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores: a thread that waits must not spin
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import fresh
import torch
from pinned import others

pytest_plugins = ["on_cuda"]

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "gpt2.py"
SMALL = "layers=2, width=32, heads=2, vocabulary=101, context=16"
SMALL_INPUTS = "int64[2,16]<101"

# Examples are the same in every run: a failure that comes and goes is worth nothing. `make fuzz` looks for new ones.
CASES = int(os.environ.get("CASES", 100))
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("fuzz", max_examples=CASES, deadline=None, database=None, print_blob=True)
hypothesis.settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the committed outputs anew instead of comparing with them"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--update-golden") and os.environ.get("CI"):
        raise pytest.UsageError("--update-golden would make every golden test pass; it is refused where CI is set")
    if config.getoption("--update-golden") and others():
        raise pytest.UsageError(f"--update-golden would write what other versions do not: {others()} (constraints.txt)")
    torch.set_num_threads(1)  # outputs depend on it, and workers have a core each


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not look at it again and again, which took a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden tests write their files instead of comparing with them."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _forked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process in which `verify` trains a file is forked from one that has imported PyTorch, which takes seconds; not where
    just that is tested, and not on CUDA."""
    if request.path.name != "test_fresh.py" and request.path.parent.name != "cuda":
        monkeypatch.setattr("remat_codegen.verify.fresh.run_alone", fresh.run_alone)


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> Iterator[None]:
    """Nobody looks whether the machine is busy, as it is when tests run beside each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remat_codegen.profile.measure.Pace", lambda clock, least_ns: None)
        yield


@dataclass(frozen=True, slots=True)
class Example:
    """A small model and what it is called with. `spec`, `init` and `inputs` are the options that make the same one."""

    spec: str
    init: str
    inputs: str
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@pytest.fixture
def small_gpt2() -> Example:
    """The example's GPT-2 with two narrow layers."""
    from remat_codegen.ask.target import load_target

    spec = f"{EXAMPLE}:GPT2"
    target = load_target(spec, init=SMALL, inputs=SMALL_INPUTS)
    return Example(spec, SMALL, SMALL_INPUTS, target.module, target.args, target.kwargs)


@pytest.fixture
def write_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file for a test: write_file("text") or write_file("text", "name.py")."""

    def write(text: str, name: str = "model.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write
