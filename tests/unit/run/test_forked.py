"""What a copy of this process finds is what this process would find, and there is an answer whatever becomes of the copy."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time

import pytest

from remat_codegen.run import forked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux copies processes safely")


@pytest.fixture
def forking(monkeypatch):
    """Copies are made although a test runner has threads."""
    monkeypatch.setattr(forked, "can_fork", lambda: True)


def test_a_copy_finds_it(forking):
    with forked.begun(os.getpid) as work:
        assert work.apart
        assert work.result() == work.result() != os.getpid()


def test_nothing_is_an_answer(forking):
    with forked.begun(lambda: None) as work:
        assert work.result() is None


def test_this_process_finds_it_where_the_copy_comes_to_no_end(forking):
    here = os.getpid()
    with forked.begun(lambda: "found" if os.getpid() == here else os._exit(3)) as work:
        assert work.result() == "found"


def test_this_process_finds_it_where_the_copy_is_stuck(forking, monkeypatch):
    monkeypatch.setattr(forked, "PATIENCE", 0.01)
    here = os.getpid()
    with forked.begun(lambda: "found" if os.getpid() == here else time.sleep(100)) as work:
        assert work.result() == "found"


def test_an_error_is_raised_where_the_result_is_asked_for(forking, capfd):
    def fail():
        raise ValueError("it is wrong")

    with forked.begun(fail) as work, pytest.raises(ValueError, match="it is wrong"):
        work.result()
    assert capfd.readouterr() == ("", "")


def test_nobody_waits_for_what_is_not_asked(forking):
    began = time.monotonic()
    with forked.begun(lambda: time.sleep(100)):
        pass
    assert time.monotonic() - began < 50 and not multiprocessing.active_children()


def test_without_a_copy_it_is_found_when_it_is_asked():
    found = []
    with forked.begun(lambda: found.append(1), apart=False) as work:
        assert not work.apart and not found
        work.result()
        work.result()
    assert found == [1]


def test_no_copy_beside_other_threads():
    stop = threading.Event()
    other = threading.Thread(target=stop.wait, daemon=True)
    other.start()
    try:
        assert not forked.can_fork()
    finally:
        stop.set()
        other.join()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2 if sys.platform == "linux" else True, reason="there is no second core")
def test_a_command_may_make_one():
    code = "from remat_codegen.run import forked; raise SystemExit(not forked.can_fork())"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
