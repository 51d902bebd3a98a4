"""A small change of the model is a small change of its generated file: what `update` changes, as committed differences.

With other versions than those of constraints.txt the differences are others; what `update` wrote is run instead.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest
from conftest import EXAMPLE
from fixed import fix
from pinned import others

from remat_codegen.run import check_update, pipeline
from remat_codegen.show.results import Progress
from remat_codegen.ask.request import Request

DIFFS = Path(__file__).parent / "diffs"
QUIET = Progress(None)
SMALLER = {
    "layers=12": "layers=6",
    "width=768": "width=256",
    "heads=12": "heads=4",
    "vocabulary=50257": "vocabulary=2000",
    "context=1024": "context=256",
    "torch.randint(50257, (2, 512)": "torch.randint(2000, (2, 256)",
}
UNRELATED = "def count(model):\n    return sum(p.numel() for p in model.parameters())\n\n\n"

# What is changed in the model's file, and the number of lines that may change in the generated one (added and removed). Where
# sizes or layers change, another plan is the best one within the budget; that makes most of what changes then.
CHANGES = {
    "rename_a_variable": ("scores", "logits", 60),
    "add_a_function_below": ("def example_inputs", f"{UNRELATED}def example_inputs", 6),
    "add_a_function_above": ("class CausalSelfAttention", f"{UNRELATED}class CausalSelfAttention", 40),
    "change_a_number": ("std=0.02", "std=0.01", 8),
    "add_a_comment": ("        y = (probs @ v)", "        # heads side by side\n        y = (probs @ v)", 40),
    "change_an_argument": ('"tanh"', '"none"', 20),
    "change_an_activation": ('F.gelu(self.c_fc(x), approximate="tanh")', "F.relu(self.c_fc(x))", 160),
    "change_the_width": ("width=256", "width=320", 130),
    "add_a_layer": ("layers=6", "layers=7", 70),
}


SLOW = {"add_a_function_below", "add_a_comment", "change_a_number", "change_an_argument", "change_the_width"}  # which resemble the others


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CHANGES])
def test_a_small_change_of_the_model_is_a_small_one_of_the_file(name, tmp_path, monkeypatch, update_golden):
    old, new, most = CHANGES[name]
    monkeypatch.chdir(tmp_path)
    fix(monkeypatch)
    source = EXAMPLE.read_text()
    for piece, smaller in SMALLER.items():
        assert piece in source
        source = source.replace(piece, smaller)
    model, file = Path("gpt2.py"), Path("gpt2_remat.py")
    model.write_text(source)
    pipeline.generate(Request("gpt2.py:GPT2", "65%", file, planner="rotor", cache=False, static=True), QUIET)
    before = file.read_text()
    assert old in source
    model.write_text(source.replace(old, new))
    assert check_update.update(file, QUIET, cache=False).changed
    rows = list(difflib.unified_diff(before.splitlines(), file.read_text().splitlines(), "before", "after", lineterm="", n=0))
    text = re.sub(r'"seal":"\w+"', '"seal":"..."', "\n".join(rows)) + "\n"  # it follows every word of the file, changed or not
    golden = DIFFS / f"{name}.diff"
    if update_golden:
        golden.write_text(text)
    if others():
        found = pipeline.verify(file, "gpt2.py:GPT2", steps=1, progress=QUIET)
        assert all(row.ok for row in found.rows if row.what != "peak within budget")  # which is for the costs above
    else:
        assert text == golden.read_text()
    assert sum(row[0] in "+-" for row in rows[2:]) <= most
