"""Generated files in a process of their own, and what the original's step costs beside what its plan assumes."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from remat_codegen.ask.request import Request
from remat_codegen.header.seal import seal
from remat_codegen.run import pipeline
from remat_codegen.show.results import Progress, verification_table

ALONE = "in a process of its own"
NET = """
import torch


class Net(torch.nn.Linear):
    def __init__(self, width=4):
        super().__init__(width, width)
        self.register_buffer("noise", torch.randn(width), persistent=False)

    def forward(self, x):
        return torch.dropout(super().forward(x), 0.5, True) * self.noise


def make():
    return Net(4)


def helper(x):
    return x


made = make()
"""
COLLECTS = """
import torch

MAPS = {}  # of which no frame and no module knows


class Net(torch.nn.Linear):
    def forward(self, x):
        MAPS["last"] = [(super(Net, self).forward(x) + n).detach().exp() for n in range(4)]
        return super().forward(x).tanh()
"""


def written(write_file, tmp_path, source=NET, name="Net", inputs="float32[2,4]", **options):
    """A file with its target and what --verify says of it."""
    file = tmp_path / "made_remat.py"
    target = f"{write_file(source)}:{name}"
    report = pipeline.generate(Request(target, "100%", file, inputs=inputs, verify=True, **options), Progress(None))
    return file, target, report.verify


def row(found, what=ALONE):
    return next(r for r in found.rows if r.what == what)


@pytest.mark.parametrize("name", ["Net", "make", "made"])
def test_every_kind_of_target_trains_in_a_process_of_its_own(write_file, tmp_path, name):
    _, _, found = written(write_file, tmp_path, name=name)
    assert found.ok and row(found).detail == "2 steps bit-identical"


def test_what_only_this_process_can_import_is_missed_in_another(write_file, tmp_path):
    """The original's module is imported here, so that a file finds in it what it should carry."""
    module = "only_imported_by_a_parent"  # a name that no other test's file has taken in this process
    (tmp_path / f"{module}.py").write_text(NET)
    file, target, _ = written(lambda source: tmp_path / f"{module}.py", tmp_path)
    text = file.read_text().replace("\nimport torch\n", f"\nimport torch\nfrom {module} import helper\n", 1)
    file.write_text(seal(text))
    found = pipeline.verify(file, target, inputs="float32[2,4]", progress=Progress(None))
    assert [r.what for r in found.rows if not r.ok] == [ALONE]
    assert f"import: ModuleNotFoundError: No module named '{module}'" in found.failures()


def test_a_file_that_raises_has_failed(write_file, tmp_path):
    file, target, _ = written(write_file, tmp_path)
    file.write_text(file.read_text().replace("return run_forward(self, x)", "return run_forward(self, x).missing"))
    found = pipeline.verify(file, target, inputs="float32[2,4]", progress=Progress(None))
    assert not found.ok and "training: step 1 fails: AttributeError" in found.failures()


def test_values_that_python_holds_are_told(write_file, tmp_path):
    _, _, found = written(write_file, tmp_path, COLLECTS, init="128, 128", inputs="float32[64,128]")
    assert found.original_peak_bytes > found.assumed_peak_bytes + 2 * 64 * 128 * 4
    assert any("the original's step peaks at" in n and "something holds values" in n for n in found.notes)
    assert found.to_json()["original_peak_bytes"] == found.original_peak_bytes and found.to_json()["time_ratio"] > 0
    assert verification_table(found).row_count == len(found.rows) + 3 + len(found.notes)


ATTENDS = """import torch
import torch.nn.functional as F


class Net(torch.nn.Linear):
    def forward(self, x):
        q, k, v = super().forward(x).view(2, 3, 128, 3, 32).unbind(3)
        return F.scaled_dot_product_attention(q, k, v).tanh()
"""


def test_another_process_may_round_otherwise(write_file, tmp_path):
    """What was set here, before the model was there, is not set in a process of its own: the original is asked there, too."""
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        _, _, found = written(write_file, tmp_path, ATTENDS, init="16, 96", inputs="float32[2,3,128,16]")
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    assert found.ok and row(found).detail.startswith("bit-identical to the original in such a process"), found


def test_an_original_that_only_this_process_can_make_is_not_the_files_fault(write_file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "made_only_here", SimpleNamespace(WIDTH=4))
    source = "import torch\nfrom made_only_here import WIDTH\n\nmade = torch.nn.Linear(WIDTH, WIDTH)\n"
    _, _, found = written(write_file, tmp_path, source, "made")
    assert row(found).ok and row(found).detail.startswith("not compared: there, the original cannot be made either")
