"""Committed bytes are compared with the versions of constraints.txt only."""

import subprocess
import sys

import pinned
import pytest
from conftest import ROOT


@pytest.fixture
def newer(monkeypatch):
    """An environment with a newer torch."""
    monkeypatch.setattr(pinned, "version", {"torch": "99.0.0+cpu", "black": pins()["black"]}.get)


def pins():
    lines = pinned.CONSTRAINTS.read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_a_build_for_another_device_is_the_same_version(monkeypatch):
    monkeypatch.setattr(pinned, "version", lambda package: pins()[package] + "+cu130")
    assert pinned.others() == pinned.others("ruff") == ""


def test_another_version_is_named(newer):
    assert pinned.others() == f"torch is 99.0.0, not {pins()['torch']}"
    assert pinned.others("black") == ""


def test_golden_files_are_not_written_with_other_versions():
    """pytest's own start, with a torch that says that it is another."""
    code = (
        "import pinned, pytest, sys; pinned.version = lambda package: '99.0';"
        "sys.exit(pytest.main(['tests/golden', '--update-golden', '--collect-only', '-q', '-p', 'no:cacheprovider']))"
    )
    path = {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR and "torch is 99.0, not" in done.stderr + done.stdout
