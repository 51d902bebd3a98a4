"""Committed generated files as code: they type-check, lint clean, keep their layout, and say where an exception comes from."""

from __future__ import annotations

import pdb
import subprocess
import sys
import re
import traceback
from pathlib import Path

import black
import pytest
import torch
from conftest import ROOT
from pinned import only_with

from remat_codegen.run import marked
from remat_codegen.verify import beside as comparing
from remat_codegen.show.results import Progress
from remat_codegen.ask.request import Request
from remat_codegen.ask.target import load_target

FIRST = ROOT / "generated" / "first"
FILES = sorted(FIRST.glob("*_remat.py"))
SECOND = sorted((ROOT / "generated").glob("*_remat.py"))
MODELS = {"vit_remat.py": "examples/vit.py:ViT", "encoder_decoder_remat.py": "examples/encoder_decoder.py:EncoderDecoder"}


def run(*words: object) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", *map(str, words)], capture_output=True, text=True, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_they_type_check(tmp_path):
    """As mypy does without settings."""
    code, text = run("mypy", "--config-file=", "--scripts-are-modules", "--cache-dir", tmp_path, *FILES)
    assert code == 0, text


def test_they_lint_clean():
    """With ruff's default rules."""
    code, text = run("ruff", "check", "--isolated", *FILES, *SECOND)
    assert code == 0, text


@only_with("black")
@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_black_leaves_them_as_they_are(file):
    text = file.read_text()
    assert black.format_str(text, mode=black.Mode()) == text


def test_the_readme_shows_what_is_generated():
    first = (ROOT / "README.md").read_text().partition("## Two commands")[0]
    shown, file = re.findall(r"```python\n(.*?)```", first, re.DOTALL), (ROOT / "generated" / "gpt2_remat.py").read_text()
    assert len(shown) == 2 and all(code in file for code in shown)


def lengths(file):
    """Lines of the whole file, and of what is not the user's own classes: these go from the first class to `rematerialize`."""
    lines = file.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("class "))
    last = next(i for i, line in enumerate(lines) if line.startswith("def rematerialize"))
    return len(lines), len(lines) - (last - first)


def test_there_is_little_to_review():
    whole, beside = lengths(FIRST / "gpt2_remat.py")
    assert whole < 600 and beside < 440


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["36%", "50%", "65%"])
def test_four_times_the_layers_are_hardly_more_to_read(budget, tmp_path):
    """Of marked files: layers that are treated alike are one row, and others a row each."""
    few, many = (
        marked_file(tmp_path / f"gpt2_{layers}.py", budget=budget, init=f"layers={layers}").splitlines() for layers in (12, 48)
    )
    assert len(many) <= 1.2 * len(few)


def marked_file(output, **asked):
    marked.generate(Request(f"{ROOT}/examples/gpt2.py:GPT2", output=output, edition=2, **asked), Progress(None))
    return output.read_text()


@pytest.fixture(params=MODELS)
def broken(request, monkeypatch):
    """A generated module, its file, a model and its inputs; break_(name, nth) makes the nth call of F.name fail."""
    file = FIRST / request.param
    target = load_target(str(ROOT / MODELS[request.param]))
    generated = comparing.load_generated(file)
    model = generated.rematerialize(target.module)

    def break_(name: str, nth: int) -> None:
        whole, calls = getattr(torch.nn.functional, name), iter(range(10**6))

        def fails(*given, **named):
            if next(calls) == nth:
                raise RuntimeError("broken on purpose")
            return whole(*given, **named)

        monkeypatch.setattr(generated.F, name, fails)

    return file, model.train(), target.args, break_


def frames_of(error: BaseException, file: Path) -> list[tuple[str, str]]:
    """The functions and lines of a file that a traceback goes through, outermost first."""
    source = file.read_text().splitlines()
    found = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == file and f.lineno]
    return [(f.name, source[f.lineno - 1].strip()) for f in found if f.lineno]


def test_an_exception_in_the_forward_pass_points_at_the_operation(broken):
    file, model, inputs, break_ = broken
    break_("layer_norm", 1)
    with pytest.raises(RuntimeError, match="broken on purpose") as caught:
        model(*inputs)
    names, lines = zip(*frames_of(caught.value, file), strict=True)
    assert names[:2] == ("forward", "run_forward") and "_forward" in names[2]
    assert "F.layer_norm(" in lines[-1]


def test_an_exception_in_a_rebuild_points_at_the_operation(broken):
    file, model, inputs, break_ = broken
    out = model(*inputs)
    break_("linear", 0)
    with pytest.raises(RuntimeError, match="broken on purpose") as caught:
        out.sum().backward()
    names, lines = zip(*frames_of(caught.value, file), strict=True)
    assert "run_backward" in names and names[-1].partition("_backward")[0].partition("_again")[0] in lines[-2]
    assert "F.linear(" in lines[-1]


def test_pdb_steps_through_a_block(broken, monkeypatch):
    """A breakpoint in a block function stops on its line, with the names that the line speaks of."""
    file, model, inputs, _ = broken
    number = next(n for n, line in enumerate(file.read_text().splitlines(), 1) if "F.layer_norm(" in line)
    seen = []

    class Debugger(pdb.Pdb):
        def user_line(self, frame):
            if Path(frame.f_code.co_filename) == file and frame.f_lineno == number:
                seen.append(sorted(frame.f_locals))
                self.clear_all_breaks()
            self.set_continue()

    debugger = Debugger(nosigint=True, readrc=False)
    assert debugger.set_break(str(file), number) is None
    debugger.runcall(model, *inputs)
    assert seen and "m" in seen[0]
