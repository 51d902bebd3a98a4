"""What is printed into a file evaluates to the same thing, to the bit."""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_codegen.emit.spell import literal

DTYPES = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)
FORMATS = [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d]
LAYOUTS = [torch.strided, torch.sparse_coo, torch.sparse_csr]
DEVICES = [torch.device(d) for d in ("cpu", "cuda", "cuda:3", "meta", "cpu:0")]


def printed(value):
    """A value after it was printed and read again, as generated files read it."""
    return eval(literal(value, str), {"torch": torch, "float": float, "complex": complex})


def bits(value):
    """A number's type and bits, so that NaN is NaN and -0.0 is not 0.0."""
    if isinstance(value, complex):
        return complex, bits(value.real), bits(value.imag)
    if isinstance(value, float):
        return (float, "nan") if value != value else (float, struct.pack("d", value))
    if isinstance(value, (list, tuple)):
        return type(value), [bits(v) for v in value]
    return type(value), value


@pytest.mark.parametrize("value", [*DTYPES, *FORMATS, *LAYOUTS], ids=str)
def test_dtypes_formats_and_layouts(value):
    assert printed(value) is value


@pytest.mark.parametrize("value", DEVICES, ids=str)
def test_devices(value):
    """A device is printed as its name, which every function takes for it; a GPU as the one that the step runs on."""
    if value.type == "cuda":
        assert literal(value, str) == "device"
    else:
        assert torch.device(printed(value)) == value


NUMBERS = st.integers() | st.floats() | st.complex_numbers() | st.booleans() | st.none()
PLAIN = NUMBERS | st.text() | st.sampled_from(["\x00", "\u2028", '"""', "'''", "\\", "\r\n", "{x}", "\ud800"])


@settings(max_examples=300)
@given(st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple), max_leaves=8))
def test_numbers_text_and_structures(value):
    text = literal(value, str)
    assert "\n" not in text and bits(printed(value)) == bits(value)


@pytest.mark.parametrize("value", [float("nan"), -float("inf"), -0.0, 1e-320, complex(-0.0, float("inf")), 2**80, True])
def test_numbers_that_are_easily_lost(value):
    assert bits(printed(value)) == bits(value)


@pytest.mark.parametrize("value", [object(), {1}, b"x", range(3)])
def test_what_cannot_be_printed_is_refused(value):
    with pytest.raises(TypeError, match="cannot print"):
        literal(value, str)
