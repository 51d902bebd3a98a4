"""What generated functions say about themselves."""

from __future__ import annotations

import pytest

from remat_codegen.emit.about import pattern, size


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["h.0", "h.1", "h.11"], "h.*"),
        (["h.3"], "h.3"),
        (["h.3", "h.3"], "h.3"),
        (["encoder.0.attn", "encoder.1.attn"], "encoder.*.attn"),
        (["encoder.0", "decoder.0"], "*.0"),
        (["encoder.0", "decoder.1"], ""),
        (["down.0.1", "down.1.0"], "down"),
        (["down.0", "down.0.1"], "down.0"),
        (["down.0", "down.1.1"], "down"),
        (["", "h.0"], ""),
        ([""], ""),
    ],
)
def test_the_modules_of_equal_blocks_have_one_name(paths, expected):
    assert pattern(paths) == expected


def test_sizes_are_readable():
    assert [size(n) for n in (0, 100, 52_000, 2**20, 3 * 2**30)] == ["0.0 KiB", "0.1 KiB", "50.8 KiB", "1.0 MiB", "3,072.0 MiB"]
