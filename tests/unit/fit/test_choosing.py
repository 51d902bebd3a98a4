"""Budgets and batch sizes that are found: what is subtracted, how it is searched, and the files that come of it."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch
import zoo
from click.testing import CliRunner, Result

from remat_codegen.cli.main import cli
from remat_codegen.errors import BudgetError
from remat_codegen.fit import resident_memory as standing_module
from remat_codegen.fit.batching import largest_size
from remat_codegen.fit.choosing import smallest_good, total_of
from remat_codegen.fit.resident_memory import CUBLAS_BYTES, SEGMENTS_BYTES, free_bytes, standing
from remat_codegen.header.plan_line import header_of
from remat_codegen.profile.devices import DEVICES
from remat_codegen.run import check_update, tabling
from remat_codegen.show.results import Progress

MODEL = """import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        hidden = self.up(x)
        return x + self.down(torch.tanh(hidden).exp().sin())


class Net(nn.Module):
    def __init__(self, layers=3, width=16):
        super().__init__()
        self.layers = nn.ModuleList([Layer(width) for _ in range(layers)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def example_inputs():
    return torch.randn(64, 16)
"""
PARAMETERS = 3 * (2 * 16 * 64 + 64 + 16) * 4
QUIET = Progress(None)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in args])


def made(*args: object, target: str = "model.py:Net") -> dict:
    """What --json prints for a file net_remat.py."""
    result = run(target, *args, "-o", "net_remat.py", "--json", "-q")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def header(file: str = "net_remat.py") -> str:
    return " ".join(line.removeprefix("#").strip() for line in header_of(Path(file).read_text()))


def error_of(*args: object) -> str:
    """The one line that a command ends with."""
    result = run("model.py:Net", *args, "-q")
    assert result.exit_code == 2 and result.stdout == "", result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("remat-codegen: error: ")
    return line


def assert_lasting(file: str = "net_remat.py") -> None:
    """The file can be checked and made again, by what stands in it."""
    before = Path(file).read_bytes()
    found = check_update.check(Path(file), QUIET)
    assert found.ok, found.lines()
    assert not check_update.update(Path(file), QUIET).changed and Path(file).read_bytes() == before


# ---------------------------------------------------------------------------------------------- what stands beside the step


def test_the_sum_for_a_model_with_tied_and_frozen_parameters():
    model, idx = zoo.GPT2(layers=1, width=16, heads=2, vocabulary=50, context=8), torch.zeros(2, 8, dtype=torch.int64)
    model.wpe.weight.requires_grad_(False)
    found = {item.what: item.nbytes for item in standing(model, ((idx,), {"also": idx}), "adamw", "cpu")}
    trained = [p for p in model.parameters() if p.requires_grad]  # the tied weight stands among them once
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW(trained)
    optimizer.step()
    assert found == {
        "parameters": sum(p.nbytes for p in model.parameters()),
        "gradients": sum(p.nbytes for p in trained),
        "adamw's state": sum(t.nbytes for state in optimizer.state.values() for t in state.values()),
        "buffers": sum(b.nbytes for b in model.buffers()),
        "inputs": idx.nbytes,
    }
    assert found["gradients"] == found["parameters"] - model.wpe.weight.nbytes


def test_inputs_with_gradients_views_and_no_optimizer():
    model = torch.nn.Linear(4, 4)
    model.register_buffer("part", model.weight.detach()[:2])  # the parameter's own memory
    x = torch.randn(3, 4, requires_grad=True)
    found = {item.what: item.nbytes for item in standing(model, (x,), "none", "cpu")}
    assert found == {"parameters": 80, "gradients": 80 + x.nbytes, "inputs": x.nbytes}


def test_what_a_gpu_takes_beside():
    blocks, segments, cublas = standing_module._cuda_items([1, 512, 23 * 2**19])
    assert blocks.nbytes == 511 + 2**19
    assert (segments.nbytes, cublas.nbytes) == (SEGMENTS_BYTES, 2 * CUBLAS_BYTES)


def test_what_is_free(tmp_path, monkeypatch):
    assert 2**20 < free_bytes("cpu") < 2**50
    memory, group = tmp_path / "meminfo", tmp_path / "cgroup"
    memory.write_text("MemTotal:  9000 kB\nMemAvailable:    1000 kB\n")
    group.mkdir()
    monkeypatch.setattr(standing_module, "MEMINFO", memory)
    monkeypatch.setattr(standing_module, "CGROUP", group)
    assert free_bytes("cpu") == 1000 * 1024
    for name, text in (("memory.max", "500000"), ("memory.current", "300000"), ("memory.stat", "anon 1\ninactive_file 1000\n")):
        (group / name).write_text(text)
    assert free_bytes("cpu") == 201_000
    (group / "memory.max").write_text("max")
    memory.unlink()
    monkeypatch.setattr(standing_module.os, "sysconf_names", {})
    with pytest.raises(BudgetError, match=r"--fit: this system does not say what is free; give a number"):
        free_bytes("cpu")


# ---------------------------------------------------------------------------------------------- searches


def test_the_smallest_good_number():
    good = {30, 37, *range(50, 101)}
    found, tried = smallest_good(lambda n: n in good, 0, 100, 12, 1)
    assert found == min(n for n, is_good in tried if is_good) and len(tried) <= 12
    assert smallest_good(lambda n: n >= 41, 0, 100, 12, 1)[0] in (41, 42)
    assert smallest_good(lambda n: n >= 41, 0, 10**9, 5, 1)[1][:3] == ((0, False), (10**9, True), (5 * 10**8, True))
    assert smallest_good(lambda n: True, 7, 100, 12, 1) == (7, ((7, True),))
    assert smallest_good(lambda n: False, 7, 100, 12, 1) == (None, ((7, False), (100, False)))
    assert smallest_good(lambda n: False, 7, 7, 12, 1) == (None, ((7, False),))


@pytest.mark.parametrize("start", [1, 2, 7, 16, 100, 5000])
@pytest.mark.parametrize("largest", [1, 2, 5, 37, 38, 511, 4096])
def test_the_largest_size_of_what_grows_evenly(start, largest):
    found, tried = largest_size(lambda n: 3 * n - 3 * largest - 2, start, 30)
    assert found == largest and len(tried) <= 16
    assert dict(tried)[largest] and not dict(tried)[largest + 1]


@pytest.mark.parametrize("power", [0.5, 2])
def test_the_largest_size_of_what_grows_otherwise(power):
    found, tried = largest_size(lambda n: n**power - 1000**power, 4, 40)
    assert found == 1000 and len(tried) <= 24


def test_sizes_that_cannot_be_had():
    found, _ = largest_size(lambda n: n - 1000 if n % 8 == 0 else None, 8, 30)
    assert found == 1000
    found, _ = largest_size(lambda n: n - 1000 if n <= 600 else math.inf, 8, 30)
    assert found == 600
    assert largest_size(lambda n: 5, 8, 30)[0] == 0
    assert largest_size(lambda n: None, 8, 30) == (0, ((8, False),))
    assert largest_size(lambda n: n - 10**6, 1, 3)[1] == ((1, True), (2, True), (32, True))


# ---------------------------------------------------------------------------------------------- files


def test_what_fits_a_device(folder):
    total = 250_000
    report = made("--fit", total, "--optimizer", "adamw")
    chosen = report["chosen"]
    sizes = {item["what"]: item["bytes"] for item in chosen["items"]}
    steps = 3 * 4 * 4  # bytes: a counter for each of the four parameters of three layers
    assert sizes == {
        "parameters": PARAMETERS,
        "gradients": PARAMETERS,
        "adamw's state": 2 * PARAMETERS + steps,
        "inputs": 64 * 16 * 4,
    }
    assert chosen["left_bytes"] == report["budget_bytes"] == total - sum(sizes.values())
    assert report["planned_peak_bytes"] <= report["budget_bytes"] < report["unmodified_peak_bytes"]
    answer = r"what [\d.]+ KiB leave beside parameters, gradients, adamw's state and inputs"
    assert re.fullmatch(answer, report["answer"])
    assert re.search(rf"--budget {report['budget_bytes']} .* Budget: {report['budget_bytes']} bytes, {answer}\.", header())
    assert_lasting()


def test_the_sum_is_shown_line_by_line(folder):
    result = run("model.py:Net", "--fit", "1GiB", "--optimizer", "sgd-momentum", "-o", "net_remat.py")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[:5] == [
        "there are 1.00 GiB",
        "parameters - 25.4 KiB 6,384 numbers".replace("25.4", f"{PARAMETERS / 1024:.1f}").replace(
            "6,384", f"{PARAMETERS // 4:,}"
        ),
        f"gradients - {PARAMETERS / 1024:.1f} KiB",
        f"sgd-momentum's state - {PARAMETERS / 1024:.1f} KiB",
        "inputs - 4.0 KiB",
    ]
    assert lines[5].startswith("left for the step = 1023.9 MiB") or lines[5].startswith("left for the step = 1.00 GiB")


@pytest.mark.parametrize("amount", [("--fit", "1GiB"), ("--fit",), ("--fit", "auto")])
def test_where_all_fits_nothing_is_computed_again(folder, amount):
    report = made(*amount, "--optimizer", "none")
    assert report["overhead"] == 0 and report["planned_peak_bytes"] == report["unmodified_peak_bytes"]
    assert "the step fits the budget without recomputation" in report["notes"]
    assert ("that were free on cpu" in report["answer"]) == ("1GiB" not in amount)
    assert_lasting()


def test_what_does_not_fit_and_what_would(folder):
    line = error_of("--fit", "140KiB", "--optimizer", "adamw", "-o", "net_remat.py")
    assert "model.py:Net does not fit into 140.0 KiB: parameters 2" in line and "adamw's state" in line
    found = re.search(
        r"for the step, and the smallest plan needs .*; what would fit: a batch of (\d+) instead of 64 "
        r"\(--batch (\d+)\), or --optimizer (\S+)$",
        line,
    )
    assert found is not None and found[1] == found[2], line
    assert not (folder / "net_remat.py").exists()
    assert made("--fit", "140KiB", "--optimizer", "adamw", "--batch", found[1])["planned_peak_bytes"] > 0
    assert made("--fit", "140KiB", "--optimizer", found[3])["planned_peak_bytes"] > 0


def test_where_nothing_is_left(folder):
    line = error_of("--fit", "40KiB", "--optimizer", "adamw")
    assert re.search(r"inputs 4.0 KiB leave nothing for the step, .*; what would fit: [\d.]+ KiB would be enough$", line)


def test_the_smallest_budget_for_so_much_time(folder, monkeypatch):
    monkeypatch.setattr(tabling, "PART_NS", 0)  # which such a small model would feel, the more the quicker the machine is
    monkeypatch.setattr(tabling, "SAVED_NS", 0)
    report = made("--max-overhead", "30%")
    assert 0 < report["overhead"] <= 0.3 and report["budget_bytes"] < report["unmodified_peak_bytes"]
    tried = {row["at"]: row["good"] for row in report["chosen"]["tried"]}
    assert len(tried) <= 12 and report["budget_bytes"] == min(at for at, good in tried.items() if good)
    assert re.search(r"Budget: \d+ bytes, the smallest of \d+ that were planned for with at most 30% more time \(", header())
    assert_lasting()
    assert made("--max-overhead", "0%")["overhead"] == 0


def test_pythons_time_for_parts_counts_as_more_time(folder, monkeypatch):
    asked = "--max-overhead", "30%", "--edition", "2"
    monkeypatch.setattr(tabling, "PART_NS", 0)
    monkeypatch.setattr(tabling, "SAVED_NS", 0)
    free = made(*asked)
    assert free["overhead"] > 0 and "Python's time" not in header()
    monkeypatch.setattr(tabling, "PART_NS", 10**12)
    assert made(*asked)["overhead"] == 0


@pytest.mark.parametrize("edition", [1, 2])
def test_the_largest_batch(folder, edition):
    options = ["--budget", "200KiB", "--edition", edition]
    report = made(*options, "--largest-batch")
    batch = report["chosen"]["batch"]
    assert batch > 64 and f"--batch {batch} " in header() and f"with which {batch} is the largest batch that fits." in header()
    assert report["planned_peak_bytes"] <= 200 * 1024
    assert_lasting()
    tried = {row["at"]: row["good"] for row in report["chosen"]["tried"]}
    assert tried[batch] and not tried[batch + 1]
    if edition == 1:
        assert "no plan keeps" in error_of(*options, "--batch", batch + 1)
        verified = run("verify", "net_remat.py", "model.py:Net", "--batch", batch, "-q")
        assert verified.exit_code == 0, verified.output


def test_with_time_enough_the_largest_batch_is_as_large(folder):
    batch = made("--budget", "200KiB", "--largest-batch")["chosen"]["batch"]
    report = made("--budget", "200KiB", "--largest-batch", "--time-limit", "600")
    assert report["chosen"]["batch"] == batch and f"with which {batch} is the largest batch that fits." in header()
    tried = {row["at"]: row["good"] for row in report["chosen"]["tried"]}
    assert tried[batch] and not tried[batch + 1]


def test_the_largest_batch_that_fits_a_device(folder):
    report = made("--fit", "250KiB", "--optimizer", "adamw", "--largest-batch", "x.0")
    chosen = report["chosen"]
    assert {i["what"]: i["bytes"] for i in chosen["items"]}["inputs"] == chosen["batch"] * 16 * 4
    assert report["budget_bytes"] == chosen["left_bytes"]
    assert f"--batch x.0={chosen['batch']} " in header() and f"and inputs; {chosen['batch']} is the largest" in header()
    assert_lasting()
    assert "no batch fits" in error_of("--fit", "100KiB", "--optimizer", "adamw", "--largest-batch")


def test_a_saved_plan_keeps_the_answer(folder):
    made("--fit", "1GiB", "--optimizer", "sgd", "--batch", "8", "--save-plan", "plan.json")
    first = Path("net_remat.py").read_bytes()
    made("--plan", "plan.json", "--batch", "8")
    assert Path("net_remat.py").read_bytes() == first


def test_a_new_plan_says_that_the_budget_is_an_older_ones(folder):
    made("--fit", "1GiB", "--optimizer", "sgd")
    text = (folder / "model.py").read_text()
    (folder / "model.py").write_text(text.replace("exp().sin()", "sin()"))
    assert not check_update.check(Path("net_remat.py"), QUIET).ok
    for _ in range(2):
        assert check_update.update(Path("net_remat.py"), QUIET).file == Path("net_remat.py")
        assert header().count("found for an earlier plan of this file") == 1
    assert_lasting()
    file = Path("net_remat.py")
    file.write_text(re.sub(r"--budget \d+", "--budget 60%", file.read_text(), count=1))
    assert check_update.update(file, QUIET).planned and "Budget:" not in header()


def test_a_gigabyte_of_a_gpu_that_is_not_there_is_cudas():
    assert total_of("device", "cuda", DEVICES["t4"]) == (15 * 10**9, None)


def test_where_the_loss_takes_most(folder):
    (folder / "words.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Words(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.embed, self.head = nn.Embedding(3000, 8), nn.Linear(8, 3000)\n\n"
        "    def forward(self, idx):\n        return self.head(torch.tanh(self.embed(idx)))\n"
    )
    words = "--budget", "100%", "--inputs", "int64[4,16]<3000"
    note = made(*words, target="words.py:Words")["notes"][0]
    assert re.match(r"of the peak, [\d.]+ MiB, [\d.]+ MiB are what the loss outside of the model needs, of outputs of", note)
    assert ("torch.nn.functional.linear_cross_entropy" in note) == hasattr(torch.nn.functional, "linear_cross_entropy")
    assert note in " ".join(run("words.py:Words", *words, "-o", "net_remat.py").stdout.split())
    assert not any("the loss" in note for note in made("--budget", "100%")["notes"])


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ([], "give either --budget or --plan, or have a budget found: --fit AMOUNT, --max-overhead PERCENT"),
        (["--budget", "1GiB", "--fit", "1GiB", "--optimizer", "adam"], "leave out --budget or --fit"),
        (["--fit", "1GiB", "--max-overhead", "10%", "--optimizer", "adam"], "leave out --fit or --max-overhead"),
        (["--plan", "p.json", "--max-overhead", "10%"], "--plan brings its own budget; leave out --max-overhead or --plan"),
        (["--max-overhead", "10%", "--largest-batch"], "--largest-batch goes with --budget or --fit, not with --max-overhead"),
        (["--plan", "p.json", "--largest-batch"], "--largest-batch goes with --budget or --fit"),
        (["--budget", "50"], "a budget of 50 bytes is less than any model needs; write 50% or 50MiB if you mean that"),
        (["--fit", "1GiB"], "--fit needs --optimizer"),
        (["--budget", "1GiB", "--optimizer", "sgd"], "--optimizer goes with --fit only"),
        (["--fit", "1GiB", "--optimizer", "adamm"], "'adamm' is not one of 'adamw'"),
        (["--fit", "much", "--optimizer", "adam"], "cannot read the budget 'much'"),
        (["--fit", "40%", "--optimizer", "adam"], "--fit: 40% of what?"),
        (["--max-overhead", "0.1"], "cannot read the overhead '0.1'; write it like 10% or 2.5%"),
        (["--budget", "40%", "--largest-batch"], "--largest-batch: a budget of 40% grows with the batch"),
        (["--budget", "1GiB", "--batch", "none"], "--batch: cannot read 'none'"),
    ],
)
def test_options_that_do_not_go_together(folder, options, part):
    assert part in error_of(*options)
    assert not list(folder.glob("*_remat.py"))
