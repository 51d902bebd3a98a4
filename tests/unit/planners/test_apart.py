"""A bound that another process finds is the one that this process would find, and there is one whatever becomes of it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from graphs import random_graph

from remat_codegen.planners.base import apart
from remat_codegen.planners.base.bound import Bound, bound
from remat_codegen.schedule import simulate, without_recomputation


@pytest.fixture
def asked(monkeypatch):
    """A graph, its costs and a budget, for which another process may be asked."""
    monkeypatch.setattr(apart, "LARGE", 1)
    monkeypatch.setattr(apart, "_cores", lambda: 2)
    graph, profile = random_graph(3, 12)
    return graph, profile, simulate(graph, profile, without_recomputation(graph)).peak_bytes * 7 // 10


@pytest.fixture
def begun(monkeypatch):
    """The processes that were made."""
    made = []

    class Noted(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    return made


def test_another_process_finds_the_same(asked, begun):
    with apart.begun(*asked) as later:
        assert later(None) == bound(*asked)
    assert [process.returncode for process in begun] == [0]


def test_it_says_where_nothing_fits(asked):
    with apart.begun(*asked[:2], 1) as later:
        assert later(None) == bound(*asked[:2], 1)


def test_who_needs_no_bound_leaves_no_process(asked, begun):
    with pytest.raises(KeyboardInterrupt), apart.begun(*asked):
        raise KeyboardInterrupt
    assert [process.poll() is not None for process in begun] == [True]


@pytest.mark.parametrize("program", ["/nowhere/python", sys.executable, None])
def test_there_is_a_bound_though_no_process_comes_of_it(asked, program, monkeypatch):
    monkeypatch.setattr(sys, "executable", program)
    monkeypatch.setattr(apart, "__name__", "remat_codegen.nowhere")
    with apart.begun(*asked) as later:
        assert later(None) == bound(*asked)


def test_small_graphs_and_limited_time_need_none(asked, begun, monkeypatch):
    with apart.begun(*asked, apart=False) as later:
        assert later(5.0) == bound(*asked)
    monkeypatch.setattr(apart, "LARGE", 10**6)
    with apart.begun(*asked) as later:
        assert later(None) == bound(*asked)
    assert not begun


def test_it_ends_with_who_asked(asked, monkeypatch):
    monkeypatch.setattr(apart.os, "getppid", lambda: 1)
    monkeypatch.setattr(apart.os, "_exit", lambda code: codes.append(code))
    codes = []
    apart._end_with(2)
    assert codes == [1]


def test_what_is_no_answer_is_none(asked):
    process = subprocess.Popen([sys.executable, "-c", "print('a b c')"], stdout=subprocess.PIPE)
    assert apart._answer(process) is None
    process = subprocess.Popen([sys.executable, "-c", "print(None, 4)"], stdout=subprocess.PIPE)
    assert apart._answer(process) == Bound(None, 4)
