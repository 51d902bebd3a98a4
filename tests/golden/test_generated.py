"""The committed examples: reproduced byte for byte from their plans, and run against their originals.

With other versions than those of constraints.txt nothing is compared byte by byte: the committed files are run, and so is what
is written then where it differs.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixed import all_alike, fix
from pinned import only_with, others

from remat_codegen.run.traced import trace_target
from remat_codegen.run import explain as explaining
from remat_codegen.run import check_update, pipeline
from remat_codegen.header import saved_plan
from remat_codegen.verify import beside as comparing
from remat_codegen.show.results import Progress
from remat_codegen.ask.request import Request
from remat_codegen.ask.target import load_target

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    "gpt2_remat.py": ("examples/gpt2.py:GPT2", "1GiB"),
    "resnet_remat.py": ("examples/resnet.py:ResNet", "50%"),
    "distilbert_remat.py": ("examples/distilbert.py:distilbert", "50%"),
    "vit_remat.py": ("examples/vit.py:ViT", "50%"),
    "encoder_decoder_remat.py": ("examples/encoder_decoder.py:EncoderDecoder", "60%"),
    "unet_remat.py": ("examples/unet.py:UNet", "55%"),
}
WRAPS = {"distilbert_remat.py": "5.23.0"}  # the version of transformers, whose lines the file names
QUIET = Progress(None)


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture(autouse=True)
def _with_the_library(request):
    name = request.node.callspec.params["name"]
    if name in WRAPS:
        import torchvision_cpu  # noqa: F401 - transformers imports torchvision where it is installed

        if pytest.importorskip("transformers").__version__ != WRAPS[name]:
            pytest.skip(f"written for transformers {WRAPS[name]}")


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_plan_gives_the_committed_bytes(name, tmp_path, update_golden):
    target, budget = EXAMPLES[name]
    file, plan = ROOT / "generated" / "first" / name, ROOT / "generated" / "first" / f"{name}.plan.json"
    if (update_golden or others()) and not _fits(plan, target):  # planning measures, so that it gives another plan each time
        pipeline.generate(Request(target, budget, tmp_path / name, save_plan=tmp_path / plan.name), QUIET)
        plan = shutil.copy(tmp_path / plan.name, plan) if update_golden else tmp_path / plan.name
    pipeline.generate(Request(target, None, tmp_path / name, plan=plan), QUIET)
    if update_golden:
        shutil.copy(tmp_path / name, file)
    same = (tmp_path / name).read_text() == file.read_text()
    assert same or (others() and _is_exact(tmp_path / name, target))


def _is_exact(file, target):
    return pipeline.verify(file, target, steps=1, progress=QUIET).ok


def _fits(plan, target):
    """Whether a committed plan is for the model as it is now."""
    graph = trace_target(Request(target), QUIET).graph.digest()
    return plan.exists() and saved_plan.load(plan).graph == graph


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "gpt2_remat.py" else n for n in EXAMPLES])
def test_the_committed_file_is_exact_and_within_its_budget(name):
    target, _ = EXAMPLES[name]
    found = pipeline.verify(ROOT / "generated" / "first" / name, target, steps=1, progress=QUIET)
    assert found.ok, found.failures()
    elsewhere = "not compared: there, the original cannot be made"  # a library that imports in this process only
    assert all("bit-identical" in row.detail or row.detail.startswith(elsewhere) for row in found.rows[:-1])
    assert found.measured_peak_bytes <= found.budget_bytes
    if not others():  # what a kernel needs beside its results is its version's choice
        assert found.measured_peak_bytes == pytest.approx(found.planned_peak_bytes, rel=0.02)


@pytest.mark.parametrize("name", [n for n in EXAMPLES if n not in WRAPS])
def test_the_committed_file_keeps_the_constructor_and_the_state(name):
    target, _ = EXAMPLES[name]
    file, _, class_name = target.rpartition(":")
    original = load_target(target).module
    generated = comparing.load_generated(ROOT / "generated" / "first" / name)
    given = f"{ROOT / file}:example_inputs"
    same_start = load_target(f"{ROOT / 'generated' / 'first' / name}:{class_name}", inputs=given).module
    assert type(same_start).__name__ == type(original).__name__ and hasattr(generated, "rematerialize")
    assert list(same_start.state_dict()) == list(original.state_dict())
    for ours, theirs in zip(same_start.state_dict().values(), original.state_dict().values(), strict=True):
        assert ours.equal(theirs)


@only_with("torch", "black")
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_committed_file_is_up_to_date(name):
    found = check_update.check(ROOT / "generated" / "first" / name, QUIET, strict=True)
    assert found.ok, found.lines()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_committed_file_does_what_was_planned(name, monkeypatch):
    """Its schedule, read from its functions, is the plan's; so is its peak."""
    file, plan = ROOT / "generated" / "first" / name, ROOT / "generated" / "first" / f"{name}.plan.json"
    if others() and not _fits(plan, EXAMPLES[name][0]):
        pytest.skip(f"the model has another graph: {others()}")
    fix(monkeypatch, all_alike)
    found = explaining.explain(file, QUIET)
    assert found.ok and found.as_planned, found.problems
    assert found.notes == () or name in WRAPS  # layers from a library can be too much alike to tell apart
    assert found.peak_bytes <= saved_plan.load(plan).planned_peak_bytes
