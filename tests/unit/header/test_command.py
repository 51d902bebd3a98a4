"""The command, or the call, that a header says a file is made by: what is written is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_codegen.ask.request import Request
from remat_codegen.errors import VerifyError
from remat_codegen.header.command import command_of, join_words, option_in, request_in, split_words
from remat_codegen.header.saved_plan import SavedPlan

FILE = Path("x y.py")
TEXTS = st.text(min_size=1)


def plan_for(request: Request) -> SavedPlan:
    return SavedPlan("0" * 64, request.planner, "feasible", request.budget, 1, 1, 1, 0.0, None, request.device, (0,))


def written(request: Request) -> str:
    """A header with no more than the line that makes the file."""
    line = command_of(request, plan_for(request))
    assert len(line.splitlines()) == 1
    return f"#     {line}\n"


@given(
    init=st.text(),
    inputs=st.none() | st.text(),
    device=st.sampled_from(["cpu", "cuda", "cuda:1"]),
    planner=st.sampled_from(["auto", "rockmate"]),
    seed=st.integers(0, 9),
    autocast=st.none() | TEXTS,
    loss=st.none() | st.sampled_from(["sum", "none"]),
    batch=st.text(),
    dynamic=st.text(),
    edition=st.sampled_from([1, 2]),
)
def test_a_request_comes_back_from_its_command(**asked):
    batch = asked.pop("batch").replace(",", "")
    request = Request("a b.py:Net", "40%", FILE, batch=batch, **asked)
    assert request_in(written(request), "", FILE) == request


@pytest.mark.parametrize("edition", [None, 1, 2])
def test_a_command_names_the_edition_that_has_marks(edition):
    request = Request("model.py:Net", "40%", FILE, edition=edition, static=True)
    assert request_in(written(request), "", FILE) == replace(request, edition=2 if edition == 2 else 1)


def test_a_request_comes_back_from_its_call():
    request = Request("Net", "40%", FILE, device="cuda:1", seed=7, static=True, inputs="int64[4]", edition=2, given=True)
    text = written(request)
    assert (
        text == "#     remat_codegen.plan(model, 'int64[4]', budget='40%', device='cuda:1', static=True, seed=7, edition=2)\n"
    )
    assert request_in(text, "Net", FILE) == request
    assert option_in(text, "device") == "cuda:1" and option_in(text, "batch") is None


def test_a_command_names_no_folder_of_one_machine():
    request = Request("/home/ann/model.py:Net", "40%", FILE, inputs="/home/ann/data.py:batch")
    assert command_of(request, plan_for(request)).startswith("remat-codegen model.py:Net --budget 40% --inputs data.py:batch ")


@pytest.mark.parametrize("words", ["model.py:Net --budget", "a:B --budget 1", "'a -o b"])
def test_a_damaged_command_is_refused(words):
    with pytest.raises(VerifyError, match="cannot read the command in its header"):
        request_in(f"#     remat-codegen {words}\n", "", FILE)


@pytest.mark.parametrize("call", ["plan(model)", "plan(model, inputs, sizes=3)", "plan(model, inputs, budget=1GiB)"])
def test_a_damaged_call_is_refused(call):
    with pytest.raises(VerifyError, match="cannot read the call in its header"):
        request_in(f"#     remat_codegen.{call}\n", "", FILE)


@given(st.lists(st.text(), min_size=1))
def test_words_come_back_from_a_line(words):
    line = join_words(words)
    assert split_words(line) == words and line.isprintable()
