"""Everything that only a real GPU can show: `make gpu`, with the interpreter and the PyTorch that are there and no network.

    python3 benchmarks/gpu.py [--part peaks] [--again] [--wheels FOLDER] [--small] [--minutes 9] [--list]

Works through PARTS, each of which takes at most 8 minutes. What is done is written down in build/gpu/state.json step by step,
so that the same command takes up again where it was ended; failed steps are reported and not tried again, but for --again and
--part, and so are steps that all of a part's time was not enough for. Writes benchmarks/results/gpu-PART.md and .json; with
--small, or on the null GPU (tests/nullgpu), to build/gpu.
A budget that is too small is replaced by the smallest that works.

Other packages than PyTorch that are missing are installed from the wheels in FOLDER into build/gpu/site. The product is run as
its users run it, by its command line. Exit codes: 0 done, 1 something failed or is left to do, 2 there is no GPU to run on.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_report import markdown, outcome

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "gpu"
RESULTS = ROOT / "benchmarks" / "results"
SITE = BUILD / "site"
PART_S = 480  # the most that a part may take
LEAST_S = 60  # a part that has less than that is left for another time
TAIL_LINES = 15
NEEDED = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "syrupy", "highsbox")  # beside what the package needs

DESCRIBE = """
import json, sys, torch
if not torch.cuda.is_available():
    sys.exit("torch " + torch.__version__ + " sees no CUDA device")
p = torch.cuda.get_device_properties(0)
computes = torch.full((1,), 0.7261, device="cuda").item() == torch.full((1,), 0.7261).item()
print(json.dumps({"device": p.name, "capability": f"{p.major}.{p.minor}", "memory_bytes": p.total_memory,
    "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "python": sys.version.split()[0],
    "computes": computes}))
"""


@dataclass(frozen=True, slots=True)
class Model:
    """A target of the command line, and the same one narrower for --small."""

    target: str
    inputs: str
    init: str
    small_inputs: str
    small_init: str

    def options(self, small: bool) -> list[str]:
        return ["--init", self.small_init if small else self.init, "--inputs", self.small_inputs if small else self.inputs]


@dataclass(frozen=True, slots=True)
class Step:
    """A part's smallest piece: a model within a budget, generated (and verified), then trained."""

    model: str
    budget: str
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return " ".join((self.model, self.budget, *self.options))


def model(name: str, inputs: str, init: str, small_inputs: str, small_init: str) -> Model:
    return Model(f"benchmarks/gpu_models.py:{name}", inputs, init, small_inputs, small_init)


GPT2, WORDS = "examples/gpt2.py:GPT2", "int64[2,64]<1000"
SMALL_GPT2 = "layers=3, width=64, heads=4, vocabulary=1000, context=64"
SMALL_LLAMA = "layers=3, width=128, hidden=256, heads=2, shared=1, vocabulary=1000, context=64"
MODELS = {
    "gpt2": Model(GPT2, "int64[4,1024]<50257", "", WORDS, SMALL_GPT2),
    "gpt2-medium": Model(GPT2, "int64[8,1024]<50257", "layers=24, width=1024, heads=16", WORDS, SMALL_GPT2),
    "resnet50": model(
        "ResNet50", "float32[64,3,224,224]", "", "float32[2,3,64,64]", "depths=(1, 2, 1, 1), width=8, classes=10"
    ),
    "llama": model("Llama", "int64[4,2048]<32000", "", WORDS, SMALL_LLAMA),
    "llama-dropout": model("Llama", "int64[4,2048]<32000", "layers=4, dropout=0.1", WORDS, SMALL_LLAMA + ", dropout=0.1"),
    "lstm": model("Tagger", "int64[32,256]<20000", "", WORDS, "layers=2, width=32, vocabulary=1000"),
}


def steps(name: str, *budgets: str, options: tuple[str, ...] = ()) -> tuple[Step, ...]:
    return tuple(Step(name, budget, options) for budget in budgets)


VERIFY, BFLOAT16 = ("--verify",), ("--verify", "--autocast", "bfloat16")
PARTS: dict[str, tuple[Step, ...]] = {
    "tests": (),  # tests/cuda
    "peaks": steps("gpt2", "100%", "70%", "50%", "35%"),
    "dropout": steps("gpt2", "50%", options=VERIFY),
    "flash": steps("llama-dropout", "60%", options=VERIFY) + steps("gpt2", "60%", options=BFLOAT16),
    "convolutions": steps("resnet50", "60%", options=VERIFY),
    "lstm": steps("lstm", "90%", options=VERIFY),
    "gpt2-medium": steps("gpt2-medium", "60%", "35%"),
    "resnet50": steps("resnet50", "80%", "60%", "40%"),
    "llama": steps("llama", "60%", "35%"),
    "times": steps("gpt2", "90%", "80%", "60%", "40%") + steps("llama", "80%", "50%"),
    "calibrate": (),  # estimated times beside measured ones: benchmarks/calibrate.py
}


class Run:
    """One call of this program: its options, the device, and the state of what was done before."""

    def __init__(self, options: argparse.Namespace, device: dict[str, Any]) -> None:
        self.small, self.device = options.small, device
        self.end = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
        self.results = BUILD if self.small or not device["computes"] else RESULTS
        self.path = BUILD / "state.json"
        self.state: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}
        identity = {"small": self.small, **device}
        if self.state.get("identity") != identity:  # another machine's steps, or larger ones, are not ours
            self.state = {"identity": identity, "parts": {}}

    def part(self, name: str, again: bool) -> bool:
        """Does what is left of a part and reports it. False where it was ended before its end, or something failed."""
        done: dict[str, Any] = {} if again else self.state["parts"].get(name, {})
        self.state["parts"][name] = done
        limit = min(time.monotonic() + PART_S, self.end)
        for key, work in self._work(name).items():
            if key in done:
                continue
            print(f"   {key} ...", flush=True)
            late = time.monotonic() > limit - 0.9 * PART_S
            done[key] = work(limit)
            self._save()
            print(f"   {key}: {outcome(done[key])}", flush=True)
            if done[key].get("ended"):
                if late:  # it had less than a part's time: the next call begins with it
                    del done[key]
                    self._save()
                break
        self._report(name, done)
        return len(done) == len(self._work(name)) and not any("failed" in found for found in done.values())

    def _work(self, name: str) -> dict[str, Callable[[float], dict[str, Any]]]:
        if name == "tests":
            return {"tests/cuda": self._tests}
        if name == "calibrate":
            return {"benchmarks/calibrate.py": self._calibrate}
        return {step.name: lambda limit, step=step: self._step(step, limit) for step in PARTS[name]}

    def _tests(self, limit: float) -> dict[str, Any]:
        return run([sys.executable, "-m", "pytest", "tests/cuda", "-q", "-rs", "-p", "no:cacheprovider"], limit, tail=True)

    def _calibrate(self, limit: float) -> dict[str, Any]:
        """Measures for half the time; planning with what was found takes the rest."""
        minutes = (limit - time.monotonic()) / 120
        options = ["--device", "cuda", "--minutes", f"{minutes:.1f}", "--to", str(self.results)]
        return run([sys.executable, "benchmarks/calibrate.py", *options], limit, tail=True)

    def _step(self, step: Step, limit: float) -> dict[str, Any]:
        """Generates a file by the command line, then measures it."""
        file = BUILD / f"{re.sub(r'[^a-z0-9]+', '_', step.name.lower())}.py"
        file.unlink(missing_ok=True)
        result = self._generated(step, step.budget, file, limit)
        smallest = re.search(r"smallest budget that works is .*\((\d+) bytes\)", result.get("failed", ""))
        if smallest is not None:
            result = self._generated(step, smallest[1], file, limit)
        if "--autocast" in step.options or not file.exists() or "planned_peak_bytes" not in result:
            return result  # gpu_step.py knows no autocast
        chosen = MODELS[step.model]
        measured = run([sys.executable, "benchmarks/gpu_step.py", chosen.target, str(file), *chosen.options(self.small)], limit)
        failures = {key: measured[key] for key in ("failed", "ended") if key in measured}
        return failures | result | {"measured": measured}

    def _generated(self, step: Step, budget: str, file: Path, limit: float) -> dict[str, Any]:
        """What the command line says of a model within a budget; without the file's place, which is this machine's."""
        chosen = MODELS[step.model]
        options = [*step.options, *chosen.options(self.small), "--device", "cuda", "-o", str(file), "--json", "-q"]
        found = run([sys.executable, "-m", "remat_codegen", chosen.target, "--budget", budget, *options], limit)
        found.pop("output", None)
        return found

    def _report(self, name: str, done: dict[str, Any]) -> None:
        whole = self.state["identity"] | {"part": name, "steps": done}
        (self.results / f"gpu-{name}.json").write_text(json.dumps(whole, indent=1) + "\n")
        (self.results / f"gpu-{name}.md").write_text(markdown(name, self.state["identity"], done))

    def _save(self) -> None:
        begun = self.path.with_suffix(".begun")
        begun.write_text(json.dumps(self.state, indent=1))
        begun.replace(self.path)


def run(command: Sequence[str], limit: float, tail: bool = False) -> dict[str, Any]:
    """What a command prints as JSON, or the end of its output. `failed` is why it failed, `ended` is there where time was up.

    `limit` is of time.monotonic(). A command that fails after it printed its JSON, as --verify does, has both.
    """
    begin = time.monotonic()
    ended = within(command, max(1.0, limit - begin))
    if ended is None:
        return {"failed": f"not done after {time.monotonic() - begin:.0f} s", "ended": True}
    found: dict[str, Any] = {}
    if tail:
        found["said"] = last_lines(ended.stdout)
    elif ended.stdout.strip().startswith("{"):
        found |= json.loads(ended.stdout)
    if ended.returncode or not found:
        found["failed"] = last_lines(ended.stderr + (ended.stdout if tail else "")) or f"exit code {ended.returncode}"
    return found | {"wall_s": round(time.monotonic() - begin, 1)}


def within(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str] | None:
    """What a command said; None where it took too long. Then the processes that it started end, too, which hold its output."""
    piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment(), **piped) as process:
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-TAIL_LINES:])


def environment() -> dict[str, str]:
    """This process's, with the package and what was installed from wheels."""
    paths = [str(ROOT), str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def install(wheels: Path | None) -> str:
    """Installs what is missing; the reason where it cannot be."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *NEEDED]
    sys.path.append(str(SITE))
    missing = [text for text in wanted if not there(re.split(r"[<>=\[]", text)[0])]
    if not missing:
        return ""
    if wheels is None:
        return f"missing: {', '.join(missing)}; give a folder of wheels: make gpu WHEELS=folder"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(wheels), "--target", str(SITE)]
    ended = subprocess.run([*pip, "--upgrade", *missing], check=False)
    return "pip could not install what is missing" if ended.returncode else ""


def there(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def described() -> dict[str, Any] | str:
    """What the device is, or why there is none."""
    ended = subprocess.run([sys.executable, "-c", DESCRIBE], env=environment(), capture_output=True, text=True, check=False)
    return json.loads(ended.stdout) if ended.returncode == 0 else last_lines(ended.stderr).split("\n")[-1]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=list(PARTS), help="do this part anew")
    parser.add_argument("--again", action="store_true", help="do all parts anew")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels for what is missing")
    parser.add_argument("--small", action="store_true", help="small models, to try this program")
    parser.add_argument("--minutes", type=float, help="end after so many minutes; the next call goes on from there")
    parser.add_argument("--list", action="store_true", help="list the parts")
    return parser.parse_args()


def main() -> int:
    options = parsed()
    if options.list:
        print("\n".join(PARTS))
        return 0
    BUILD.mkdir(parents=True, exist_ok=True)
    device = install(options.wheels) or described()
    if isinstance(device, str):
        print(f"gpu.py: {device}", file=sys.stderr)
        return 2
    this, ok = Run(options, device), True
    print(
        f"{device['device']}, PyTorch {device['torch']}"
        + ("" if device["computes"] else ": null, values and times mean nothing")
    )
    for name in [options.part] if options.part else PARTS:
        if this.end - time.monotonic() < LEAST_S:
            print(f"time is up before {name}; the same command goes on from here")
            return 1
        print(f"== {name}", flush=True)
        ok &= this.part(name, again=bool(options.part) or options.again)
    print(f"written to {this.results}/gpu-*.md")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
