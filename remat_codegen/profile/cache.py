"""Measurements kept on disk, by signature, device and torch version, so that a second run does not measure again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
from pathlib import Path

import torch
from platformdirs import user_cache_path

VERSION = 8  # raise when what is measured changes


def device_name(device: str) -> str:
    """What distinguishes devices that measure differently: the model of GPU, or the machine's kind and its thread count."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()}-{torch.get_num_threads()}threads"


class Cache:
    """A JSON file of integers by key. A missing, unreadable or read-only file only costs time."""

    def __init__(self, device: str, folder: Path | None = None, enabled: bool = True) -> None:
        name = hashlib.sha256(f"{VERSION}|{torch.__version__}|{device_name(device)}".encode()).hexdigest()[:16]
        self.enabled = enabled
        self.path = (folder or user_cache_path("remat-codegen")) / f"costs-{name}.json"
        self.entries: dict[str, list[int]] = {}
        if enabled:
            with contextlib.suppress(OSError, ValueError):
                self.entries = json.loads(self.path.read_text())

    def get(self, key: str) -> list[int] | None:
        """What was measured under `key`, if anything was."""
        return self.entries.get(key)

    def put(self, key: str, value: list[int]) -> None:
        """Remembers a measurement for this process; `save` writes it down."""
        self.entries[key] = value

    def save(self) -> None:
        """Writes the file beside itself, then renames it, so that no reader sees half of it."""
        if not self.enabled:
            return
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside = self.path.with_suffix(".new")
            beside.write_text(json.dumps(self.entries))
            beside.replace(self.path)
