"""Where libraries ask whether they are being traced, and what they are told."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import partial
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

    def answers(self) -> dict[Callable[..., Any], Callable[..., Any]]:
        """What takes the place of the functions that answer. PyTorch's own code is told the truth."""
        functions: list[Any] = [torch.compiler.is_compiling, torch.compiler.is_exporting, torch.compiler.is_dynamo_compiling]
        if "transformers" in sys.modules:
            functions += filter(None, [getattr(sys.modules["transformers.utils.import_utils"], "is_fake_tensor", None)])
        return {function: partial(self._answer, function) for function in functions}

    def _answer(self, own: Callable[..., bool], *args: Any) -> bool:
        frame = sys._getframe(1)
        if frame.f_code.co_filename.endswith("_dynamo/external_utils.py") and frame.f_back is not None:
            frame = frame.f_back  # torch._dynamo.is_compiling()
        return own(*args) if is_library(frame.f_code.co_filename) or self._is_told(frame) else False

    def _is_told(self, frame: types.FrameType) -> bool:
        callers = (frame, frame.f_back, frame.f_back and frame.f_back.f_back)
        self.last = tuple((f.f_code.co_filename, f.f_lineno) for f in callers if f is not None)
        return self.last in self.told
