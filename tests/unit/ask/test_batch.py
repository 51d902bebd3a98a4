"""Inputs of another batch size: which sizes are the batch, and what the rows are."""

from __future__ import annotations

import pytest
import torch

from remat_codegen.ask.batch import Batch, batch_sizes, parse_batch, size_of, with_batch
from remat_codegen.errors import TargetError


def forward(x, y=None, scale=1.0):
    return x


@pytest.mark.parametrize(
    ("text", "batch"), [("16", Batch(16)), (" x.0=3 ", Batch(3, "x.0")), ("src.1, tgt.1 = 8", Batch(8, "src.1,tgt.1"))]
)
def test_what_is_written(text, batch):
    assert parse_batch(text) == batch
    assert parse_batch(str(batch)) == batch


@pytest.mark.parametrize("text", ["", "0", "-1", "x.0", "x.0=", "=4", "1.5", "four"])
def test_what_cannot_be_read(text):
    with pytest.raises(TargetError, match=r"--batch: cannot read .*; write --batch 16, or name the sizes"):
        parse_batch(text)


def test_rows_are_repeated_and_left_out():
    x, y = torch.arange(6).view(3, 2), torch.randn(3)
    (more, same), kwargs = with_batch(Batch(5), forward, (x, x), {"scale": 2.0, "y": y})
    assert torch.equal(more, x[[0, 1, 2, 0, 1]]) and same is more
    assert kwargs["scale"] == 2.0 and torch.equal(kwargs["y"], y[[0, 1, 2, 0, 1]])
    (fewer,), _ = with_batch(Batch(2), forward, (x,), {})
    assert torch.equal(fewer, x[:2])


def test_inputs_stay_leaves_of_their_layout():
    x = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    (made,), _ = with_batch(Batch(6), forward, (x,), {})
    assert made.is_leaf and made.requires_grad and made.is_contiguous(memory_format=torch.channels_last)
    (flat,), _ = with_batch(Batch(6), forward, (torch.randn(2, 1, 1),), {})
    assert flat.stride() == torch.empty(6, 1, 1).stride()


def test_named_sizes():
    args = torch.randn(5, 2, 3), torch.randn(7, 2)
    (x, y), _ = with_batch(Batch(4, "x.1,y.1"), forward, args, {})
    assert x.shape == (5, 4, 3) and y.shape == (7, 4)
    assert size_of(batch_sizes("x.1,y.1", forward, args, {})) == 2
    assert size_of(batch_sizes("x.-1", forward, (torch.randn(2, 1),), {})) == 1


@pytest.mark.parametrize(
    ("args", "places", "message"),
    [
        ((torch.randn(5, 2), torch.randn(7, 2)), "", r"--batch: cannot tell which size is the batch: x.0 is 5, y.0 is 7; name"),
        ((torch.randn(()),), "", "no input has a size that could be the batch; leave out --batch"),
        ((torch.randn(0, 2),), "", "cannot tell which size"),
        ((torch.randn(5, 2),), "z.0", r"--batch: no input is called 'z'; there are x"),
        ((torch.randn(5, 2),), "x.2", r"--batch: x has 2 dimensions, so there is no x.2; there are x.0, x.1"),
        ((torch.randn(5, 2),), "x", r"write --batch NAME.DIMENSION, such as x?idx.0"),
        ((torch.randn(5, 2),), "x.0,x.1", "cannot tell which size is the batch: x.0 is 5, x.1 is 2"),
    ],
)
def test_what_cannot_be_told(args, places, message):
    with pytest.raises(TargetError, match=message):
        with_batch(Batch(4, places), forward, args, {})
