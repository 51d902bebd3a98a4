"""Where libraries ask whether they are being traced, and what they are told."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from remat_codegen.trace.refusals import is_library


class Questions:
    """Where libraries ask whether they are being traced. They are told no, as some compute something else in a trace; but yes
    where something came next that no trace can follow: there they have another way to go."""

    def __init__(self) -> None:
        self.told = set[tuple[tuple[str, int], ...]]()  # the places that are told the truth: file and line of the callers
        self.last: tuple[tuple[str, int], ...] | None = None

    def tell_last(self) -> bool:
        """Has the last that asked be told the truth from now on; whether that is any news."""
        place, self.last = self.last, None
        known = place is None or place in self.told
        self.told |= {place} if place is not None else set()
        return not known

    @contextlib.contextmanager
    def answered(self) -> Iterator[None]:
        """PyTorch's own code is told the truth."""
        places = [(torch.compiler, name) for name in ("is_compiling", "is_exporting", "is_dynamo_compiling")]
        if "transformers" in sys.modules:
            places.append((sys.modules["transformers.utils.import_utils"], "is_fake_tensor"))
        before = [(owner, name, getattr(owner, name)) for owner, name in places if hasattr(owner, name)]

        def unless_asked_by_library(own: Callable[..., bool]) -> Callable[..., bool]:
            def ask(*args: Any) -> bool:
                frame = sys._getframe(1)
                return own(*args) if is_library(frame.f_code.co_filename) or self._is_told(frame) else False

            return ask

        for owner, name, own in before:
            setattr(owner, name, unless_asked_by_library(own))
        try:
            yield
        finally:
            for owner, name, own in before:
                setattr(owner, name, own)

    def _is_told(self, frame: types.FrameType) -> bool:
        callers = (frame, frame.f_back, frame.f_back and frame.f_back.f_back)
        self.last = tuple((f.f_code.co_filename, f.f_lineno) for f in callers if f is not None)
        return self.last in self.told
