"""How much of a file changes when it is generated again, measured anew, and when it is updated to another budget: rows of its
table, and lines of the user's classes.

    python benchmarks/bench_again.py [--runs 11] [--models gpt2 vit unet] [--budgets gpt2 vit unet llama ...]

Each run measures every operation again. Rows and lines are those that are other than in the run before, added or taken out. For
budgets, costs are those of an absent GPU, the same each time; the overhead is that of a file that is generated anew beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import itertools
import shutil
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from remat_codegen.ask.request import Request
from remat_codegen.header.heading import read_header
from remat_codegen.run import check_update, marked
from remat_codegen.show.results import Progress

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "again.md"
MODELS = {"gpt2": ("GPT2", "1GiB"), "vit": ("ViT", "60%"), "unet": ("UNet", "60%")}
BUDGETS = {  # by model: its class, and per cent of the peak one after the other
    "gpt2": ("GPT2", (40, 45, 50, 45)),
    "vit": ("ViT", (40, 45, 50, 45)),
    "unet": ("UNet", (50, 55, 60, 55)),
    "llama": ("Llama", (40, 45, 50, 45)),
    "experts": ("Decoder", (40, 45, 50, 45)),
    "encoder_decoder": ("EncoderDecoder", (40, 45, 50, 45)),
    "resnet": ("ResNet", (45, 50, 55, 50)),
    "hrnet": ("HRNet", (70, 75, 80, 75)),
}
WHY = """\
A file has the marks that its own table uses: where a row of a U-Net's comes and goes with the costs, so does the line with its
mark."""
QUIET = Progress(None)
FEW = 10  # changed rows that are aimed at, in nine of ten generations


def parts(text: str) -> tuple[list[str], list[str]]:
    """The lines of the user's classes, and those of the table without the bytes that they tell."""
    classes, _, rest = text.partition("\nPLAN = {")
    table = rest.partition("\n}")[0]
    return classes[classes.index("class ") :].splitlines(), [line.partition("  #")[0] for line in table.splitlines()]


def changed(before: list[str], after: list[str]) -> int:
    """Lines that are other ones now; a line that was changed is one."""
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(max(b - a, d - c) for kind, a, b, c, d in blocks if kind != "equal")


def files(name: str, runs: int) -> list[str]:
    """The texts of files generated one after the other."""
    kind, budget = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        request = Request(f"{ROOT}/examples/{name}.py:{kind}", budget, Path(folder) / f"{name}_remat.py", cache=False)
        texts = []
        for _ in range(runs):
            marked.generate(request, Progress(None))
            texts.append(request.output_path.read_text())
            request.output_path.unlink()
        return texts


def budgets(name: str) -> Iterator[str]:
    """A row for each change of the budget."""
    kind, shares = BUDGETS[name]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        shutil.copy(ROOT / "examples" / f"{name}.py", folder)
        file = Path(f"{name}_remat.py")
        first = Request(f"{name}.py:{kind}", f"{shares[0]}%", file, device="h100")
        marked.generate(first, QUIET)
        for share, following in itertools.pairwise(shares):
            before = file.read_text()
            file.write_text(before.replace(f"--budget {share}%", f"--budget {following}%"))
            check_update.update(file, QUIET)
            after = file.read_text()
            anew = replace(first, budget=f"{following}%", output=file.with_name("anew.py"))
            marked.generate(anew, QUIET)
            (old_text, old_rows), (text, rows) = parts(before), parts(after)
            over = [100 * read_header(path.read_text(), path).plan.overhead for path in (file, anew.output_path)]
            differs = f"{changed(old_rows, rows)} | {changed(old_text, text)}"
            yield f"| {name}, {share} to {following} % | {len(rows)} | {differs} | {over[0]:.2f} | {over[1]:.2f} |"


def again(name: str, runs: int) -> str:
    """The row for generations one after the other."""
    found = [parts(text) for text in files(name, runs)]
    rows = [changed(a[1], b[1]) for a, b in itertools.pairwise(found)]
    text = [changed(a[0], b[0]) for a, b in itertools.pairwise(found)]
    few = f"{sum(n <= FEW for n in rows)} of {len(rows)}"
    return f"| {name}, {MODELS[name][1]} | {len(found[0][1])} | {median(rows):g} | {max(rows)} | {few} | {max(text)} |"


def table(head: list[str], rows: Iterator[str]) -> list[str]:
    """A table, told as it grows."""
    lines = list(head)
    for row in rows:
        lines.append(row)
        print(row, flush=True)
    return lines


def main() -> None:
    """Makes the tables; writes them where nothing was left out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--budgets", nargs="*", default=list(BUDGETS))
    given = parser.parse_args()
    head = [
        f"{given.runs} generations with `--no-cache`, each against the one before "
        f"(`python benchmarks/bench_again.py --runs {given.runs}`).",
        "",
        f"| model, budget | rows of the table | changed rows, median | most | at most {FEW} | changed lines of classes, most |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines = table(head, (again(name, given.runs) for name in given.models))
    head = [
        "",
        *textwrap.wrap(WHY, 120),
        "",
        "`update` after a change of the budget, by an H100's estimated costs: overheads in % of the step.",
        "",
        "| model, budgets | rows of the table | changed rows | changed lines of classes | overhead | generated anew |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += table(head, (row for name in given.budgets for row in budgets(name)))
    if (given.models, given.budgets) == (list(MODELS), list(BUDGETS)):
        RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
