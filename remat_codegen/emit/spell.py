"""Spells an operation as people write it; what has no name of its own is called through torch.ops, which is always exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from remat_codegen.emit.shapes import Spelled
from remat_codegen.graph.nature import STATISTICS
from remat_codegen.torch_seam import schema
from remat_codegen.trace import Operation, Ref, function_call, without_kernels
from remat_codegen.trace.sizes import Size

ENDLESS = 2**62  # torch.export's way to say: up to the end
DEVICE = "device"  # the name of the accelerator that a step runs on: any of its kind, whichever it was traced on

Tensor = Callable[[int], str]  # the expression for a variable
ClassExpression = Callable[[type], str]  # the expression for a Function of the user's

# Those that torch.nn.functional, torch and Tensor offer under the same name, with the same arguments in the same order. What
# is not listed here, or below, goes by torch.ops.
_FUNCTIONAL = frozenset(
    (
        "linear gelu silu relu softplus conv1d conv2d conv3d mish hardswish hardsigmoid leaky_relu max_pool2d avg_pool2d "
        "adaptive_avg_pool2d pad conv_transpose1d conv_transpose2d hardtanh"
    ).split()
)
_TORCH = frozenset(
    (
        "matmul bmm exp log sqrt rsqrt tanh sigmoid tril triu bitwise_not logical_not where sin cos abs neg mm cat stack "
        "erf log1p cumsum zeros_like ones_like rand_like randn_like empty_like full_like maximum minimum einsum"
    ).split()
)
_METHODS = frozenset(
    (
        "view transpose permute reshape contiguous split chunk unsqueeze squeeze flatten expand masked_fill unbind t sum mean "
        "amax amin square pow clamp roll detach clone argmax any all"
    ).split()
)
_PLAIN = frozenset("default self input int Tensor Scalar dim using_ints dim_IntList Tensor_Scalar".split()) | {""}
_BINARY = {"add.Tensor": "+", "sub.Tensor": "-", "mul.Tensor": "*", "div.Tensor": "/", "matmul.default": "@"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_OPERATORS = {"floor_divide": "//", "remainder": "%"}
_OPERATORS |= {"__and__": "&", "__or__": "|", "__xor__": "^", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
_RENAMED = {"im2col": "unfold", "col2im": "fold"}
_REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}
TRAINING_ARGUMENT = {"dropout": 2, "batch_norm": 5, "feature_dropout": 2, "alpha_dropout": 2, "instance_norm": 5}


def _by_name(kind: type) -> str:
    return kind.__qualname__


def spell(
    operation: Operation,
    tensor: Tensor,
    training: str | None,
    again: bool = False,
    way: int = 0,
    class_expression: ClassExpression = _by_name,
) -> str:
    """A Python expression for `operation`: one of its spellings, by number."""
    found = spellings(operation, tensor, training, again, class_expression)
    return found[way] or str(found[-1])


def spellings(
    operation: Operation,
    tensor: Tensor,
    training: str | None = None,
    again: bool = False,
    class_expression: ClassExpression = _by_name,
) -> list[str | None]:
    """How `operation` may be spelled, the best first; whether a spelling does the same has to be proved (proof.py). The last
    one, a call of torch.ops, always does. None stands for a way that does not fit.

    `training` is the expression for its module's training flag, if it has to follow it. `again` leaves the running statistics
    where they are: an operation that runs a second time moves copies of them. `class_expression` says how to reach a class.
    """
    call_of = function_call(operation.target)
    if call_of is not None:  # there is but one way
        arguments = ", ".join(literal(a, tensor) for a in call_of.given(operation.args))
        return [f"{class_expression(call_of.function)}.apply({arguments})"]
    operation = replace(operation, target=without_kernels(operation.target))
    base = operation.base
    overload = operation.target._overloadname
    values = [literal(a, tensor) for a in operation.args]
    keywords = _keywords(operation, tensor)
    position = TRAINING_ARGUMENT.get(base.rstrip("_"))
    if training is not None and position is not None and position < len(values):
        values[position] = training
    if training is not None and base == "scaled_dot_product_attention" and len(values) > 4:
        values[4] = f"({values[4]} if {training} else 0.0)"
    for place in STATISTICS.get(base, ()) if again else ():
        values[place] = values[place] if values[place] == "None" else f"{values[place]}.clone()"
    call = ", ".join([*values, *(f"{k}={v}" for k, v in keywords)])
    return [
        _simple(operation, base, overload, values, keywords, tensor),
        _operator(operation, base, values, tensor),
        _loss(operation, base, values),
        _resizing(base, values),
        _method(operation, base, values, keywords),
        *_functions(base, call),
        f"torch.ops.{schema(operation.target).name.replace('::', '.')}.{overload or 'default'}({call})",
    ]


def _operator(operation: Operation, base: str, values: list[str], tensor: Tensor) -> str | None:
    """`a & b`, and `x[i, j]` with tensors for indices."""
    if base in _OPERATORS and len(values) == 2:
        return f"({values[0]} {_OPERATORS[base]} {values[1]})"
    if base == "rsub" and len(values) == 2:
        return f"({values[1]} - {values[0]})"
    if base == "numpy_T":
        return f"{values[0]}.T"
    if base == "index":
        return f"{values[0]}[{', '.join(':' if i is None else literal(i, tensor) for i in operation.args[1])}]"
    return None


def _loss(operation: Operation, base: str, values: list[str]) -> str | None:
    """`F.cross_entropy(x, y, label_smoothing=0.1)`: the reduction by its name, the rest by theirs."""
    name = "cross_entropy" if base == "cross_entropy_loss" else base.removesuffix("_nd")
    arguments = schema(operation.target).arguments
    if "reduction" not in [a.name for a in arguments] or not hasattr(torch.nn.functional, name):
        return None
    rest = []
    for argument, value, text in list(zip(arguments, operation.args, values, strict=False))[2:]:
        if argument.name == "reduction":
            text = repr(_REDUCTIONS.get(value))
        if not (argument.has_default_value() and argument.default_value == value):
            rest.append(f"{argument.name}={text}")
    return f"F.{name}({', '.join([*values[:2], *rest])})"


def _resizing(base: str, values: list[str]) -> str | None:
    """`F.interpolate(x, scale_factor=[2.0, 2.0], mode="bilinear", align_corners=False)`."""
    mode = base.removeprefix("upsample_").rstrip("123d")
    if not base.startswith("upsample_") or not 3 <= len(values) <= 4:
        return None
    size, *corners, scale = values[1:]
    given = [("size", size), ("scale_factor", scale), ("mode", repr(mode)), *(("align_corners", c) for c in corners)]
    return f"F.interpolate({values[0]}, {', '.join(f'{k}={v}' for k, v in given if v != 'None')})"


def _method(operation: Operation, base: str, values: list[str], keywords: list[tuple[str, str]]) -> str | None:
    of_tensor = bool(operation.args) and isinstance(operation.args[0], Ref)
    if not of_tensor or base.startswith("_") or not hasattr(torch.Tensor, base):
        return None
    given = [f"{k}={v}" for k, v in keywords if (k, v) != ("layout", "torch.strided")]
    return f"{values[0]}.{base}({', '.join([*values[1:], *given])})"


def _functions(base: str, call: str) -> list[str | None]:
    """Functions of the same name: `torch.cdist`, `F.embedding`, `torch.fft.rfft`, `F.silu(x, inplace=True)`."""
    if base.endswith("_") and not base.startswith("_"):
        return [None, None, f"F.{base[:-1]}({call}, inplace=True)" if hasattr(torch.nn.functional, base[:-1]) else None]
    package, _, rest = base.partition("_")
    inner = getattr(torch, package, None) if package in ("fft", "linalg", "special") else None
    name = _RENAMED.get(base, base)
    return [
        f"torch.{package}.{rest}({call})" if inner is not None and hasattr(inner, rest) else None,
        f"F.{name}({call})" if not base.startswith("_") and hasattr(torch.nn.functional, name) else None,
        f"torch.{base}({call})" if not base.startswith("_") and hasattr(torch, base) else None,
    ]


def _simple(
    op: Operation, base: str, overload: str, values: list[str], keywords: list[tuple[str, str]], tensor: Tensor
) -> str | None:
    first_is_tensor = bool(op.args) and isinstance(op.args[0], Ref)
    call = ", ".join([*values, *(f"{k}={v}" for k, v in keywords)])
    if f"{base}.{overload}" in _BINARY and len(values) == 2 and not keywords:
        return f"({values[0]} {_BINARY[f'{base}.{overload}']} {values[1]})"
    if base in _COMPARE and len(values) == 2 and not keywords:
        return f"({values[0]} {_COMPARE[base]} {values[1]})"
    if base == "alias":
        return f"{values[0]}[...]"
    if base == "bitwise_not":
        return f"(~{values[0]})"
    if base == "dropout" and len(values) == 3:
        return f"F.dropout({call})"
    if base == "layer_norm":
        return f"F.layer_norm({', '.join(_without_defaults(values[:5], ['', '', 'None', 'None', '1e-05']))})"
    if base == "embedding":
        return f"F.embedding({', '.join([values[1], values[0], *values[2:3]])})" if len(values) < 4 else None
    if base in ("softmax", "log_softmax") and overload == "int":  # the third argument of F.softmax is another one
        return f"F.{base}({', '.join([*values[:2], *(f'dtype={v}' for v in values[2:] if v != 'None')])})"
    if base == "scaled_dot_product_attention":
        names = ["attn_mask", "dropout_p", "is_causal"]
        given = [
            *values[:3],
            *(f"{n}={v}" for n, v in zip(names, values[3:], strict=False) if v not in ("None", "0.0", "False")),
        ]
        return f"F.scaled_dot_product_attention({', '.join([*given, *(f'{k}={v}' for k, v in keywords)])})"
    if base in ("slice", "select") and not keywords:
        return _indexing(op, base, values, tensor)
    if base == "group_norm":
        return f"F.group_norm({', '.join(_without_defaults(values[:5], ['', '', 'None', 'None', '1e-05']))})"
    if base == "batch_norm" and len(values) >= 8:
        order = (0, 3, 4, 1, 2, 5, 6, 7)
        return f"F.batch_norm({', '.join(values[i] for i in order)})"
    if base in _FUNCTIONAL and overload in _PLAIN:
        return f"F.{base}({call})"
    whole = any(isinstance(a, list) and None in a for a in op.args)  # `x[:, i] = y`, which Tensor.index_put_ does not take
    if base.endswith("_") and not base.startswith("__") and first_is_tensor and hasattr(torch.Tensor, base) and not whole:
        return f"{values[0]}.{base}({', '.join([*values[1:], *(f'{k}={v}' for k, v in keywords)])})"
    if base in ("arange", "ones", "zeros", "full", "empty") and "memory_format" not in dict(keywords):
        return f"torch.{base}({call})"
    if base in _TORCH and overload in _PLAIN:
        return f"torch.{base}({call})"
    if base in _METHODS and first_is_tensor and overload in _PLAIN:
        return f"{values[0]}.{base}({', '.join([*_spread(base, values[1:]), *(f'{k}={v}' for k, v in keywords)])})"
    return None


def _indexing(op: Operation, base: str, values: list[str], tensor: Tensor) -> str | None:
    """x[:, 2:8] and x[:, 0], which PyTorch turns into the same slice and select."""
    given = list(op.args[1:])
    if not all(isinstance(a, (int, Size)) for a in given if a is not None):
        return None
    if given and given[0] is not None and (isinstance(given[0], Size) or given[0] < 0):
        return None
    skipped = [":"] * (given[0] if given and given[0] is not None else 0)
    if base == "select":
        return f"{values[0]}[{', '.join([*skipped, values[2]])}]"
    start, end, step = (*given[1:], *[None] * (4 - len(given)))[:3]
    ends = "" if end is None or (isinstance(end, int) and end >= ENDLESS) else literal(end, tensor)
    starts = "" if start in (None, 0) else literal(start, tensor)
    part = f"{starts}:{ends}" + (f":{literal(step, tensor)}" if step not in (None, 1) else "")
    return f"{values[0]}[{', '.join([*skipped, part])}]"


def _spread(base: str, values: list[str]) -> list[str]:
    """Shapes as separate arguments: x.view(8, 256), not x.view([8, 256])."""
    if base in ("view", "permute", "reshape", "expand") and len(values) >= 1 and values[0].startswith("["):
        inner = values[0][1:-1]
        return [inner, *values[1:]] if inner else ["()", *values[1:]]
    return values


def _without_defaults(values: list[str], defaults: list[str]) -> list[str]:
    while values and values[-1] == defaults[len(values) - 1]:
        values = values[:-1]
    return values


def _keywords(operation: Operation, tensor: Tensor) -> list[tuple[str, str]]:
    """Keyword arguments, without those that say the default."""
    defaults = {a.name: a.default_value for a in schema(operation.target).arguments if a.has_default_value()}
    given = [(k, v) for k, v in operation.kwargs if not (k == "pin_memory" and not v)]
    return [
        (k, literal(v, tensor)) for k, v in given if not (k in defaults and defaults[k] == v and type(defaults[k]) is type(v))
    ]


def literal(value: Any, tensor: Tensor) -> str:
    """A Python expression that evaluates to `value`; exact for non-finite and complex numbers."""
    if isinstance(value, Ref):
        return tensor(value.variable)
    if isinstance(value, Size):
        return value.spelled(tensor)
    if isinstance(value, Spelled):
        return value.text
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if isinstance(value, complex):
        return f"complex({literal(value.real, tensor)}, {literal(value.imag, tensor)})"
    if isinstance(value, list):
        return f"[{', '.join(literal(v, tensor) for v in value)}]"
    if isinstance(value, tuple):
        return f"({', '.join(literal(v, tensor) for v in value)}{',' if len(value) == 1 else ''})"
    if isinstance(value, torch.device):
        return DEVICE if value.type == "cuda" else f'"{value}"'
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return str(value)
    raise TypeError(f"cannot print a {type(value).__name__}")
