"""Every model of the catalogue trains with a smaller last batch, or the generation of its file says why not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import builders
import catalogue
import further
import more
import pytest

from remat_codegen.ask.batch import at_batch, parse_batch
from remat_codegen.ask.request import Request
from remat_codegen.ask.target import load_target
from remat_codegen.errors import BudgetError
from remat_codegen.run import marked
from remat_codegen.show.results import Progress
from remat_codegen.trace.training import deterministic_algorithms
from remat_codegen.verify.beside import compare, load_generated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
CATALOGUES = catalogue, more, further
NAMES = [n for c in CATALOGUES for n in c.NAMES if n not in getattr(c, "REFUSED", ())]
QUICK = {"planner": "dtr", "time_limit": 10.0}  # the catalogue takes hours by what is default


def generated(request: Request, progress: Progress) -> None:
    """The file, within a budget where something is to be forgotten: the least one, where that is more."""
    try:
        marked.generate(request, progress)
    except BudgetError as error:
        found = re.search(r"\((\d+) bytes\)", error.line())
        assert found is not None, error.line()
        marked.generate(replace(request, budget=found[1]), progress)


@pytest.mark.parametrize("name", NAMES)
def test_a_smaller_batch_is_exact_or_generation_says_why_it_is_none(name, tmp_path):
    builders.require(name)
    file = next(Path(c.__file__) for c in CATALOGUES if name in c.NAMES)
    output, inputs = tmp_path / f"{name}_remat.py", f"{file}:{name}_inputs"
    request = Request(f"{file}:{name}", "70%", output, inputs=inputs, batch="3", **QUICK)
    progress = Progress(None)
    generated(request, progress)
    if any("takes no other batch size" in note for note in progress.noted):
        return
    target = load_target(request.target, inputs=request.inputs)
    smaller = at_batch(target, parse_batch("2"))
    with deterministic_algorithms(True):  # some models (mvit_v2_s) are not the same from run to run without
        found = compare(target.module, load_generated(output).rematerialize, smaller.args, smaller.kwargs)
    assert found.identical, found.differences
