"""What cuDNN's kernels allocate while they run, against the rules that stand for them where the GPU is not there.

    python benchmarks/cudnn_room.py

Each distinct convolution and recurrent network of some models is run there and back on the GPU that is here, a second time,
when cuDNN has chosen its kernels; `remat_codegen/profile/kernel_workspace.py` has the rules. Writes
benchmarks/results/cudnn-room.md.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/models", "benchmarks", "examples", "")]

import wide_models  # noqa: E402
from calibrate import in_table, unit_device  # noqa: E402

from remat_codegen.profile.devices import Device  # noqa: E402
from remat_codegen.profile.kernel_workspace import room_bytes  # noqa: E402
from remat_codegen.trace import absent  # noqa: E402

aten = torch.ops.aten
SEEN = (
    aten.convolution.default,
    aten.convolution_backward.default,
    aten._cudnn_rnn.default,
    aten._cudnn_rnn_backward.default,
)
MIB = 2**20
RESULT = ROOT / "benchmarks" / "results" / "cudnn-room.md"
Model = Callable[[], tuple[torch.nn.Module, Any]]


@dataclass(frozen=True)
class Row:
    """A call: what it is of, what it took beside its results, and what the rule says, in bytes."""

    kind: str
    call: str
    took: int
    rule: int


class Watching(TorchDispatchMode):
    """Measures each distinct call in here."""

    def __init__(self, gpu: Device, how: str, rows: list[Row], known: set[str]) -> None:
        super().__init__()
        self.gpu, self.how, self.rows, self.known = gpu, how, rows, known

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, and what is looked at twice."""
        if func not in SEEN or (call := f"{func} {pytree.tree_map(_said, args)} {self.how}") in self.known:
            return func(*args, **(kwargs or {}))
        self.known.add(call)
        func(*args)  # cuDNN chooses
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        out = func(*args)
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        took = stats["requested_bytes.all.peak"] - stats["requested_bytes.all.current"]
        with absent.chosen(self.gpu):
            self.rows.append(Row(_kind(func, args, self.how), call, took, room_bytes(func, args)))
        return out


def _said(leaf: Any) -> Any:
    return (tuple(leaf.shape), leaf.stride(), str(leaf.dtype)) if isinstance(leaf, torch.Tensor) else leaf


def _kind(func: Any, args: Sequence[Any], how: str) -> str:
    way = "back" if "backward" in str(func) else "there"
    if "rnn" in str(func):
        return f"recurrent networks, {way}"
    return f"{str(args[0].dtype).removeprefix('torch.')}, {how}, {way}"


def catalogue(names: Sequence[str]) -> Iterator[tuple[str, Model]]:
    """Models of bench_models.py, with their batches."""
    for name in names:
        yield name, lambda name=name: (getattr(wide_models, name)(), getattr(wide_models, f"{name}_inputs")())


def own(module: str, kind: str, *inputs: torch.Tensor, **options: Any) -> Model:
    """A model of examples/ or benchmarks/."""
    return lambda: (getattr(importlib.import_module(module), kind)(**options), inputs)


PICTURES = torch.randn(64, 3, 224, 224)
OURS = {
    "resnet50": own("gpu_models", "ResNet50", PICTURES),
    "tagger": own("gpu_models", "Tagger", torch.randint(20000, (32, 256))),
    "unet": own("unet", "UNet", torch.randn(16, 3, 64, 64), torch.rand(16), width=128),
    "small unet": own("unet", "UNet", torch.randn(4, 3, 64, 64), torch.rand(4)),
    "hrnet": own("hrnet", "HRNet", torch.randn(32, 3, 256, 256), width=48, stages=4),
}
OTHERS = "unet dcgan_generator dcgan_discriminator lstm_tagger densenet121 efficientnet_b0 regnet_x_400mf mobilenet_v3_small"
OTHERS += " vgg11_bn googlenet inception_v3 convnext_tiny nfnet_f0 maxvit_nano"
IN_ALL = ("resnet50", "hrnet", "unet", "dcgan_generator")  # that are run in each type and layout
FORMS: tuple[tuple[str, torch.dtype, bool, bool], ...] = (  # as how, type, tf32, channels last
    ("as they are", torch.float32, True, False),
    ("as they are", torch.bfloat16, True, False),
    ("channels last", torch.float32, True, True),
    ("channels last", torch.bfloat16, True, True),
    ("without tf32", torch.float32, False, False),
)


def watch(make: Model, form: tuple[str, torch.dtype, bool, bool], gpu: Device, rows: list[Row], known: set[str]) -> None:
    """A step of a model."""
    how, dtype, torch.backends.cudnn.allow_tf32, last = form

    def placed(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        there = leaf.to("cuda", dtype if leaf.is_floating_point() else leaf.dtype)
        return there.to(memory_format=torch.channels_last) if last and leaf.dim() == 4 else there

    model, inputs = make()
    model = model.to("cuda", dtype).train()
    model = model.to(memory_format=torch.channels_last) if last else model
    args, kwargs = inputs if len(inputs) == 2 and isinstance(inputs[1], dict) else (inputs, {})
    args, kwargs = pytree.tree_map(placed, (tuple(args), kwargs))
    with Watching(gpu, how, rows, known):
        out = [t for t in pytree.tree_leaves(model(*args, **kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
        sum(t.float().sum() for t in out).backward()


def report(rows: Sequence[Row], name: str) -> str:
    """How often more is taken than the rule says, and how much is."""
    lines = [
        f"What cuDNN's kernels took on {name}, and what is kept for them where that GPU is not there "
        "(`python benchmarks/cudnn_room.py`). Of most calls the rule is above, as what cuDNN takes depends on what it chooses.",
        "",
        "| | calls | that took more than the rule | by at most, MiB | took in all, MiB | rules in all, MiB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for kind in sorted({r.kind for r in rows}):
        found = [r for r in rows if r.kind == kind]
        above = [r.took - r.rule for r in found if r.took > r.rule]
        sums = f"{sum(r.took for r in found) / MIB:,.0f} | {sum(r.rule for r in found) / MIB:,.0f}"
        lines.append(f"| {kind} | {len(found)} | {len(above)} | {max(above, default=0) / MIB:,.1f} | {sums} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, prints and writes the report."""
    gpu, rows, known = in_table("cuda") or unit_device("cuda"), list[Row](), set[str]()
    models = {**dict(catalogue(OTHERS.split())), **OURS}
    for form in FORMS:
        for name in models if form == FORMS[0] else IN_ALL:
            try:
                watch(models[name], form, gpu, rows, known)
            except (ImportError, RuntimeError) as error:  # its library is not there, or it does not run in that type
                print(name, *form, str(error).split("\n")[0])
            gc.collect()
            torch.cuda.empty_cache()
    text = report(rows, f"{torch.cuda.get_device_name()} (PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()})")
    RESULT.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
