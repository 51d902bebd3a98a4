"""How long a piece of work would take on a GPU that is not there, by a roofline (Williams, Waterman, Patterson 2009).

The work is run on tensors without data, so that each kernel is seen with its operands, forward and backward. A kernel takes the
time of its floating-point operations or of its bytes, whichever is longer, and at least what starting one takes. What of the
device's peaks is reached is the same for all kernels of a kind. Such times are off by tens of per cent, kernel by kernel; what
a plan needs of them is their order and their ratios.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from remat_codegen.errors import UnsupportedError
from remat_codegen.graph.fake_strides import Layouts
from remat_codegen.graph.simplify import Model
from remat_codegen.profile.cache import Cache
from remat_codegen.profile.clock import LEAST_NS, Clock, Stage
from remat_codegen.profile.costs import Advance, Costs, Profile
from remat_codegen.profile.devices import FILE, Device
from remat_codegen.profile.kernel_workspace import rounds_to_tf32
from remat_codegen.profile.measure import Measured
from remat_codegen.torch_seam import TorchDispatchMode, flop_formula, key_of_storage, pytree, schema
from remat_codegen.trace import absent, cudnn_rnn

aten = torch.ops.aten
OURS = ("aten", "prims", "prim")  # the namespaces of PyTorch's own kernels
MAKES_NOTHING = frozenset("empty empty_like empty_strided empty_permuted new_empty new_empty_strided detach lift_fresh".split())
LOOKS_UP = frozenset("embedding index_select gather index nll_loss_forward nll_loss2d_forward take".split())  # some of a table
PASSES = {  # times that a kernel reads what it is given
    "native_batch_norm": 2,
    "native_batch_norm_backward": 2,
    "native_group_norm": 2,
    "native_group_norm_backward": 2,
    "native_layer_norm_backward": 2,
    "_softmax_backward_data": 2,
    "_fused_rms_norm_backward": 2,
    "logsumexp": 6,  # several kernels, of which two write what they read
}
FUSED = {"attention": 0.7, "attention_backward": 0.5, "convolution": 0.85}  # of what a product reaches, by the end of a name
TILES = (((256, 128), 1.0), ((128, 128), 0.95), ((64, 128), 0.8), ((64, 64), 0.6))  # of products, and what each reaches
LEAST_SUM = 512  # of a product's sums, below which they are not split
LEAST_REACHED = 0.05
CAUSAL = 2  # half of the scores are never computed


class EstimatedClock(Clock):
    """Says how long work would take on a GPU. It runs once."""

    is_exact = True

    def __init__(self, gpu: Device) -> None:
        super().__init__(absent.TYPE)
        self.gpu = gpu

    @property
    def in_a_hurry(self) -> bool:
        """Never: nothing is measured."""
        return False

    def noting(self, *stages: Stage) -> tuple[list[Stage], list[int]]:
        """No times: what work takes here is not what it takes there."""
        return [*stages], []

    def least_times_ns(self, *stages: Stage, warm: bool = False, noted: Sequence[int] = ()) -> list[int]:
        """The times of the kernels that each piece of work starts."""
        value, times = None, list[int]()
        for stage in stages:
            with Kernels(self.gpu) as kernels:
                value = stage(value)
            times.append(max(LEAST_NS, kernels.time_ns))
        return times


class Kernels(TorchDispatchMode):
    """Adds up what the kernels that run in here would take. `on` is the type of device that they run on."""

    def __init__(self, gpu: Device, on: str = absent.TYPE) -> None:
        super().__init__()
        self.gpu, self.on, self.time_ns = gpu, on, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, and prices it."""
        out = func(*args, **(kwargs or {}))
        kernel = kernel_of(self.gpu, func, args, kwargs or {}, out, self.on)
        self.time_ns += 0 if kernel is None else kernel.time_ns(self.gpu)
        return out


@dataclass(frozen=True)
class Estimated(Costs):
    """Costs on a GPU that is not there, for which a model was traced."""

    stage = "estimate"
    gpu: Device

    def of(self, model: Model, advance: Advance | None = None) -> Profile:
        """As in `Costs`. Raises UnsupportedError for an operation whose time nobody knows."""
        here = replace(model, trace=absent.as_absent(model.trace))
        clocked = Measured(absent.TYPE, Cache(absent.TYPE, enabled=False), clock=EstimatedClock(self.gpu))
        with absent.on(self.gpu), Layouts():
            return replace(clocked.of(here, advance), device=absent.CUDA)


# ---------------------------------------------------------------------------------------------- one kernel


@dataclass(frozen=True, slots=True)
class Kernel:
    """What an operation asks of a device: the nanoseconds that its bytes take there, and its floating-point operations."""

    name: str
    bytes_ns: float
    product_ns: float

    def time_ns(self, gpu: Device) -> int:
        """The longer of both, and at least what starting a kernel takes."""
        return max(gpu.launch_ns, round(max(self.bytes_ns, self.product_ns)))


def kernel_of(gpu: Device, func: Any, args: Any, kwargs: Any, out: Any, on: str = absent.TYPE) -> Kernel | None:
    """An operation's kernel; None where it only looks at memory. Raises UnsupportedError where nobody knows what it takes."""
    read, made = list(_tensors((args, kwargs), on)), list(_tensors(out, on))
    name = func.overloadpacket.__name__
    if (given := gpu.operations_ns.get(f"{func.namespace}::{name}")) is not None:
        return Kernel(name, given, 0.0)
    if name in MAKES_NOTHING or not made or _is_view(func, read, made):
        return None
    if func.namespace not in OURS:
        what = f"how long {func.namespace}::{name} takes on {gpu.key} is not known: it is no operation of PyTorch's"
        hint = f"write its nanoseconds into {FILE}, or plan it where the GPU is, with --device cuda"
        raise UnsupportedError(what, hint=hint)
    bytes_ns = _moved_bytes(name, read, made) / (gpu.bytes_per_s * gpu.reached_bytes) * 1e9
    return Kernel(name, bytes_ns, _product_ns(gpu, func, name, args, kwargs, out, on))


def _tensors(value: Any, on: str) -> Iterator[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor) and leaf.device.type == on)


def _is_view(func: Any, read: list[torch.Tensor], made: list[torch.Tensor]) -> bool:
    """Whether all that an operation gives is memory that it was given, and it writes none of it."""
    if schema(func).is_mutable:
        return False
    given = {key_of_storage(t.untyped_storage()) for t in read}
    return all(key_of_storage(t.untyped_storage()) in given for t in made)


def _moved_bytes(name: str, read: list[torch.Tensor], made: list[torch.Tensor]) -> int:
    """What a kernel reads and writes; of a table only what it looks up."""
    written = sum(map(_nbytes, made))
    if name in LOOKS_UP:
        return 2 * written + sum(map(_nbytes, read[1:]))
    return written + PASSES.get(name, 1) * sum(map(_nbytes, read))


def _nbytes(tensor: torch.Tensor) -> int:
    """The bytes of a tensor, of repeated rows but one."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _product_ns(gpu: Device, func: Any, name: str, args: Any, kwargs: Any, out: Any, on: str) -> float:
    """What the floating-point operations of a product take; nothing where an operation is none."""
    if "cudnn_rnn" in name:
        return _recurrent_ns(gpu, name, args)
    formula = flop_formula(func)
    if formula is None:
        return 0.0
    operations = formula(*(_of_all_heads(args) if "attention" in name else args), **kwargs, out_val=out)
    operand = next(_tensors((args, kwargs), on))
    peak = gpu.peak(_type_of(operand.dtype, name)) * gpu.reached_flops
    if "attention" in name:
        part = FUSED["attention_backward" if "backward" in name else "attention"]
        return float(operations / (CAUSAL if _is_causal(func, args, kwargs) else 1) / (peak * part) * 1e9)
    part = FUSED["convolution"] if "convolution" in name else _reached_by_tiles(gpu, operations, next(_tensors(out, on)).shape)
    return float(operations / (peak * part) * 1e9)


def _of_all_heads(args: Sequence[Any]) -> list[Any]:
    """What attention is given, in the shapes that it would have if no heads shared keys: PyTorch 2.11 counts only those."""
    heads = max((a.shape[1] for a in args if _has_heads(a)), default=0)
    return [a[:, :1].expand(-1, heads, -1, -1) if _has_heads(a) and a.shape[1] < heads else a for a in args]


def _has_heads(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 4


def _is_causal(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether attention leaves out what comes later: each of its operations has that in another place."""
    places = [i for i, a in enumerate(schema(func).arguments) if a.name == "is_causal"]
    given = [args[i] for i in places if i < len(args)] or [kwargs.get("is_causal", False)]
    return bool(given[0])


def _recurrent_ns(gpu: Device, name: str, args: Any) -> float:
    """What the products of a recurrent network take, step by step where one waits for the other; back twice as many."""
    net, peak = cudnn_rnn.of_call(name, args), gpu.peak(_type_of(args[0].dtype, name)) * gpu.reached_flops
    total = 0.0
    for rows, columns, length, steps in net.products():
        operations = 2 * rows * columns * length
        step_ns = operations / (peak * _reached_by_tiles(gpu, operations, (rows, columns))) * 1e9
        total += steps * max(step_ns, gpu.launch_ns)
    return total * (2 if "backward" in name else 1)


def _type_of(dtype: torch.dtype, name: str) -> str:
    """What a product computes in: float32 may be rounded to tf32, as PyTorch's settings say."""
    if dtype is not torch.float32:
        return str(dtype).removeprefix("torch.")
    part = "conv" if "convolution" in name else "rnn" if "cudnn_rnn" in name else None
    rounded = rounds_to_tf32(part) if part else torch.get_float32_matmul_precision() != "highest"
    return "tf32" if rounded else "float32"


def _reached_by_tiles(gpu: Device, operations: int, result: Sequence[int]) -> float:
    """How well the tiles of a product of shape `result` fill the GPU's multiprocessors, with the size of tile that does best.
    Where there are few, libraries split long sums."""
    *batch, rows, columns = (1, *result)[-3:]
    length = operations // max(1, 2 * math.prod(result))

    def part(height: int, width: int) -> float:
        tiles = math.prod(batch) * math.ceil(rows / height) * math.ceil(columns / width)
        tiles *= max(1, min(gpu.multiprocessors // max(1, tiles), length // LEAST_SUM))
        waves = math.ceil(tiles / gpu.multiprocessors)
        return tiles / max(1, waves * gpu.multiprocessors)

    return max(LEAST_REACHED, *(reached * part(*size) for size, reached in TILES))
