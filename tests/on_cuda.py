"""What the tests in cuda/ share; tests/conftest.py loads it. Without a CUDA device each of them is skipped, and says why.

It is no conftest.py of theirs: tests import names from `conftest`, of which there can be one.

    make test-nullgpu           on a GPU that computes nothing (tests/nullgpu/README.md); NDEV=2: on two
    make gpu PART=tests         on a real one

A test takes what it needs as arguments:

- `device`, "cuda:0", or `second_device`, "cuda:1", which skips the test where there is one device only;
- `@pytest.mark.real_gpu` where values or times matter: the null GPU's kernels write nothing and take no time.

Files in there import torch at their top and this package inside of their tests, so that skipping them costs nothing.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).with_name("cuda")
NO_GPU = "there is no CUDA device: make test-nullgpu brings one that computes nothing, make gpu wants a real one"
NULL_GPU = "needs values or times, and the null GPU's kernels do nothing (tests/nullgpu/README.md)"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real_gpu: looks at values or times, which the null GPU has none of")


@functools.cache
def computes() -> bool:
    """Whether kernels of device 0 do anything; on the null GPU they do not. Asks the device once."""
    number = 0.7261  # not what memory is likely to hold
    return torch.full((1,), number, device="cuda:0").item() == torch.full((1,), number).item()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what cannot run here. Is called with all items of the session, of which others are left alone."""
    for item in items:
        if FOLDER not in item.path.parents:
            continue
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason=NO_GPU))
        elif item.get_closest_marker("real_gpu") and not computes():
            item.add_marker(pytest.mark.skip(reason=NULL_GPU))


@pytest.fixture
def device() -> str:
    """The first CUDA device."""
    return "cuda:0"


@pytest.fixture
def second_device() -> str:
    """Another CUDA device than `device`."""
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one CUDA device only: NDEV=2 make test-nullgpu has two")
    return "cuda:1"
