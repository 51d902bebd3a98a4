"""What GPUs do at most: the one table of devices, by which costs are estimated where there is no device to measure on.

Peaks are the makers' figures, dense: those of data sheets with sparsity are twice as high. Memory is in decimal gigabytes, as
it is sold. What kernels reach of the peaks stands beside them, and is the same for all kernels of a kind: it is told apart from
measured costs, which are to be preferred wherever there are any.

Users add devices, or have a name stand for other figures, in `remat_devices.toml` in the working folder or above it, or in the
file that REMAT_CODEGEN_DEVICES names.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from remat_codegen.errors import TargetError

FILE, VARIABLE = "remat_devices.toml", "REMAT_CODEGEN_DEVICES"
TYPES = ("float64", "float32", "tf32", "bfloat16", "float16")  # of `Device.peaks`
OURS = ("cpu", "cuda", "mps", "xpu", "meta", "hip", "mtia", "privateuseone")  # PyTorch's, which no device is called
TERA, GIGA, MIB = 10**12, 10**9, 2**20


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU. `peaks` are floating-point operations per second of dense products, by type of their operands (tf32: of float32,
    rounded), of those that the GPU has units for; `bytes_per_s` is what its memory takes. `reached_*` are the parts of these
    that kernels reach; `launch_ns` is what starting one takes at least. `source` says where the figures are from.
    `operations_ns` are nanoseconds that operations take which nothing else is known of, by name: `mylib::scan`."""

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    peaks: Mapping[str, float]
    bytes_per_s: float
    memory_bytes: int
    cache_bytes: int
    source: str
    reached_flops: float = 0.7
    reached_bytes: float = 0.8
    launch_ns: int = 3000
    key: str = ""
    operations_ns: Mapping[str, int] = field(default_factory=dict)

    @property
    def flops(self) -> float:
        """Those in single precision without tensor cores."""
        return self.peaks["float32"]

    def peak(self, dtype: str) -> float:
        """Those of products of a type, in single precision where the GPU has no units for it."""
        return self.peaks.get(dtype, self.flops)

    @property
    def capability(self) -> str:
        """The compute capability, by which PyTorch chooses kernels: 9.0."""
        return ".".join(map(str, self.compute_capability))

    def rows(self) -> dict[str, Any]:
        """The figures by name, for JSON."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return (
            {"key": self.key}
            | found
            | {
                "peaks": dict(self.peaks),
                "compute_capability": self.capability,
                "operations_ns": dict(self.operations_ns),
            }
        )


def _gpu(
    key: str,
    name: str,
    capability: tuple[int, int],
    multiprocessors: int,
    teraflops: Mapping[str, float],
    gigabytes_per_s: float,
    gigabytes: int,
    cache_mib: int,
    source: str,
    **reached: Any,
) -> Device:
    """A row of the table, in the units of data sheets."""
    peaks = {dtype: teraflops[dtype] * TERA for dtype in TYPES if dtype in teraflops}
    memory, cache = gigabytes * GIGA, cache_mib * MIB
    bandwidth = gigabytes_per_s * GIGA
    return Device(name, capability, multiprocessors, peaks, bandwidth, memory, cache, source, key=key, **reached)


def _half(number: float) -> dict[str, float]:
    """Both types of two bytes, for which tensor cores are equally fast."""
    return {"bfloat16": number, "float16": number}


_ROWS = (
    _gpu(
        "v100",
        "Tesla V100 SXM2",
        (7, 0),
        80,
        {"float64": 7.8, "float32": 15.7, "float16": 125},
        900,
        32,
        6,
        "NVIDIA Tesla V100 data sheet (2018) and GV100 white paper (2017); reached parts: Jia et al. 2018, "
        "'Dissecting the NVIDIA Volta GPU architecture via microbenchmarking' (750 GB/s), and cuBLAS on large matrices",
        reached_flops=0.85,
        launch_ns=5000,
    ),
    _gpu(
        "t4",
        "Tesla T4",
        (7, 5),
        40,
        {"float64": 0.25, "float32": 8.1, "float16": 65},
        320,
        16,
        4,
        "NVIDIA T4 data sheet and Turing white paper (2018)",
    ),
    _gpu(
        "a10",
        "A10",
        (8, 6),
        72,
        {"float64": 0.49, "float32": 31.2, "tf32": 62.5} | _half(125),
        600,
        24,
        6,
        "NVIDIA A10 data sheet (2021)",
    ),
    _gpu(
        "a100-40gb",
        "A100 SXM4 40 GB",
        (8, 0),
        108,
        {"float64": 19.5, "float32": 19.5, "tf32": 156} | _half(312),
        1555,
        40,
        40,
        "NVIDIA A100 data sheet and GA100 white paper (2020)",
    ),
    _gpu(
        "a100-80gb",
        "A100 SXM4 80 GB",
        (8, 0),
        108,
        {"float64": 19.5, "float32": 19.5, "tf32": 156} | _half(312),
        2039,
        80,
        40,
        "NVIDIA A100 80 GB data sheet (2021)",
    ),
    _gpu(
        "l4",
        "L4",
        (8, 9),
        58,
        {"float64": 0.47, "float32": 30.3, "tf32": 60} | _half(121),
        300,
        24,
        48,
        "NVIDIA L4 data sheet (2023), whose figures for tensor cores are with sparsity",
    ),
    _gpu(
        "l40s",
        "L40S",
        (8, 9),
        142,
        {"float64": 1.4, "float32": 91.6, "tf32": 183} | _half(362),
        864,
        48,
        96,
        "NVIDIA L40S data sheet (2023)",
    ),
    _gpu(
        "rtx-4090",
        "GeForce RTX 4090",
        (8, 9),
        128,
        {"float64": 1.3, "float32": 82.6, "tf32": 82.6} | _half(165.2),
        1008,
        24,
        72,
        "NVIDIA Ada white paper (2022), appendix A: sums in single precision",
    ),
    _gpu(
        "rtx-5090",
        "GeForce RTX 5090",
        (12, 0),
        170,
        {"float64": 1.6, "float32": 104.8, "tf32": 104.8} | _half(209.5),
        1792,
        32,
        96,
        "NVIDIA RTX Blackwell white paper (2025), appendix A: sums in single precision",
    ),
    _gpu(
        "h100",
        "H100 SXM5",
        (9, 0),
        132,
        {"float64": 67, "float32": 67, "tf32": 494.5} | _half(989.5),
        3350,
        80,
        50,
        "NVIDIA H100 data sheet and GH100 white paper (2022), whose figures for tensor cores are with sparsity",
    ),
    _gpu(
        "h200",
        "H200 SXM",
        (9, 0),
        132,
        {"float64": 67, "float32": 67, "tf32": 494.5} | _half(989.5),
        4800,
        141,
        50,
        "NVIDIA H200 data sheet (2023), whose figures for tensor cores are with sparsity",
    ),
    _gpu(
        "b200",
        "B200 SXM",
        (10, 0),
        148,
        {"float64": 37, "float32": 75, "tf32": 1100} | _half(2250),
        7700,
        180,
        126,
        "NVIDIA HGX B200 data sheet (2025), whose figures are of eight, and for tensor cores with sparsity",
    ),
)
DEVICES: Mapping[str, Device] = {device.key: device for device in _ROWS}


# ---------------------------------------------------------------------------------------------- names


def is_name(text: str) -> bool:
    """Whether a text may name a device of the table, rather than one of PyTorch's."""
    return text.partition(":")[0] not in OURS


def known() -> dict[str, Device]:
    """All devices by name: those of the table, and the user's. Raises TargetError where their file cannot be read."""
    file = users_file()
    return dict(DEVICES) if file is None else dict(DEVICES) | read_devices(file)


def find(text: str) -> Device:
    """The device of a name. Raises TargetError where there is none."""
    devices = known()
    if text in devices:
        return devices[text]
    close = difflib.get_close_matches(text.lower(), devices, n=1)
    hint = f"did you mean {close[0]}?" if close else f"write cpu, cuda or cuda:1, or a GPU by name: {', '.join(devices)}"
    raise TargetError(f"unknown device {text!r}", where="--device", hint=hint)


# ---------------------------------------------------------------------------------------------- the user's own


def users_file() -> Path | None:
    """The file with the user's devices; None where there is none."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    here = Path.cwd()
    return next((folder / FILE for folder in (here, *here.parents) if (folder / FILE).is_file()), None)


def read_devices(file: Path) -> dict[str, Device]:
    """The devices in a file. Raises TargetError, naming the file and the entry, where they cannot be read."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError("the devices cannot be read", where=str(file), hint=f"unset {VARIABLE}, or write it") from error
    except tomllib.TOMLDecodeError as error:
        raise TargetError(f"the devices are no TOML: {error}", where=str(file)) from error
    return {key: _users(key, table, file) for key, table in tables.items()}


def _users(key: str, table: Any, file: Path) -> Device:
    """A device of the user's: what it leaves out is as in the one that it is `like`, or of that name."""
    if not isinstance(table, dict) or not is_name(key):
        raise _wrong(file, key, "is no table of figures" if is_name(key) else "is a device of PyTorch's")
    like = DEVICES.get(table.get("like", key))
    given = {name: _figure(name, value, file, key) for name, value in table.items() if name != "like"}
    if like is not None:
        peaks = dict(like.peaks) | dict(given.pop("peaks", {}))
        return replace(like, **{"name": key, "source": str(file.name)} | given | {"peaks": peaks, "key": key})
    missing = [f.name for f in fields(Device) if f.name not in given and f.name in NEEDED]
    if missing or "float32" not in given["peaks"]:
        raise _wrong(file, key, f"lacks {missing[0] if missing else 'peaks.float32'}")
    return Device(**{"name": key, "source": str(file.name), "key": key} | given)


NEEDED = ("compute_capability", "multiprocessors", "peaks", "bytes_per_s", "memory_bytes", "cache_bytes")
_NUMBERS = ("multiprocessors", "bytes_per_s", "memory_bytes", "cache_bytes", "reached_flops", "reached_bytes", "launch_ns")


def _figure(name: str, value: Any, file: Path, key: str) -> Any:
    """A figure of the user's, checked."""
    if name in ("name", "source") and isinstance(value, str):
        return value
    if name in _NUMBERS and _is_positive(value):
        return value if name in ("bytes_per_s", "reached_flops", "reached_bytes") else int(value)
    if name == "compute_capability" and isinstance(value, str):
        major, _, minor = value.partition(".")
        if major.isdecimal() and minor.isdecimal():
            return int(major), int(minor)
    if name == "peaks" and isinstance(value, dict) and all(t in TYPES and _is_positive(n) for t, n in value.items()):
        return dict(value)
    if name == "operations_ns" and isinstance(value, dict) and all("::" in op and _is_positive(n) for op, n in value.items()):
        return {operation: round(nanoseconds) for operation, nanoseconds in value.items()}
    raise _wrong(file, key, f"has no good {name!r}")


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and value > 0


def _wrong(file: Path, key: str, what: str) -> TargetError:
    hint = 'write it as docs/devices.md does, or like = "h100" and what differs'
    return TargetError(f"the device {key!r} {what}", where=str(file), hint=hint)
