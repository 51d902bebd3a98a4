"""Which kernel attention takes on a GPU, by rule: what PyTorch's `sdp_utils.cpp` asks of the GPU's generation, and of operands.

It stands for PyTorch as its wheels come: with flash, memory-efficient and cuDNN's attention built in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.nn.attention import SDPBackend

from remat_codegen.profile.devices import Device

HALVES = (torch.float16, torch.bfloat16)
OLDEST, NEWEST = (8, 0), (12, 1)  # generations for which flash and cuDNN's kernels are built
SMALL = ((8, 6), (8, 9)), ((12, 0), (12, 1))  # whose shared memory is too small for a backward pass of wide heads
CUDNN_FIRST = (9, 10)  # the generations on which cuDNN's kernel is the first choice
USUAL = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION)
MOST_ROWS = 65535  # cuDNN's


@dataclass(frozen=True, slots=True)
class Attention:
    """A call of scaled_dot_product_attention."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None = None
    dropout: float = 0.0
    causal: bool = False
    grouped: bool = False

    @property
    def operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value."""
        return self.query, self.key, self.value

    @property
    def trains(self) -> bool:
        """Whether a gradient comes back."""
        return torch.is_grad_enabled() and any(t.requires_grad for t in self.operands)


def kernel_for(call: Attention, gpu: Device, allowed: tuple[SDPBackend, ...]) -> SDPBackend:
    """The kernel that a GPU takes, of those `allowed`, in the order in which they are asked."""
    able = {
        SDPBackend.CUDNN_ATTENTION: takes_cudnn,
        SDPBackend.FLASH_ATTENTION: takes_flash,
        SDPBackend.EFFICIENT_ATTENTION: takes_efficient,
    }
    return next((k for k in _ordered(allowed, gpu) if k in able and able[k](call, gpu)), SDPBackend.MATH)


def _ordered(allowed: tuple[SDPBackend, ...], gpu: Device) -> Iterable[SDPBackend]:
    usual = allowed == tuple(k for k in USUAL if k in allowed) + tuple(k for k in allowed if k not in USUAL)
    first = usual and gpu.compute_capability[0] in CUDNN_FIRST
    ordered = sorted(allowed, key=lambda k: k is not SDPBackend.CUDNN_ATTENTION) if first else list(allowed)
    return ordered[: ordered.index(SDPBackend.MATH)] if SDPBackend.MATH in ordered else ordered


def takes_flash(call: Attention, gpu: Device) -> bool:
    """Whether flash attention takes a call: halves, four dimensions, no mask, heads of at most 256."""
    heads = {t.shape[-1] for t in call.operands}
    width = call.query.shape[-1]
    small = any(low <= gpu.compute_capability <= high for low, high in SMALL)
    too_wide = call.trains and small and width > 192 and (width <= 224 or call.dropout > 0)
    square = not call.causal or call.query.shape[-2] == call.key.shape[-2]
    return (
        _is_plain(call, HALVES)
        and OLDEST <= gpu.compute_capability <= NEWEST
        and call.mask is None
        and len(heads) == 1
        and width <= 256
        and square
        and not too_wide
    )


def takes_efficient(call: Attention, gpu: Device) -> bool:
    """Whether memory-efficient attention takes a call: aligned heads, and no bfloat16 before Ampere."""
    ampere = gpu.compute_capability[0] >= 8
    types = (*HALVES, torch.float32) if ampere else (torch.float16, torch.float32)
    half = call.query.dtype in HALVES
    tensor_cores = ampere or (gpu.compute_capability[0] >= 7 and half)
    least = 4 if ampere else 1
    aligned = max(least, 8 if half else 4) if tensor_cores else least
    width, depth = call.query.shape[-1], call.value.shape[-1]
    fits = width == call.key.shape[-1] and width % aligned == depth % aligned == 0
    places = (t.storage_offset() * t.element_size() % (aligned * t.element_size()) for t in call.operands)
    plain = _is_plain(call, types, groups=shares_heads())
    return plain and fits and not (ampere and any(places)) and not _refuses_mask(call)


def takes_cudnn(call: Attention, gpu: Device) -> bool:
    """Whether cuDNN's attention takes a call: halves, heads of at most 128, and dropout in sixteenths."""
    batch, heads, length, width = call.query.shape if call.query.dim() == 4 else (0, 0, 0, 0)
    depth, keys = call.value.shape[-1], call.key.shape[-2]
    return (
        _is_plain(call, HALVES)
        and OLDEST <= gpu.compute_capability <= NEWEST
        and not torch.are_deterministic_algorithms_enabled()
        and call.dropout * 16 == int(call.dropout * 16)
        and max(batch, heads) <= MOST_ROWS
        and max(width, depth) <= 128
        and width % 8 == depth % 8 == 0
        and keys != 1
        and (length != 1 or not call.dropout)
    )


@lru_cache(maxsize=1)
def shares_heads() -> bool:
    """Whether memory-efficient attention of this PyTorch has several heads of the query share one of keys and values, and all
    kernels one that all share without being told (pytorch#191085, since 2.14): then gradients have as many as the keys."""
    query, key = (torch.empty(1, heads, 8, 8, device="meta") for heads in (2, 1))
    rest = torch.empty(1, 2, 8, device="meta"), *torch.empty(2, dtype=torch.int64, device="meta").unbind()
    backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward
    given = backward(query, query, key, key, None, query, *rest, 0.0, [True, True, True, False])
    return bool(given[1].shape == key.shape)


def _is_plain(call: Attention, types: tuple[torch.dtype, ...], groups: bool = True) -> bool:
    """Whether all fused kernels could take operands of this form: of one type, with four dimensions, none of them empty, the
    last of them in order, and as many heads for all, or groups of them."""
    query, key, value = call.operands
    if {t.dim() for t in call.operands} != {4} or {t.dtype for t in call.operands} - set(types):
        return False
    if len({t.dtype for t in call.operands}) > 1 or not all(t.numel() and t.stride(-1) == 1 for t in call.operands):
        return False
    heads = [t.shape[1] for t in call.operands]
    shared = heads[1] == heads[2] and heads[0] % heads[1] == 0 and (call.grouped or heads[1] == 1 and shares_heads())
    return query.shape[0] == key.shape[0] == value.shape[0] and (len(set(heads)) == 1 or groups and shared)


def _refuses_mask(call: Attention) -> bool:
    return call.mask is not None and call.mask.requires_grad and call.grouped
