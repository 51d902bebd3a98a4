"""Whether the tests run with the versions that committed bytes were written with: what a trace holds is torch's choice, and a
file's layout black's. With other versions what was committed is run instead."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"
DECISIVE = "torch", "black"


def others(*packages: str) -> str:
    """Which packages (torch and black, if none are named) are not of the versions in constraints.txt, such as
    "torch is 2.15.0, not 2.13.0"; empty where all are."""
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", CONSTRAINTS.read_text(), re.MULTILINE))
    found = {p: version(p).partition("+")[0] for p in packages or DECISIVE}  # 2.13.0+cpu is 2.13.0
    return ", ".join(f"{p} is {v}, not {pins[p]}" for p, v in found.items() if v != pins[p])


def only_with(*packages: str) -> pytest.MarkDecorator:
    """Leaves a test out where a package is not of the version in constraints.txt."""
    return pytest.mark.skipif(bool(others(*packages)), reason=others(*packages))
