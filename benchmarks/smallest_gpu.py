"""The smallest GPU on which each of ten known models trains, with a plan and without, with one command and no GPU:

    python benchmarks/smallest_gpu.py [--models gpt2_xl resnet50 ...] [--again] [--redraw]

Writes benchmarks/results/smallest_gpu.json, GPU by GPU, and smallest_gpu.md and smallest_gpu.svg from it. What is there stays,
unless it is asked for --again: a run that was stopped goes on. What it says of a GPU is what this says, too:

    remat-codegen benchmarks/known_models.py:gpt2_xl --inputs "int64[12,1024]<50257" --device v100 --autocast float16 \\
        --fit 31GB --optimizer adamw

Parameters, their gradients and the optimizer's state are in float32 and lie on the GPU, 16 bytes a parameter with AdamW; the
step is under autocast to bfloat16, on GPUs that have no units for it to float16. Batches are those that makers or usual
scripts have on one GPU. Of a GPU's memory, as it is sold, one gigabyte is left to CUDA, and to the bits by which some of them
check the others: a T4 of 16 GB says that it has 15.6 to 15.8. GPUs are asked in the order of their memory and of how fast
that is, the slower first. One is not asked if it has less than nine tenths of the room that the least plan of another takes,
or, with a plan known, the step as it is.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
sys.path.insert(0, str(ROOT))

from remat_codegen.ask.request import Request  # noqa: E402
from remat_codegen.errors import BudgetError  # noqa: E402
from remat_codegen.fit import choosing  # noqa: E402
from remat_codegen.fit.drafts import Costed, draft_of, measured  # noqa: E402
from remat_codegen.fit.resident_memory import standing  # noqa: E402
from remat_codegen.profile.devices import DEVICES, Device  # noqa: E402
from remat_codegen.run.traced import target_of  # noqa: E402
from remat_codegen.show.results import Progress  # noqa: E402

GB = 10**9
NEAR = 0.9  # of what another GPU needed: with less room one is not asked
TARGET = Path(__file__).parent / "known_models.py"


@dataclass(frozen=True)
class Row:
    """A model as it is trained. `source` says where its batch is from."""

    key: str
    label: str
    batch: str
    inputs: str
    source: str
    optimizer: str = "adamw"


NANOGPT, TITAN = "train.py of nanoGPT", "llama3_8b.toml of torchtitan"
ROWS = (
    Row("resnet50", "ResNet-50", "256 pictures", "float32[256,3,224,224]", "He et al. 2016", "sgd-momentum"),
    Row("vit_b", "ViT-B/16", "256 pictures", "float32[256,3,224,224]", "DeiT III, 2,048 on 8 GPUs"),
    Row("vit_l", "ViT-L/16", "64 pictures", "float32[64,3,224,224]", "DeiT III, 2,048 on 32 GPUs"),
    Row("gpt2_medium", "GPT-2 medium", "12 x 1,024 tokens", "int64[12,1024]<50257", NANOGPT),
    Row("gpt2_large", "GPT-2 large", "12 x 1,024 tokens", "int64[12,1024]<50257", NANOGPT),
    Row("gpt2_xl", "GPT-2 XL", "12 x 1,024 tokens", "int64[12,1024]<50257", NANOGPT),
    Row(
        "bert_large",
        "BERT-large",
        "32 x 384 tokens",
        "int64[32,384]<30522; int64[32,384]; bool[32,384]",
        "SQuAD, Devlin et al. 2019",
    ),
    Row(
        "stable_diffusion",
        "Stable Diffusion 1",
        "4 pictures of 512²",
        "float32[4,4,64,64]; float32[4]; float32[4,77,768]",
        "its model card: 2,048 in two steps on 256 GPUs",
    ),
    Row("llama_1b", "Llama 3.2 1B", "1 x 8,192 tokens", "int64[1,8192]<128256", f"as {TITAN}"),
    Row("llama_8b", "Llama 3 8B", "1 x 8,192 tokens", "int64[1,8192]<128256", TITAN),
)


def gpus() -> list[Device]:
    """Those of the table, in the order in which they are asked."""
    return sorted(DEVICES.values(), key=lambda gpu: (gpu.memory_bytes, gpu.bytes_per_s))


def usable(gpu: Device) -> int:
    """What a training has of a GPU's memory."""
    return gpu.memory_bytes - choosing.CUDAS_BYTES


# ---------------------------------------------------------------------------------------------- one model


def requested(row: Row, gpu: Device, target: Path = TARGET) -> Request:
    autocast = "bfloat16" if "bfloat16" in gpu.peaks else "float16"
    return Request(f"{target}:{row.key}", inputs=row.inputs, device=gpu.key, autocast=autocast)


def run(row: Row, found: dict[str, Any], save: Callable[[], None], target: Path = TARGET) -> None:
    """Asks one GPU after the other until the step fits as it is, saved one by one. Those that are there are not asked again."""
    loaded = target_of(requested(row, gpus()[0], target))
    items = standing(loaded.module, (loaded.args, loaded.kwargs), row.optimizer, "cuda")
    found["parameters"] = sum(p.numel() for p in loaded.module.parameters())
    found["standing"] = {item.what: item.nbytes for item in items}
    asked = found.setdefault("gpus", {})
    for gpu in gpus():
        if smallest(asked)[0] is not None:
            break
        if gpu.key in asked:
            continue
        left = usable(gpu) - sum(found["standing"].values())
        if (why := not_worth(left, asked, planning=smallest(asked)[1] is None)) is not None:
            asked[gpu.key] = {"left_bytes": left, "skipped": why}
        else:
            asked[gpu.key] = ask(row, gpu, planning=smallest(asked)[1] is None, target=target)
        print(row.key, gpu.key, asked[gpu.key], flush=True)
        save()


def not_worth(left_bytes: int, asked: dict[str, dict], planning: bool) -> str | None:
    """Why a GPU with so much left for the step is not asked; None if it is. Where no plan was found yet, the least that others
    needed counts, and later what the step takes without one."""
    if left_bytes <= 0:
        return "nothing is left"
    known = [
        cell[name] for cell in asked.values() for name in (("least_bytes",) if planning else ("plain_bytes",)) if name in cell
    ]
    if known and left_bytes < NEAR * min(known):
        return "far too little is left"
    return None


def ask(row: Row, gpu: Device, planning: bool, target: Path = TARGET) -> dict[str, Any]:
    """What a GPU's memory leaves for the step, what that takes there, and, if it is asked for and has to be, a plan."""
    started = time.process_time()
    found = measured(requested(row, gpu, target), Progress(None))
    left = choosing.room(found.traced, usable(gpu), row.optimizer, "cuda").left_bytes
    cell: dict[str, Any] = {"left_bytes": left, "plain_bytes": found.plain_bytes}
    if found.plain_bytes > left and planning:
        cell |= planned(found, left)
    return cell | {"nodes": len(found.traced.graph.nodes), "seconds": round(time.process_time() - started, 1)}


def planned(found: Costed, left: int) -> dict[str, Any]:
    """The plan's figures as its file has it; where there is none, the least budget with one."""
    try:
        draft = draft_of(found, left, Progress(None))
    except BudgetError as error:
        return {"least_bytes": error.least_bytes}
    plan = draft.plan
    return {
        "overhead": plan.overhead,
        "bound": plan.bound or 0.0,
        "peak_bytes": plan.planned_peak_bytes,
        "edition": 1 if draft.brought is None else 2,
    }


def smallest(asked: dict[str, dict]) -> tuple[str | None, str | None]:
    """The smallest GPUs by name on which a model trains as it is, and with a plan; None where there is none."""
    order = [gpu.key for gpu in gpus() if gpu.key in asked]
    as_it_is = first(order, lambda key: asked[key].get("plain_bytes", asked[key]["left_bytes"] + 1) <= asked[key]["left_bytes"])
    with_plan = first(order, lambda key: "overhead" in asked[key])
    return as_it_is, as_it_is if with_plan is None else with_plan


def first(keys: Iterable[str], good: Callable[[str], bool]) -> str | None:
    return next((key for key in keys if good(key)), None)


def overhead(asked: dict[str, dict]) -> float:
    """What the plan on the smallest GPU takes beside the step; nothing where that fits as it is."""
    _, with_plan = smallest(asked)
    return 0.0 if with_plan is None else asked[with_plan].get("overhead", 0.0)


# ---------------------------------------------------------------------------------------------- all of them

HEAD = """\
The smallest GPU on which a model trains, as it is and with a plan, by `python benchmarks/smallest_gpu.py`:
planned without the GPUs, as `--device GPU --fit` does. Memory is followed, times are a roofline's (docs/devices.md): what a
plan takes more than the step as it is on the same GPU, and what no plan within its memory is below. Beside the step lie
parameters, their gradients and the optimizer's state, in float32, buffers, inputs, and what CUDA's allocator and cuBLAS keep.
Steps are under autocast to bfloat16, on T4 and V100 to float16; the loss is outside of the model and counted as cross
entropy. A gigabyte of each GPU's memory is left to CUDA. Of what cuDNN's convolutions allocate for themselves, copies with
channels last are counted. Not counted is what an optimizer takes that updates all parameters at once (`foreach`): up to as
much as these, so use `fused=True`.
"""
COLUMNS = (
    "model",
    "parameters, millions",
    "batch",
    "optimizer",
    "beside the step, GB",
    "the step as it is, GB",
    "smallest GPU as it is",
    "with a plan",
    "the plan's peak, GB",
    "more time, %",
    "no plan is below, %",
    "file",
)


def table(results: dict[str, dict]) -> str:
    """What was found, model by model, and of what."""
    lines = [HEAD, f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for row, found in ((row, results[row.key]) for row in ROWS if finished(results.get(row.key))):
        asked, beside = found["gpus"], sum(found["standing"].values())
        as_it_is, with_plan = smallest(asked)
        cell = asked.get(with_plan or largest_asked(asked), {})
        cells = [row.label, f"{found['parameters'] / 1e6:,.0f}", row.batch, row.optimizer, gigabytes(beside)]
        cells += [gigabytes(cell.get("plain_bytes")), named(as_it_is), named(with_plan)]
        cells += [gigabytes(cell.get("peak_bytes", cell.get("plain_bytes")))]
        cells += ["-" if with_plan is None else f"{100 * cell.get(key, 0.0):.1f}" for key in ("overhead", "bound")]
        cells.append({1: "functions", 2: "marks"}.get(cell.get("edition", 0), "-"))
        lines.append(f"| {' | '.join(cells)} |")
    sources = dict.fromkeys(row.source for row in ROWS)
    named_sources = "; ".join(f"{', '.join(r.label for r in ROWS if r.source == source)}: {source}" for source in sources)
    return "\n".join([*lines, "", f"Where batches are from: {named_sources}."]) + "\n"


def finished(found: dict[str, Any] | None) -> bool:
    """Whether all GPUs were asked that had to be."""
    return found is not None and (smallest(found["gpus"])[0] is not None or len(found["gpus"]) == len(gpus()))


def largest_asked(asked: dict[str, dict]) -> str:
    return [gpu.key for gpu in gpus() if "plain_bytes" in asked.get(gpu.key, {})][-1]


def named(key: str | None) -> str:
    return "none" if key is None else f"{key} ({DEVICES[key].memory_bytes // GB} GB)"


def gigabytes(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / GB:.1f}"


def picture(results: dict[str, dict]) -> bytes:
    """Each model's way from the GPU on which it trains as it is to the one on which it does with a plan."""
    import matplotlib
    from matplotlib.figure import Figure

    sizes = sorted({gpu.memory_bytes // GB for gpu in gpus()})
    shown = [row for row in ROWS if finished(results.get(row.key))]
    settings = {"svg.hashsalt": "remat-codegen", "svg.fonttype": "none", "font.size": 9, "backend": "agg"}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(9, 0.46 * len(shown) + 1.3), layout="constrained")
        axes = figure.subplots()
        for height, row in zip(range(len(shown), 0, -1), shown, strict=True):
            asked = results[row.key]["gpus"]
            left, right = (place(sizes, key) for key in reversed(smallest(asked)))
            axes.plot([left, right], [height, height], "-", color="0.75", linewidth=3, zorder=1)
            axes.plot(right, height, "o", color="0.35", fillstyle="none", markersize=9, zorder=2)
            axes.plot(left, height, "o", color="tab:blue", markersize=9, zorder=3) if left < right else None
            text = f"{smallest(asked)[1]}, +{100 * overhead(asked):.1f} %" if left < right else smallest(asked)[0] or ""
            axes.annotate(text, (left, height), (0, 7), textcoords="offset points", ha="center", fontsize=8)
            if left < right and (key := smallest(asked)[0]) is not None:
                axes.annotate(key, (right, height), (0, 7), textcoords="offset points", ha="center", fontsize=8)
        axes.plot([], [], "o", color="tab:blue", markersize=9, label="with a plan, and the time that it takes more")
        axes.plot([], [], "o", color="0.35", fillstyle="none", markersize=9, label="as it is")
        axes.set_yticks(range(len(shown), 0, -1), [f"{row.label}, {row.batch}" for row in shown])
        axes.set_xticks(range(len(sizes) + 1), [*(f"{size} GB" for size in sizes), "none"])
        axes.set_xlim(-0.6, len(sizes) + 0.4)
        axes.set_ylim(0.5, len(shown) + 0.8)
        axes.grid(axis="x", color="0.9")
        axes.set_axisbelow(True)
        axes.set_xlabel("memory of the smallest GPU on which it trains")
        figure.legend(fontsize=8, loc="outside upper center", ncols=2, frameon=False)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def place(sizes: list[int], key: str | None) -> int:
    """Where a GPU stands in the picture; beyond all of them where there is none."""
    return len(sizes) if key is None else sizes.index(DEVICES[key].memory_bytes // GB)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="*", choices=[row.key for row in ROWS])
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--redraw", action="store_true")
    options = parser.parse_args()
    path = RESULTS / "smallest_gpu.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    save = lambda: path.write_text(json.dumps(results, indent=1) + "\n")  # noqa: E731
    for row in [] if options.redraw else ROWS:
        if options.models is None or row.key in options.models:
            if options.again:
                results.pop(row.key, None)
            run(row, results.setdefault(row.key, {}), save)
    (RESULTS / "smallest_gpu.md").write_text(table(results))
    (RESULTS / "smallest_gpu.svg").write_bytes(picture(results))
    print(table(results))


if __name__ == "__main__":
    main()
