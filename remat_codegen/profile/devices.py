"""What GPUs do at most, for costs by a roofline: the one table of devices. Planning for absent GPUs extends it by rows.

Peaks are the makers' figures. What of them a kernel reaches stands beside them and is the same for all kernels: it is told
apart from measured costs, which are to be preferred wherever there are any.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU. `flops` in single precision without tensor cores, and `bytes_per_s` of its memory, per second, by its data sheet;
    `reached_*` the parts of these that kernels reach; `launch_ns` is what starting one takes at least. `source` says where the
    figures are from."""

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    flops: float
    bytes_per_s: float
    cache_bytes: int
    source: str
    reached_flops: float = 0.85
    reached_bytes: float = 0.8
    launch_ns: int = 5000


DEVICES = {
    "v100": Device(
        "Tesla V100 SXM2",
        (7, 0),
        80,
        15.7e12,
        900e9,
        6 << 20,
        "NVIDIA Tesla V100 data sheet (2018) and GV100 white paper (2017); reached parts: Jia et al. 2018, "
        "'Dissecting the NVIDIA Volta GPU architecture via microbenchmarking' (750 GB/s), and cuBLAS on large matrices",
    ),
}
