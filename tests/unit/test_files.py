"""Writing files whole or not at all."""

from __future__ import annotations

import os
import stat

import pytest

from remat_codegen.errors import OutputError
from remat_codegen.files import check_writable, write_atomically


def test_writes_and_replaces(tmp_path):
    path = tmp_path / "out.py"
    write_atomically(path, "one\n")
    write_atomically(path, "zwei ü\n")
    assert path.read_bytes() == "zwei ü\n".encode()
    assert os.listdir(tmp_path) == ["out.py"]


def test_modes(tmp_path):
    path, other = tmp_path / "out.py", tmp_path / "other.py"
    path.write_text("")
    path.chmod(0o755)
    other.write_text("")
    write_atomically(path, "x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    write_atomically(tmp_path / "new.py", "x")
    assert (tmp_path / "new.py").stat().st_mode == other.stat().st_mode


def test_a_link_stays_a_link(tmp_path):
    path, link = tmp_path / "out.py", tmp_path / "link.py"
    link.symlink_to(path)
    write_atomically(link, "x")
    assert link.is_symlink() and path.read_text() == "x"


@pytest.mark.parametrize("function", [check_writable, lambda path: write_atomically(path, "x")])
def test_places_that_cannot_be_written(tmp_path, function):
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    for path, named in (
        (tmp_path, "is a folder"),
        (tmp_path / "missing" / "out.py", "does not exist"),
        (tmp_path / "file" / "out.py", "cannot be written"),
        (tmp_path / "pipe", "not a regular file; name a file to write"),
    ):
        with pytest.raises(OutputError, match=named) as caught:
            function(path)
        assert caught.value.line().startswith(str(path))
    assert sorted(os.listdir(tmp_path)) == ["file", "pipe"]


def test_checking_leaves_the_file_as_it_is(tmp_path):
    path = tmp_path / "out.py"
    path.write_text("old")
    check_writable(path)
    check_writable(tmp_path / "new.py")
    assert os.listdir(tmp_path) == ["out.py"] and path.read_text() == "old"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_whatever_goes_wrong_the_old_file_stays(tmp_path, monkeypatch, error):
    path = tmp_path / "out.py"
    path.write_text("old")

    def fail(_):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((OutputError, KeyboardInterrupt)):
        write_atomically(path, "new")
    assert os.listdir(tmp_path) == ["out.py"] and path.read_text() == "old"
