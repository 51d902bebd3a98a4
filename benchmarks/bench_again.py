"""How much of a file changes when it is generated again, measured anew: rows of its table, and lines of the user's classes.

    python benchmarks/bench_again.py [--runs 6] [--models gpt2 vit unet]

Each run measures every operation again. Rows and lines are those that are other than in the run before, added or taken out.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import tempfile
from pathlib import Path
from statistics import median

from remat_codegen.ask.request import Request
from remat_codegen.run import marked
from remat_codegen.show.results import Progress

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "again.md"
MODELS = {"gpt2": ("GPT2", "1GiB"), "vit": ("ViT", "60%"), "unet": ("UNet", "60%")}


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


def main() -> None:
    """Writes the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    given = parser.parse_args()
    lines = [
        f"{given.runs} generations with `--no-cache`, each against the one before (`python benchmarks/bench_again.py`).",
        "",
        "| model, budget | rows of the table | changed rows, median | most | changed lines of classes, most |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in given.models:
        found = [parts(text) for text in files(name, given.runs)]
        rows = [changed(a[1], b[1]) for a, b in itertools.pairwise(found)]
        text = [changed(a[0], b[0]) for a, b in itertools.pairwise(found)]
        lines.append(f"| {name}, {MODELS[name][1]} | {len(found[0][1])} | {median(rows):g} | {max(rows)} | {max(text)} |")
        print(lines[-1], flush=True)
    RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
