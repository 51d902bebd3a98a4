"""What the tests of files in a process of their own share: a model file is generated from by the command line, and then trained
in a new process that imports what its user would: the generated file alone where that carries the class."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from remat_codegen.cli import main

FORWARD = "    def forward(self, x):\n        return self.b(torch.tanh(self.a(x)).exp().sin())\n"
INPUTS = "\ndef example_inputs():\n    torch.manual_seed(1)\n    return (torch.randn(8, 4),)\n"

TRAINING = """
import sys, torch
{imports}
state, args, at, want = torch.load({saved!r})
model = {model}
model.load_state_dict(state)
found = []
for training in (True, False):
    out = model.train(training)(*args)
    out.sum().backward()
    found += [out.detach(), *(p.grad.clone() for p in model.parameters())]
if want is None:
    torch.save((state, args, at, found), {saved!r})
else:
    off = [i for i, (a, b) in enumerate(zip(found, want, strict=True)) if not torch.equal(a, b)]
    assert not off, ("differs from the original in", off)
    assert {after}
"""


def model_file(top: str = "", forward: str = FORWARD, bottom: str = "", bases: str = "nn.Module", extra: str = "") -> str:
    """A small model, with statements before and after it."""
    init = "    def __init__(self):\n        super().__init__()\n        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)\n"
    return f"import torch\nfrom torch import nn\n{top}\n\nclass Net({bases}):\n{init}{forward}{extra}\n{INPUTS}\n{bottom}"


def run_python(code: str, folder: Path) -> None:
    """Runs code in a process that sees a folder and PyTorch, not this package. Raises with what it said."""
    env = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def generated(text: str, folder: Path, name: str = "Net") -> str:
    """Writes a model file and generates from it, as the command line does; returns the generated text."""
    (folder / "model.py").write_text(text)
    made = folder / "made.py"
    code = (
        "import sys, torch; from remat_codegen.cli import main; "
        f"sys.argv = ['remat-codegen', 'model.py:{name}', '--budget', '80%', '-o', 'made.py', '--quiet']; main()"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made.read_text()


def trains_as_the_original(text: str, folder: Path, carried: bool | None, name: str = "Net") -> str:
    """Asserts that a generated file trains, in a process of its own, as the original does in another, and that the original
    still does beside it; returns the generated text."""
    made = generated(text, folder, name)
    assert carried is None or carried == ("a class that wraps" not in made), "carried" if not carried else "wrapped"
    saved = str(folder / "saved.pt")
    start = f"import torch, model; torch.manual_seed(0); m = model.{name}()\n"
    start += f"torch.save((m.state_dict(), model.example_inputs(), None, None), {saved!r})"
    run_python(start, folder)

    def train(imports: str, model: str) -> None:
        run_python(TRAINING.format(imports=imports, model=model, saved=saved, after="'model' in sys.modules or True"), folder)

    train("import model", f"model.{name}()")
    if "a class that wraps" in made:
        train("import model, made", f"made.rematerialize(model.{name}())")
    else:
        train("import made", f"made.{name}()")
    train("import model, made", f"model.{name}()")
    return made
