"""Estimated times beside measured ones, and what a plan loses that was made from estimates.

    python benchmarks/calibrate.py [--device cpu|cuda] [--models gpt2 vit ...] [--minutes 8] [--to FOLDER]
    make gpu-calibrate PYTHON=python3    on a GPU, with what is missing from WHEELS=folder

Each distinct operation of some models is measured, forward and backward, and its kernels are priced by the roofline by
which GPUs that are not there are (`remat_codegen/profile/estimated.py`). A device has three numbers there that no data sheet
has: what kernels reach of its peak and of its memory's, and what starting one takes. They, and how fast a CPU draws random
numbers, are fitted to the others' operations, never to those of the model that is judged. Then each model is planned with
both, and both plans are priced as measured.

Writes calibration-<device>.md into benchmarks/results, or the folder that is named; of a GPU also its entry for
remat_devices.toml. Models for which the time is too short are left out.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from remat_codegen.ask.request import Request
from remat_codegen.planners import auto
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.clock import Clock, Stage, clock_for
from remat_codegen.profile.costs import Profile
from remat_codegen.profile.devices import DEVICES, Device
from remat_codegen.profile.estimated import Kernel, Kernels, kernel_of
from remat_codegen.profile.measure import Measured
from remat_codegen.run.priced import over
from remat_codegen.run.traced import trace_target
from remat_codegen.schedule import simulate, without_recomputation
from remat_codegen.show.results import Progress

ROOT = Path(__file__).parents[1]
GPT2 = "layers=6, width=384, heads=6, vocabulary=8192, context=256"
MODELS = {  # class, --init, --inputs
    "gpt2": ("GPT2", GPT2, "int64[4,256]<8192"),
    "vit": ("ViT", "", None),
    "llama": ("Llama", "", None),
    "experts": ("Decoder", "", None),
    "encoder_decoder": ("EncoderDecoder", "", None),
    "resnet": ("ResNet", "", None),
    "unet": ("UNet", "", None),
    "hrnet": ("HRNet", "", None),
}
BUDGETS = (0.6, 0.45)
CLASSES = {
    "attention": ("attention",),
    "convolution": ("convolution",),
    "product": ("mm", "matmul", "linear"),
    "normalisation": ("norm",),
    "softmax, loss": ("softmax", "nll", "logsumexp"),
    "look-up": ("embedding", "index", "gather", "scatter"),
    "dropout, random": ("dropout", "bernoulli", "rand"),
    "sum, mean": ("sum", "mean", "amax", "pool"),
}
DRAWS = ("bernoulli_", "bernoulli", "rand", "rand_like", "randn", "randn_like", "uniform_", "normal_")
UNIT = 10.0**12  # operations and bytes per second of the device that kernels are priced on before the fit
STEPS, WIDTH = 40, 0.25  # of the fit, and how far its first step goes, in powers of e


@dataclass(frozen=True)
class Pair:
    """A piece of work: what it took, and its kernels."""

    measured_ns: int
    kernels: tuple[Kernel, ...]

    def estimated_ns(self, fit: Fit) -> int:
        """What a fitted device says that it takes."""
        return max(1, sum(fit.time_ns(kernel) for kernel in self.kernels))

    @property
    def kind(self) -> str:
        """The class of the kernel that asks for the most."""
        name = max(self.kernels, key=lambda k: k.bytes_ns + k.product_ns).name
        return next((c for c, words in CLASSES.items() if any(word in name for word in words)), "pointwise, copies")


@dataclass(frozen=True)
class Fit:
    """Operations per second and bytes per second that kernels reach, and the least that one takes. CPUs draw random numbers one
    after the other: `drawn_per_s` are bytes of them."""

    flops: float
    bytes_per_s: float
    launch_ns: float
    drawn_per_s: float

    def time_ns(self, kernel: Kernel) -> int:
        """What a kernel takes, as `Kernel.time_ns`."""
        speed = self.drawn_per_s if kernel.name in DRAWS else self.bytes_per_s
        return round(max(self.launch_ns, kernel.bytes_ns * UNIT / speed, kernel.product_ns * UNIT / self.flops))

    def said(self) -> str:
        """The figures in words."""
        return f"{self.flops / 1e9:,.0f} GFLOP/s, {self.bytes_per_s / 1e9:.1f} GB/s, {self.launch_ns / 1000:.1f} us"


class Both(Clock):
    """Measures work as always, and sees its kernels."""

    def __init__(self, device: str, gpu: Device) -> None:
        super().__init__(device)
        self.real, self.gpu, self.pairs = clock_for(device), gpu, list[Pair]()

    def medians_ns(self, *stages: Stage, warm: bool = False) -> list[int]:
        """The measured times."""
        found, value = self.real.medians_ns(*stages, warm=warm), None
        for number, (stage, time_ns) in enumerate(zip(stages, found, strict=True)):
            prepares = len(stages) > 1 and number % 2 == 0  # of a node: inputs, its work, gradients, its way back
            with Seen(self.gpu, self.device) as seen:
                value = stage(value)
            self.pairs.append(Pair(time_ns, () if prepares else tuple(seen.kernels)))
        return found


class Seen(Kernels):
    """The kernels that run in here, one by one."""

    def __init__(self, gpu: Device, device: str) -> None:
        super().__init__(gpu, torch.device(device).type)
        self.kernels: list[Kernel] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, and keeps what it asks for."""
        out = func(*args, **(kwargs or {}))
        kernel = kernel_of(self.gpu, func, args, kwargs or {}, out, self.on)
        self.kernels += [] if kernel is None else [kernel]
        return out


class Told(Clock):
    """Says in the same order again what work takes, without running it."""

    def __init__(self, device: str, times: Sequence[int]) -> None:
        super().__init__(device)
        self.times = iter(times)

    def medians_ns(self, *stages: Stage, warm: bool = False) -> list[int]:
        """The next times."""
        return [next(self.times) for _ in stages]


@dataclass(frozen=True)
class Subject:
    """A model that was measured: its graph, its costs, and its operations one by one."""

    traced: Any
    profile: Profile
    pairs: tuple[Pair, ...]

    def costs(self, times: Sequence[int]) -> Profile:
        """The costs with other times for the same operations; room is as it was measured."""
        device = self.profile.device
        found = Measured(device, Cache(device, enabled=False), clock=Told(device, times)).of(self.traced.model)
        return replace(self.profile, time_ns=found.time_ns)


def seen(name: str, device: str, gpu: Device) -> Subject:
    """Measures a model."""
    kind, init, inputs = MODELS[name]
    request = Request(f"{ROOT}/examples/{name}.py:{kind}", init=init, inputs=inputs, device=device)
    traced = trace_target(request, Progress(None))
    clock = Both(device, gpu)
    profile = Measured(device, Cache(device, enabled=False), clock=clock).of(traced.model)
    return Subject(traced, profile, tuple(clock.pairs))


def unit_device(device: str) -> Device:
    """A device of which kernels take what they ask for; one with the generation and processors of the GPU that is here."""
    like = DEVICES["h100"]
    if device.startswith("cuda"):
        here = torch.cuda.get_device_properties(device)
        capability = (here.major, here.minor)
        like = replace(like, compute_capability=capability, multiprocessors=here.multi_processor_count)
    else:
        like = replace(like, multiprocessors=1)
    peaks = dict.fromkeys(("float64", "float32", "tf32", "bfloat16", "float16"), UNIT)
    return replace(like, peaks=peaks, bytes_per_s=UNIT, reached_bytes=1.0, reached_flops=1.0, launch_ns=0)


def error(fit: Fit, pairs: Iterable[Pair]) -> float:
    """The mean of how far off the estimates are, in powers of e."""
    return statistics.fmean(abs(math.log(p.estimated_ns(fit) / p.measured_ns)) for p in pairs)


def fitted(pairs: Sequence[Pair]) -> Fit:
    """The figures by which estimates are the least off, one after the other, in ever smaller steps."""
    best = Fit(1e11, 1e10, 3000.0, 1e10)
    least, width = error(best, pairs), WIDTH * 4
    for _ in range(STEPS):
        before = least
        for field in ("flops", "bytes_per_s", "launch_ns", "drawn_per_s"):
            for factor in (math.exp(width), math.exp(-width)):
                other = replace(best, **{field: getattr(best, field) * factor})
                if (off := error(other, pairs)) < least:
                    best, least = other, off
        width = width if least < before else width / 2
    return best


def useful(pairs: Iterable[Pair]) -> list[Pair]:
    """The pieces of work that kernels were seen in."""
    return [p for p in pairs if p.kernels and p.measured_ns > 0]


def losses(model: Subject, fit: Fit) -> list[tuple[float, float, float]]:
    """For each budget: the budget, and the overheads of the plan from measured costs and of the one from estimates, both as
    measured."""
    graph, estimated = model.traced.graph, model.costs([p.estimated_ns(fit) if p.kernels else 0 for p in model.pairs])
    measured = model.costs([p.measured_ns for p in model.pairs])
    plain = simulate(graph, measured, without_recomputation(graph))
    rows = []
    for share in BUDGETS:
        plans = [auto.plan(graph, costs, int(share * plain.peak_bytes)) for costs in (measured, estimated)]
        if all(plan.schedule is not None for plan in plans):
            times = [simulate(graph, measured, plan.schedule).time_ns for plan in plans if plan.schedule is not None]
            rows.append((share, *(over(t, plain.time_ns) for t in times)))
    return rows


def name_of(device: str) -> str:
    """What the device is called."""
    return "this CPU" if device == "cpu" else torch.cuda.get_device_name(device)


def entry(device: str, fit: Fit) -> str:
    """A GPU with the figures that were fitted, as `remat_devices.toml` has it."""
    here = torch.cuda.get_device_properties(device)
    rows = {
        "name": f'"{here.name}"',
        "compute_capability": f'"{here.major}.{here.minor}"',
        "multiprocessors": here.multi_processor_count,
        "bytes_per_s": f"{fit.bytes_per_s:.3g}",
        "memory_bytes": here.total_memory,
        "cache_bytes": here.L2_cache_size,
        "peaks": f"{{float32 = {fit.flops:.3g}}}",
        "reached_flops": 1.0,
        "reached_bytes": 1.0,
        "launch_ns": round(fit.launch_ns),
        "source": f'"measured with PyTorch {torch.__version__}, benchmarks/calibrate.py"',
    }
    return "\n".join([f"[{slug(here.name)}]", *(f"{key} = {value}" for key, value in rows.items())])


def slug(name: str) -> str:
    """A name as part of a file's."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def table(device: str, models: dict[str, Subject]) -> str:
    """The report."""
    every = [p for m in models.values() for p in useful(m.pairs)]
    fits = {n: fitted([p for o, m in models.items() if o != n for p in useful(m.pairs)]) for n in models}
    judged = [(p, p.estimated_ns(fits[n]) / p.measured_ns) for n, m in models.items() for p in useful(m.pairs)]
    overall = fitted(every)
    draws = f", {overall.drawn_per_s / 1e9:.1f} GB/s of random numbers" if device == "cpu" else ""
    lines = [
        f"Estimated times beside measured ones on {name_of(device)} ({torch.get_num_threads()} threads, PyTorch "
        f"{torch.__version__}). Fitted to all: {overall.said()} for a kernel at least{draws}. "
        "Each model is judged by a fit to the others.",
        "",
        "| operations | how many | half are between | estimated by measured, median |",
        "|---|---:|---:|---:|",
    ]
    kinds = [*CLASSES, "pointwise, copies"]
    for kind in [*kinds, "all"]:
        ratios = sorted(ratio for p, ratio in judged if kind in (p.kind, "all"))
        if len(ratios) > 1:
            low, middle, high = statistics.quantiles(ratios, n=4)
            lines.append(f"| {kind} | {len(ratios)} | {low:.2f} and {high:.2f} | {middle:.2f} |")
    lines += [
        "",
        "The plan from estimates, and the plan from measured costs, both priced as measured (planner `auto`):",
        "",
        "| model | budget | from measured costs | from estimates | more of the overhead |",
        "|---|---:|---:|---:|---:|",
    ]
    worse = []
    for name, model in models.items():
        for share, known, guessed in losses(model, fits[name]):
            worse.append(guessed / known - 1 if known > 0 else 0.0)
            cells = f"{100 * known:.2f} % | {100 * guessed:.2f} % | {100 * worse[-1]:+.0f} %"
            lines.append(f"| {name} | {100 * share:.0f} % | {cells} |")
    lines += ["", f"Median {100 * statistics.median(worse):+.1f} % of the overhead, most {100 * max(worse):+.0f} %."]
    if device != "cpu":
        lines += ["", "As an entry of `remat_devices.toml`:", "", "```toml", entry(device, overall), "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, prints and writes the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--minutes", type=float, default=math.inf, help="the most that may be spent on measuring")
    parser.add_argument("--to", type=Path, default=ROOT / "benchmarks" / "results")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    gpu = unit_device(given.device)
    models: dict[str, Subject] = {}
    for name in given.models:
        if len(models) >= 2 and time.monotonic() > end:
            print(f"no time for {name}")
            continue
        models[name] = seen(name, given.device, gpu)
        print(name, len(models[name].pairs), flush=True)
    text = table(given.device, models)
    (given.to / f"calibration-{slug(name_of(given.device)) if given.device != 'cpu' else 'cpu'}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
