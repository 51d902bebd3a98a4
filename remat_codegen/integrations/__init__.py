"""Training loops of others: a plan that is made when the first training step comes, for what that is called with."""

from __future__ import annotations

import inspect
import os
import random
from pathlib import Path
from typing import Any

import torch

from remat_codegen.api import plan
from remat_codegen.parts import without_checkpoints
from remat_codegen.verify.beside import load_generated


def at_first_step(
    model: torch.nn.Module, budget: str | int, file: str | os.PathLike[str] | None = None, **options: Any
) -> torch.nn.Module:
    """`model` itself, whose training steps keep to a memory budget from the first one on.

    Its first training call is what is planned for: with the inputs that the loop has, the types that it casts to, and the
    modes of the modules. The file is written to `file`; one that is there already is used as it is, which takes no time.

    Args:
        model: any module, before `accelerate` or others put something around its forward.
        budget: as for `remat_codegen.plan`.
        file: where the generated file is kept, and found by later runs; nowhere if not given.
        options: as for `remat_codegen.plan`: planner, autocast, time_limit and more.

    Raises:
        RematError: in the first training call, where no such file can be made.
    """
    without_checkpoints(model)
    vars(model)["forward"] = _First(model, vars(model).get("forward"), budget, None if file is None else Path(file), options)
    return model


class _First:
    """What a model has as `forward` until its first training call, which this plans for."""

    def __init__(
        self, model: torch.nn.Module, before: Any, budget: str | int, file: Path | None, options: dict[str, Any]
    ) -> None:
        self.model, self.before, self.budget, self.file, self.options = model, before, budget, file, options
        self.done = False

    @property
    def __wrapped__(self) -> Any:
        """What it is called instead of: whoever asks for a signature gets that one's."""
        return self.before or type(self.model).forward.__get__(self.model)

    @torch.compiler.disable(recursive=False)
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.done or not self.model.training or not torch.is_grad_enabled():
            return self.__wrapped__(*args, **kwargs)
        self.done = True  # copies of the model are traced
        self._make(args, kwargs)
        return self.__wrapped__(*args, **kwargs)

    def _make(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Makes the file, or finds it, and has the model train with it. The process's random numbers stay as they are."""
        without_checkpoints(self.model)  # a model around it may have told it to since
        attributes, state = vars(self.model), random.getstate()
        around = attributes.pop("forward")  # this, or what was put around it since
        if self.before is not None:
            attributes["forward"] = self.before
        try:
            if self.file is not None and self.file.exists():
                loaded = load_generated(self.file).rematerialize
                rematerialize = getattr(loaded, "func", loaded)  # of several tables, the step takes what there is room for
            else:
                found = plan(self.model, self._inputs(args, kwargs), budget=self.budget, **self._options())
                if self.file is not None and _is_first():
                    found.write(self.file)
                rematerialize = lambda model: found.module()  # noqa: E731
            rematerialize(self.model)
            self.before = attributes["planned_forward"] = attributes["forward"]  # where its marks are looked for
            around = self.before if around is self else around
        finally:
            random.setstate(state)
            attributes["forward"] = around

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | tuple[Any, ...]:
        """What the model is called with, as `plan` takes it: positional, or by name."""
        if not kwargs:
            return args
        names = [*inspect.signature(type(self.model).forward).parameters][1:]
        return dict(zip(names, args, strict=False)) | kwargs

    def _options(self) -> dict[str, Any]:
        """As given; in the second edition, which changes the model itself; under the casts of this call, if none are given."""
        device = next((t.device.type for t in self.model.parameters()), "cpu")
        casts = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return {"edition": 2, "autocast": casts, "progress": False} | {k: v for k, v in self.options.items() if v is not None}


def _is_first() -> bool:
    """Whether this is the process that writes, of several that train together."""
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not several or torch.distributed.get_rank() == 0
