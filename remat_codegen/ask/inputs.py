"""What a model is called and constructed with: `example_inputs()`'s answer, or the little languages of `--inputs` and `--init`.

    inputs  = item ";" item ";" ...
    item    = [name "="] (tensor | literal)           positional without a name, and before those with one
    tensor  = dtype "[" sizes "]" ["<" range] ["requires_grad"]
    range   = high | low ":" high                     values from low (0 if not given) up to, not including, high
    literal = what Python reads as one: 3, 0.5, True, None, "mean", (1, 2)

    idx=int64[4,512]<50257; mask=bool[4,512]; use_cache=False

Without a range, floats are normally distributed, integers are 0 or 1 (which every embedding has), bools are either.
With one, floats are uniformly distributed over it. `float32[]` is a tensor of one element without dimensions.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from remat_codegen.errors import TargetError
from remat_codegen.torch_seam import tree_map

FLOATS = ("float32", "float64", "float16", "bfloat16")
COMPLEX = ("complex64", "complex128")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
DTYPES = (*FLOATS, *COMPLEX, *INTEGERS, "bool")
EXAMPLE = "write --inputs like 'idx=int64[4,512]<50257; mask=bool[4,512]', or file.py:function"

_NAMED = re.compile(r"([^\W\d]\w*)\s*=(?!=)\s*(.*)", re.DOTALL)
_TENSOR = re.compile(r"([A-Za-z]\w*)\s*\[([^\]]*)\]\s*(?:<\s*([^\s]+))?\s*(requires_grad)?")
_LOOKS_LIKE_TENSOR = re.compile(r"[A-Za-z]\w*\s*\[")
_INTEGER = re.compile(r"[+-]?[0-9]+")


CACHE = "use_cache"  # the argument by which models of transformers return what generation goes on from


@dataclass(frozen=True, slots=True)
class Inputs:
    """What `forward` is called with."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def to(self, device: torch.device | str) -> Inputs:
        """The same inputs as leaves on a device. One tensor that stands in two places stays one tensor."""
        moved: dict[int, torch.Tensor] = {}

        def move(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            if id(leaf) not in moved:
                moved[id(leaf)] = _leaf_on(leaf, torch.device(device))
            return moved[id(leaf)]

        args, kwargs = tree_map(move, (self.args, self.kwargs))
        return Inputs(args, kwargs)


def _leaf_on(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if tensor.device == device and tensor.is_leaf:
        return tensor
    return tensor.detach().to(device).requires_grad_(tensor.requires_grad)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor as the language describes it. Values are drawn from [low, high); None where no range is given."""

    dtype: str
    shape: tuple[int, ...]
    low: float = 0
    high: float | None = None
    requires_grad: bool = False

    def make(self, generator: torch.Generator) -> torch.Tensor:
        """A tensor of random values, on the CPU."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        if self.dtype in INTEGERS or self.dtype == "bool":
            high = 2 if self.high is None else int(self.high)
            return torch.randint(int(self.low), high, self.shape, generator=generator).to(dtype)
        if self.high is None:
            values = torch.randn(
                self.shape, generator=generator, dtype=torch.complex64 if self.dtype in COMPLEX else torch.float32
            )
        else:
            values = self.low + (self.high - self.low) * torch.rand(self.shape, generator=generator)
        return values.to(dtype).requires_grad_(self.requires_grad)


def make_inputs(text: str, seed: int = 0) -> Inputs:
    """The inputs that a text in the language describes; the same seed draws the same values. Raises TargetError."""
    generator = torch.Generator().manual_seed(seed)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, value in parse_inputs(text):
        made = _made(value, generator) if isinstance(value, TensorSpec) else value
        if name is None:
            args.append(made)
        else:
            kwargs[name] = made
    return Inputs(tuple(args), kwargs)


def _made(spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    try:
        return spec.make(generator)
    except (RuntimeError, MemoryError) as error:  # out of memory, mostly
        sizes = ",".join(map(str, spec.shape))
        raise _error(f"{spec.dtype}[{sizes}] cannot be made: {str(error).splitlines()[0][:200]}") from error


def parse_inputs(text: str) -> tuple[tuple[str | None, Any], ...]:
    """The items of a text in the language: names (None: positional) and TensorSpecs or literals.

    Raises TargetError, naming the item that cannot be read.
    """
    items = tuple(_item(piece) for piece in _split(text) if piece)
    if not items:
        raise _error("describes no input", hint=EXAMPLE)
    names = [name for name, _ in items]
    for position, name in enumerate(names):
        if name is None and any(n is not None for n in names[:position]):
            raise _error(f"item {position + 1} has no name but follows one that has", hint="give it a name, or put it first")
        if name is not None and name in names[:position]:
            raise _error(f"{name!r} is given twice")
    return items


def _error(what: str, hint: str | None = None) -> TargetError:
    return TargetError(what, where="--inputs", hint=hint)


def _split(text: str) -> Iterator[str]:
    """The pieces between semicolons that stand outside of quotes."""
    start, quote = 0, ""
    for position, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == ";":
            yield text[start:position].strip()
            start = position + 1
    yield text[start:].strip()


def _item(piece: str) -> tuple[str | None, Any]:
    match = _NAMED.fullmatch(piece)
    name, value = (match[1], match[2]) if match else (None, piece)
    if _LOOKS_LIKE_TENSOR.match(value) or value in DTYPES:
        return name, _tensor(value, piece)
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise _error(f"cannot read {piece!r}: neither a tensor nor a Python literal", hint=EXAMPLE) from error


def _tensor(value: str, piece: str) -> TensorSpec:
    match = _TENSOR.fullmatch(value)
    if match is None:
        raise _error(f"cannot read {piece!r}", hint="a tensor is written like int64[4,512]<50257 or float32[2,3]")
    dtype, sizes, values, grad = match.groups()
    if dtype not in DTYPES:
        close = difflib.get_close_matches(dtype, DTYPES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(DTYPES)}"
        raise _error(f"unknown dtype {dtype!r} in {piece!r}", hint=hint)
    low, high = _range(values, dtype, piece) if values is not None else (0, None)
    if grad and dtype not in (*FLOATS, *COMPLEX):
        raise _error(f"{dtype} in {piece!r} cannot require a gradient")
    return TensorSpec(dtype, _sizes(sizes, piece), low, high, bool(grad))


def _sizes(text: str, piece: str) -> tuple[int, ...]:
    sizes = [size.strip() for size in text.split(",")] if text.strip() else []
    for size in sizes:
        if not re.fullmatch("[0-9]{1,15}", size):
            raise _error(f"{size!r} in {piece!r} is not a size", hint="sizes are whole numbers, like [4,512]")
    return tuple(map(int, sizes))


def _range(text: str, dtype: str, piece: str) -> tuple[float, float]:
    if dtype in COMPLEX or dtype == "bool":
        raise _error(f"{dtype} in {piece!r} takes no range")
    low, _, high = text.rpartition(":")
    bounds = _number(low or "0", dtype, piece), _number(high, dtype, piece)
    if bounds[0] >= bounds[1]:
        raise _error(f"the range in {piece!r} is empty", hint="it goes from low up to, not including, high: <high or <low:high")
    if dtype in INTEGERS:
        limits = torch.iinfo(getattr(torch, dtype))
        if bounds[0] < limits.min or bounds[1] - 1 > limits.max:
            raise _error(f"the range in {piece!r} does not fit into {dtype}")
    return bounds


def _number(text: str, dtype: str, piece: str) -> float:
    if dtype in INTEGERS and _INTEGER.fullmatch(text) and len(text) < 20:
        return int(text)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if dtype in INTEGERS or not math.isfinite(number):
        kind = "a whole number" if dtype in INTEGERS else "a number"
        raise _error(f"{text!r} in {piece!r} is not {kind}", hint="a range is <high or <low:high")
    return number


def parse_init(text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """`layers=24, dropout=0.0` as arguments. Raises TargetError where one is not a Python literal."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _init_error(f"cannot read {text!r}") from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise _init_error(f"cannot read {text!r}")
    names = [keyword.arg for keyword in call.keywords]
    if len(set(names)) < len(names):
        raise _init_error(f"an argument is given twice in {text!r}")
    args = tuple(_literal(node, "") for node in call.args)
    kwargs: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise _init_error(f"'**{ast.unparse(keyword.value)}' is not a Python literal")
        kwargs[keyword.arg] = _literal(keyword.value, f"{keyword.arg}=")
    return args, kwargs


def _literal(node: ast.expr, prefix: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError) as error:
        raise _init_error(f"{prefix + ast.unparse(node)!r} is not a Python literal") from error


def _init_error(what: str) -> TargetError:
    return TargetError(what, where="--init", hint="write constructor arguments like 'layers=24, dropout=0.0'")


def as_inputs(value: Any, where: str) -> Inputs:
    """What a function of the user's returned, as arguments: a tuple, a dict of keyword arguments, or one tensor.

    Raises TargetError on anything else.
    """
    if isinstance(value, torch.Tensor):
        return Inputs((value,), {})
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return Inputs((), dict(value))
    if type(value) is tuple:
        return Inputs(value, {})
    raise TargetError(
        f"returned {'a dict whose keys are not all names' if isinstance(value, dict) else _a(type(value).__name__)}",
        where=where,
        hint="return a tuple of arguments, a dict of keyword arguments, or one tensor",
    )


def _a(name: str) -> str:
    return "None" if name == "NoneType" else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
