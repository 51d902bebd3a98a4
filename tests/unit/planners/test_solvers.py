"""Which solver plans: HiGHS where it works, CBC where what is installed cannot be used. Each in a process of its own, because
python-mip looks for its libraries once."""

import importlib.util
import json
import os
import subprocess
import sys

import _cffi_backend
import pytest
from conftest import ROOT

CHAIN = [{"id": i, "time": 1, "size": 10, "deps": [i - 1] if i else []} for i in range(12)]
ASK = "from remat_codegen.planners.base import milp; print(milp.Program().model.solver_name, milp.solver().note)"


def run(*words, packages=None, library=None):
    """What a Python command says; `packages` is a folder to find packages in first, `library` what is named as HiGHS's."""
    given = {k: v for k, v in os.environ.items() if k != "PMIP_HIGHS_LIBRARY"}
    given["PYTHONPATH"] = os.pathsep.join(str(p) for p in (packages, ROOT) if p is not None)
    named = {} if library is None else {"PMIP_HIGHS_LIBRARY": str(library)}
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, env=given | named)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def hidden(tmp_path):
    """A highspy whose library keeps HiGHS's functions to itself, as 1.16.0's does, and no highsbox."""
    files = {"highspy": "", "highspy/_core": f"__file__ = {_cffi_backend.__file__!r}", "highsbox": "raise ImportError"}
    for name, text in files.items():
        folder = tmp_path / "packages" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(text)
    return tmp_path / "packages"


def test_cbc_plans_where_the_highs_that_is_installed_cannot_be_used(hidden):
    said = run("-c", ASK, packages=hidden).stdout
    assert said.startswith("CBC ") and "cannot use the HiGHS of highspy" in said and "`pip install highsbox`" in said


def test_cbc_plans_where_the_named_library_cannot_be_used(tmp_path):
    said = run("-c", ASK, library=tmp_path / "none.so").stdout
    assert said.startswith("CBC ") and f"PMIP_HIGHS_LIBRARY={tmp_path}/none.so; unset" in said


@pytest.mark.skipif(importlib.util.find_spec("highsbox") is None, reason="highsbox is not installed")
def test_highs_plans_where_it_works():
    assert run("-c", ASK).stdout == "HIGHS None\n"


@pytest.mark.parametrize("verb", [("plan", "--budget", "60%", "--planner", "checkmate"), ("compare", "--budgets", "60%,80%")])
def test_a_command_says_so_once(verb, hidden, tmp_path):
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps(CHAIN))
    name, *options = verb
    planners = ["--planners", "checkmate,rotor"] if name == "compare" else []
    words = ["-m", "remat_codegen", name, graph, *options, *planners, "--add-backward"]
    done = run(*words, packages=hidden)
    assert done.stderr.count("note: CBC plans") == 1 and "Error" not in done.stderr
