"""Every model of the catalogue, as a new user would: target, budget, file, verification; tight, middle and loose."""

from __future__ import annotations

import re
from pathlib import Path

import catalogue
import pytest

from remat_codegen import pipeline
from remat_codegen.errors import BudgetError
from remat_codegen.report import Progress
from remat_codegen.request import Request

FILE = Path(catalogue.__file__)
TORCH = {"unet", "fno", "lstm", "padded_encoder", "transformer", "dcgan_generator", "dcgan_discriminator"}
FAST = TORCH
LIBRARY = dict.fromkeys(catalogue.NAMES[:13], "torchvision") | dict.fromkeys(catalogue.NAMES[13:18], "timm")


def marked(name: str):
    return name if name in FAST else pytest.param(name, marks=pytest.mark.slow)


def generate(name: str, budget: str, folder: Path):
    request = Request(f"{FILE}:{name}", budget, folder / f"{name}_remat.py", inputs=f"{FILE}:{name}_inputs", verify=True)
    return pipeline.generate(request, Progress(None))


def smallest(name: str, folder: Path) -> int:
    with pytest.raises(BudgetError) as caught:
        generate(name, "1", folder)
    return int(re.search(r"\((\d+) bytes\)", caught.value.line())[1])


@pytest.mark.parametrize("name", [marked(n) for n in catalogue.NAMES])
def test_exact_and_within_budget(name, tmp_path):
    if name not in TORCH:
        pytest.importorskip("transformers" if name not in LIBRARY else "timm")
    loose = generate(name, "100%", tmp_path)
    least = smallest(name, tmp_path)
    reports = [loose]
    for share in (0.0, 0.5):
        budget = int(least + share * max(0, loose.unmodified_peak_bytes - least))
        reports.append(generate(name, str(budget), tmp_path))
    for report in reports:
        assert report.verify.ok, report.verify.failures()
        assert report.verify.measured_peak_bytes <= report.budget_bytes
