"""Looks measurements up in the files of `store.py`, by signature, device, versions and settings: a second run does not measure
again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import torch

from remat_codegen.graph.record import LOSSES
from remat_codegen.profile import store
from remat_codegen.torch_seam import attention_kernels

VERSION = 16  # raise when what is measured changes


NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")  # PyTorch does not tell
CPU_SETTINGS = attrgetter(
    *(f"mkldnn.{name}" for name in ("enabled", "deterministic")),
    *(f"mkldnn.{part}.fp32_precision" for part in ("matmul", "conv", "rnn")),
)
CUDA_SETTINGS = attrgetter(
    *(f"cudnn.{name}" for name in ("enabled", "benchmark", "benchmark_limit", "deterministic")),
    *(f"{part}.fp32_precision" for part in ("cuda.matmul", "cudnn.conv", "cudnn.rnn")),
    *(f"cuda.matmul.allow_{kind}_reduced_precision_reduction" for kind in ("bf16", "fp16")),
)


def device_name(device: str) -> str:
    """What distinguishes devices that measure differently: the model of GPU, or the machine's kind and its thread count."""
    if torch.device(device).type == "cuda":
        return f"{torch.cuda.get_device_name(device)} {torch.cuda.get_device_capability(device)}"
    return f"{platform.machine()}-{torch.get_num_threads()}threads"


def kernel_choice(device: str) -> str:
    """What libraries choose their kernels by, beside the device and what an operation is given: settings and versions.

    Only the newer names of what concerns TF32 are read: the older ones raise where somebody has used both.
    """
    settings: list[object] = [torch.are_deterministic_algorithms_enabled()]
    if torch.device(device).type == "cuda":
        return repr(settings + _cuda_settings())
    return repr(settings + list(CPU_SETTINGS(torch.backends)))


def _cuda_settings() -> list[object]:
    return [
        *CUDA_SETTINGS(torch.backends),
        *(str(torch.backends.cuda.preferred_blas_library()), str(torch.backends.cuda.preferred_linalg_library())),
        sorted(map(str, attention_kernels())),
        *(torch.version.cuda, torch.version.hip, torch.backends.cudnn.version(), _driver()),
    ]


def _driver() -> str:
    """The first line of what the driver says of itself, if it says it at all."""
    with contextlib.suppress(OSError):
        return NVIDIA_DRIVER.read_text().partition("\n")[0]
    return ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is measured once. Nodes of one signature may still differ in who else holds what the backward node would free on its
    way: `held` are the gradients that it is given, `returned` results of the node, which the model's caller holds. `begun` are
    the places, among what it is given, of what other nodes have made gradients of, to be added to, and `waiting` those of
    parameters that other nodes make some of later.

    Of a `loss`, which is as in `Record`, the signature is that of the outputs that it reads.
    """

    signature: str
    held: bool = False
    returned: bool = False
    begun: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    loss: str | None = None

    def spelled(self) -> str:
        """The key on disk: raise VERSION when it means something else."""
        if self.loss is not None:
            return f"{'' if self.loss == LOSSES[0] else f'{self.loss} '}loss of {self.signature}"
        places = {" begun": self.begun, " waiting": self.waiting}
        told = "".join(f"{name} {','.join(map(str, where))}" for name, where in places.items() if where)
        return self.signature + " held" * self.held + " returned" * self.returned + told


class Cache:
    """A JSON file of integers by measurement. A missing, unreadable or read-only file only costs time. `least_ns` is what the
    work of pace.py took at least, where that is known."""

    def __init__(self, device: str, folder: Path | None = None, enabled: bool = True) -> None:
        measured_by = f"{VERSION}|{torch.__version__}|{device_name(device)}|{kernel_choice(device)}"
        name = hashlib.sha256(measured_by.encode()).hexdigest()[:16]
        self.enabled = enabled
        self.path = (folder or store.folder()) / f"costs-{name}.json"
        self.entries: dict[str, list[int]] = {}
        self.hurried = 0  # measurements that are not to be remembered
        self.slowed = set[Measurement]()  # those that are of a busy machine
        self.again = set[Measurement]()  # and those that were, and are not any more
        if enabled:
            with contextlib.suppress(OSError, ValueError):
                self.entries = json.loads(self.path.read_text())
        self.least_ns = next(iter(self.entries.pop(store.LEAST, [])), None)

    def get(self, key: Measurement) -> list[int] | None:
        """What was measured under `key`, if anything was."""
        return self.entries.get(key.spelled())

    def put(self, key: Measurement, value: list[int]) -> None:
        """Remembers a measurement for this process; `save` writes it down."""
        self.entries[key.spelled()] = value

    def save(self) -> None:
        """Writes the file, which no reader sees half of."""
        if not self.enabled:
            return
        least = {} if self.least_ns is None else {store.LEAST: [self.least_ns]}
        with contextlib.suppress(OSError):
            store.write(self.path, json.dumps(self.entries | least))
