"""Estimated times beside measured ones, and what a plan loses that was made from estimates.

    python benchmarks/calibrate.py [--device cpu|cuda] [--models gpt2 vit ...] [--minutes 8] [--to FOLDER]
    make gpu-calibrate PYTHON=python3    on a GPU, with what is missing from WHEELS=folder

Each distinct operation of some models is measured, forward and backward, and its kernels are priced by the roofline by
which GPUs that are not there are (`remat_codegen/profile/estimated.py`). A device has three numbers there that no data sheet
has: what kernels reach of its peak and of its memory's, and what starting one takes. They, and how fast a CPU draws random
numbers, are fitted to the others' operations, never to those of the model that is judged. Then each model is planned with
both, and both plans are priced as measured. A GPU that `remat-codegen devices` lists is judged as it stands there, too: that is
what `--device` says of it.

Writes calibration-<device>.md into benchmarks/results, or the folder that is named; of a GPU also its entry for
remat_devices.toml. GPUs run models of their own, as large as they are trained there. Models for which the time is too short
are left out.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
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
MODELS = {  # target, --init, --inputs
    "gpt2": ("examples/gpt2.py:GPT2", GPT2, "int64[4,256]<8192"),
    "vit": ("examples/vit.py:ViT", "", None),
    "llama": ("examples/llama.py:Llama", "", None),
    "experts": ("examples/experts.py:Decoder", "", None),
    "encoder_decoder": ("examples/encoder_decoder.py:EncoderDecoder", "", None),
    "resnet": ("examples/resnet.py:ResNet", "", None),
    "unet": ("examples/unet.py:UNet", "", None),
    "hrnet": ("examples/hrnet.py:HRNet", "", None),
}
BASE = "image=224, patch=16, width=768, layers=12, heads=12, classes=1000"
TRANSLATION = "width=768, heads=12, layers=6, vocabulary=32000, longest=512"
ON_GPU = {
    "gpt2": ("examples/gpt2.py:GPT2", "", "int64[4,1024]<50257"),
    "llama": ("benchmarks/gpu_models.py:Llama", "layers=6", "int64[4,2048]<32000"),  # in bfloat16
    "resnet": ("benchmarks/gpu_models.py:ResNet50", "", "float32[64,3,224,224]"),
    "vit": ("examples/vit.py:ViT", BASE, "float32[64,3,224,224]"),
    "unet": ("examples/unet.py:UNet", "width=128", "float32[16,3,64,64]; float32[16]"),
    "experts": ("examples/experts.py:Decoder", "width=1024, heads=16, experts=8, words=32000", "int64[8,1024]<32000"),
    "encoder_decoder": ("examples/encoder_decoder.py:EncoderDecoder", TRANSLATION, "int64[16,512]<32000; int64[16,512]<32000"),
    "hrnet": ("examples/hrnet.py:HRNet", "width=48, stages=4", "float32[32,3,256,256]"),
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
VARIANTS = {"pcie", "nvl", "mig", "laptop", "d"}  # words in names of GPUs that have other figures than those of the table
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
    """What kernels reach of the unit's operations and bytes per second, or of a GPU's own times UNIT, and the least one takes.
    CPUs draw random numbers one after the other: `drawn_per_s` are bytes of them."""

    flops: float
    bytes_per_s: float
    launch_ns: float
    drawn_per_s: float | None = None

    def time_ns(self, kernel: Kernel) -> int:
        """What a kernel takes, as `Kernel.time_ns`."""
        speed = (self.drawn_per_s if kernel.name in DRAWS else None) or self.bytes_per_s
        return round(max(self.launch_ns, kernel.bytes_ns * UNIT / speed, kernel.product_ns * UNIT / self.flops))

    def said(self, gpu: Device | None) -> str:
        """The figures in words, of a GPU that the table has as parts of its own."""
        if gpu is not None:
            parts = f"{self.flops / UNIT:.2f} of its products, {self.bytes_per_s / UNIT:.2f} of its memory's"
            return f"{parts}, {self.launch_ns / 1000:.1f} us"
        return f"{self.flops / 1e9:,.0f} GFLOP/s, {self.bytes_per_s / 1e9:.1f} GB/s, {self.launch_ns / 1000:.1f} us"


class Both(Clock):
    """Measures work as always, and sees its kernels. What it says is compared as it is."""

    is_exact = True

    def __init__(self, device: str, gpu: Device) -> None:
        super().__init__(device)
        self.real, self.gpu, self.pairs = clock_for(device), gpu, list[Pair]()

    def noting(self, *stages: Stage) -> tuple[list[Stage], list[int]]:
        """As the measuring clock."""
        return self.real.noting(*stages)

    def least_times_ns(self, *stages: Stage, warm: bool = False, noted: Sequence[int] = ()) -> list[int]:
        """The measured times."""
        found, value = self.real.least_times_ns(*stages, warm=warm, noted=noted), None
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

    is_exact = True

    def __init__(self, device: str, times: Sequence[int]) -> None:
        super().__init__(device)
        self.times = iter(times)

    def least_times_ns(self, *stages: Stage, warm: bool = False, noted: Sequence[int] = ()) -> list[int]:
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
    target, init, inputs = (MODELS if device == "cpu" else ON_GPU)[name]
    request = Request(f"{ROOT}/{target}", init=init, inputs=inputs, device=device)
    traced = trace_target(request, Progress(None))
    clock = Both(device, gpu)
    profile = Measured(device, Cache(device, enabled=False), clock=clock).of(traced.model)
    return Subject(traced, profile, tuple(clock.pairs))


def in_table(device: str) -> Device | None:
    """The GPU that is here as the table has it, if it is that and no variant."""
    words = set() if device == "cpu" else set(slug(name_of(device)).split("-"))
    found = next((gpu for key, gpu in DEVICES.items() if words.issuperset(key.split("-"))), None)
    if found is None or words & VARIANTS:
        return None
    return found if torch.cuda.get_device_properties(device).multi_processor_count == found.multiprocessors else None


def unit_device(device: str) -> Device:
    """A device of which kernels take what they ask for: the GPU that is here, by its data sheet, or one with its generation and
    processors."""
    if (known := in_table(device)) is not None:
        return replace(known, reached_bytes=1.0, reached_flops=1.0, launch_ns=0)
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


def as_listed(gpu: Device) -> Fit:
    """A GPU's figures as the table has them."""
    return Fit(UNIT * gpu.reached_flops, UNIT * gpu.reached_bytes, gpu.launch_ns)


def fitted(pairs: Sequence[Pair], start: Fit) -> Fit:
    """The figures by which estimates are the least off, one after the other, in ever smaller steps."""
    best = start
    least, width = error(best, pairs), WIDTH * 4
    for _ in range(STEPS):
        before = least
        for field in [f.name for f in fields(Fit) if getattr(best, f.name) is not None]:
            for factor in (math.exp(width), math.exp(-width)):
                other = replace(best, **{field: getattr(best, field) * factor})
                if (off := error(other, pairs)) < least:
                    best, least = other, off
        width = width if least < before else width / 2
    return best


def useful(pairs: Iterable[Pair]) -> list[Pair]:
    """The pieces of work that kernels were seen in."""
    return [p for p in pairs if p.kernels and p.measured_ns > 0]


def losses(model: Subject, fits: Sequence[Fit]) -> list[tuple[float, ...]]:
    """For each budget: the budget, and the overheads of the plan from measured costs and of those from estimates, all as
    measured."""
    graph, times = model.traced.graph, [[p.measured_ns for p in model.pairs]]
    times += [[p.estimated_ns(fit) if p.kernels else 0 for p in model.pairs] for fit in fits]
    measured, *estimated = map(model.costs, times)
    plain = simulate(graph, measured, without_recomputation(graph))
    rows = []
    for share in BUDGETS:
        plans = [auto.plan(graph, costs, int(share * plain.peak_bytes)).schedule for costs in (measured, *estimated)]
        if all(plans):
            rows.append((share, *(over(simulate(graph, measured, p).time_ns, plain.time_ns) for p in plans if p)))
    return rows


def name_of(device: str) -> str:
    """What the device is called."""
    return "this CPU" if device == "cpu" else torch.cuda.get_device_name(device)


def entry(device: str, fit: Fit) -> str:
    """A GPU with the figures that were fitted, as `remat_devices.toml` has it."""
    here, known = torch.cuda.get_device_properties(device), in_table(device)
    peaks = {"float32": fit.flops} if known is None else known.peaks
    rows = {
        "name": f'"{here.name}"',
        "compute_capability": f'"{here.major}.{here.minor}"',
        "multiprocessors": here.multi_processor_count,
        "bytes_per_s": f"{fit.bytes_per_s if known is None else known.bytes_per_s:.3g}",
        "memory_bytes": here.total_memory,
        "cache_bytes": here.L2_cache_size,
        "peaks": f"{{{', '.join(f'{dtype} = {peak:.3g}' for dtype, peak in peaks.items())}}}",
        "reached_flops": 1.0 if known is None else f"{fit.flops / UNIT:.2f}",
        "reached_bytes": 1.0 if known is None else f"{fit.bytes_per_s / UNIT:.2f}",
        "launch_ns": round(fit.launch_ns),
        "source": f'"measured with PyTorch {torch.__version__}, benchmarks/calibrate.py"',
    }
    return "\n".join([f"[{slug(here.name)}]", *(f"{key} = {value}" for key, value in rows.items())])


def slug(name: str) -> str:
    """A name as part of a file's."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


@dataclass(frozen=True)
class Judged:
    """A way to estimate: what it is called, and its figures for each model."""

    name: str
    fits: dict[str, Fit]

    def ratios(self, models: dict[str, Subject], kind: str) -> list[float]:
        """Estimated by measured times of a class of operations, sorted."""
        pairs = ((name, p) for name, m in models.items() for p in useful(m.pairs) if kind in (p.kind, "all"))
        return sorted(p.estimated_ns(self.fits[name]) / p.measured_ns for name, p in pairs)


def table(device: str, models: dict[str, Subject]) -> str:
    """The report."""
    known, every = in_table(device), [p for m in models.values() for p in useful(m.pairs)]
    start = Fit(1e11, 1e10, 3000.0, 1e10 if device == "cpu" else None) if known is None else as_listed(known)
    others = {n: [p for o, m in models.items() if o != n for p in useful(m.pairs)] for n in models}
    ways = [Judged("fitted to the others", {n: fitted(pairs, start) for n, pairs in others.items()})]
    ways += [Judged(f"`--device {known.key}`", dict.fromkeys(models, as_listed(known)))] if known is not None else []
    overall = fitted(every, start)
    draws = f", {overall.drawn_per_s / 1e9:.1f} GB/s of random numbers" if overall.drawn_per_s is not None else ""
    text = [
        f"Estimated times beside measured ones on {name_of(device)} ({torch.get_num_threads()} threads, PyTorch "
        f"{torch.__version__}). Fitted to all: {overall.said(known)} for a kernel at least{draws}. "
        "Each model is judged by a fit to the others.",
        *times_of(ways, models),
        "",
        "The plans from estimates, and the plan from measured costs, all priced as measured (planner `auto`):",
        *plans_of(ways, models),
    ]
    if device != "cpu":
        text += ["", "As an entry of `remat_devices.toml`:", "", "```toml", entry(device, overall), "```"]
    return "\n".join(text) + "\n"


def times_of(ways: Sequence[Judged], models: dict[str, Subject]) -> list[str]:
    """How far off times are, by class of operations."""
    heads = [f"{way.name}: half are between | estimated by measured, median" for way in ways]
    lines = ["", f"| operations | how many | {' | '.join(heads)} |", f"|---|---:|{'---:|---:|' * len(ways)}"]
    for kind in [*CLASSES, "pointwise, copies", "all"]:
        found = [way.ratios(models, kind) for way in ways]
        if len(found[0]) > 1:
            quarters = [statistics.quantiles(ratios, n=4) for ratios in found]
            cells = " | ".join(f"{low:.2f} and {high:.2f} | {middle:.2f}" for low, middle, high in quarters)
            lines.append(f"| {kind} | {len(found[0])} | {cells} |")
    return lines


def plans_of(ways: Sequence[Judged], models: dict[str, Subject]) -> list[str]:
    """What plans from estimates lose."""
    heads = " | ".join(f"{way.name} | more of the overhead" for way in ways)
    lines = ["", f"| model | budget | from measured costs | {heads} |", f"|---|---:|---:|{'---:|---:|' * len(ways)}"]
    worse: list[list[float]] = [[] for _ in ways]
    for name, model in models.items():
        for share, known, *guessed in losses(model, [way.fits[name] for way in ways]):
            cells = [f"{100 * known:.2f} %"]
            for lost, overhead in zip(worse, guessed, strict=True):
                lost.append(overhead / known - 1 if known > 0 else 0.0)
                cells += [f"{100 * overhead:.2f} %", f"{100 * lost[-1]:+.0f} %"]
            lines.append(f"| {name} | {100 * share:.0f} % | {' | '.join(cells)} |")
    for way, lost in zip(ways, worse, strict=True):
        lines += [
            "",
            f"{way.name}: median {100 * statistics.median(lost):+.1f} % of the overhead, most {100 * max(lost):+.0f} %.",
        ]
    return lines


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
