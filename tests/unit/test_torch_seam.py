"""What PyTorch does not promise stands in one module; versions that were not tried are told apart."""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings

import pytest
import torch
from conftest import ROOT

from remat_codegen import torch_seam
from remat_codegen.errors import VersionError

EXCEPT = {"torch_seam.py", "runtime.py", "parts.py", "training.py", "fresh_runner.py"}  # the last four run without the package
ON_OBJECTS = {"_cdata", "_schema", "_version", "_sequence_nr", "_buffers", "_forward_hooks", "_validate_args", "_C"}
MOVING = ("torch.fx.experimental", "torch.utils.checkpoint.CheckpointFunction")
OPERATIONS = "torch.ops."  # the two private ones are listed in the seam


def mentions(tree):
    """The names in a file that PyTorch does not promise, and their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
            if node.attr in ON_OBJECTS and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                yield node.lineno, node.attr
        else:
            names = []
        for name in names:
            private = any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
            if name.startswith("torch.") and not name.startswith(OPERATIONS) and (private or name.startswith(MOVING)):
                yield node.lineno, name


FILES = [p for p in sorted((ROOT / "remat_codegen").rglob("*.py")) if p.name not in EXCEPT]


@pytest.mark.parametrize("file", FILES, ids=lambda p: str(p.relative_to(ROOT / "remat_codegen")))
def test_private_names_of_pytorch_stand_in_the_seam_only(file):
    assert list(mentions(ast.parse(file.read_text()))) == []


def test_each_name_says_what_it_is_for():
    assert len(torch_seam.NAMES) > 20
    for path, name in torch_seam.NAMES.items():
        assert path == name.path and path.startswith("torch.")
        assert len(name.purpose) > 10 and len(name.without) > 10


def test_versions():
    for text in ("2.11.0", "2.13.0+cpu", "2.15.1", "2.15.0a0+git1234"):
        with warnings.catch_warnings(action="error"):
            torch_seam.check_version(text)
    with pytest.raises(VersionError, match=r"^PyTorch 2.10.1 is older than 2.11, .*; install 2.11 or newer$"):
        torch_seam.check_version("2.10.1")
    with pytest.warns(UserWarning, match="PyTorch 2.16.0 is newer than 2.15, the newest that remat-codegen was tried with"):
        torch_seam.check_version("2.16.0")


def test_a_name_that_is_not_there():
    with pytest.raises(VersionError, match=r"has no torch.autograd._gone, which does it: without it nothing works; install"):
        torch_seam._take("torch.autograd._gone", "which does it", "nothing works")
    assert torch_seam._take("torch._gone.thing", "which does it", "little is lost", optional=True) is None
    with pytest.raises(VersionError, match=r"has no torch.Tensor._gone"):
        torch_seam._held("torch.Tensor._gone", torch.zeros(1), "which does it", "nothing works")
    for path in ("torch.autograd._gone", "torch._gone.thing", "torch.Tensor._gone"):
        del torch_seam.NAMES[path]


def test_functions_that_are_called_in_another_way(monkeypatch):
    monkeypatch.setattr(torch_seam, "_WATCHED", frozenset())  # as if `apply` did not look anything up
    calls = torch_seam.FunctionCalls(lambda cls, args, kwargs: None, lambda cls: None)
    with pytest.raises(VersionError, match=r"has no torch.autograd.Function._backward_cls"), calls.replaced():
        pass


AS_VERSION = "import sys, torch; torch.__version__ = {!r}; from remat_codegen.cli.main import main; main()"


def started_with(version, tmp_path, *words):
    text = "import torch\n\n\nclass Net(torch.nn.Linear):\n    pass\n\n\ndef example_inputs():\n    return torch.randn(4, 8)\n"
    (tmp_path / "net.py").write_text(text)
    code = AS_VERSION.format(version)
    return subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True)


def test_an_older_version_is_refused_in_a_sentence(tmp_path):
    ran = started_with("2.6.0", tmp_path, "net.py:Net", "--init", "8, 8", "--budget", "100%")
    assert ran.returncode == 2 and len(ran.stderr.strip().splitlines()) == 1
    assert "PyTorch 2.6.0 is older than 2.11" in ran.stderr
    assert not (tmp_path / "net_remat.py").exists()


def test_a_newer_version_warns_once_and_goes_on(tmp_path):
    ran = started_with("2.99.0", tmp_path, "net.py:Net", "--init", "8, 8", "--budget", "100%", "--no-cache")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("PyTorch 2.99.0 is newer than") == 1 and "VersionWarning" not in ran.stderr
    assert (tmp_path / "net_remat.py").exists()
