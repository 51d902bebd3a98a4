"""The documentation: it is built without a warning, and what it shows is run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

DOCS = ROOT / "docs"
FENCED = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_it_is_built_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", ROOT / "mkdocs.yml", "-d", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.parametrize("file", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda f: f.name)
def test_files_that_it_names_are_there(file):
    text = re.sub(r"^```.*?^```", "", file.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    named = re.findall(r"`((?:examples|benchmarks|generated|tests|docs)/[\w./-]+)`", text)
    missing = [n for n in [file.parent / link for link in links] + [ROOT / n for n in named] if not n.exists()]
    assert not missing


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path):
    """Its commands, its files (which begin with their name), and its code, in the order in which they stand."""
    blocks = FENCED.findall((DOCS / "tutorial.md").read_text())
    assert {kind for kind, _ in blocks} == {"python", "console"}
    before = ""  # the code so far, which goes on in the next block
    for kind, text in blocks:
        name = re.match(r"# (\w+\.py)\n", text)
        if name:
            Path(tmp_path, name[1]).write_text(text)
        elif kind == "python":
            before += text
            run([sys.executable, "-c", before], tmp_path)
        for line in text.splitlines() if kind == "console" else ():
            program, *words = shlex.split(line.removeprefix("$ "))
            if program == "remat-codegen":
                run([sys.executable, "-m", "remat_codegen", *words], tmp_path)
            else:
                assert program == "diff" and all(Path(tmp_path, w).exists() for w in words)


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
