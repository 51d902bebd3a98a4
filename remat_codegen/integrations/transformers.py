"""transformers' Trainer, for models without a generated file: one is made when the first training step comes."""

from __future__ import annotations

import os
import warnings
from typing import Any

from transformers import TrainerCallback

from remat_codegen.integrations import at_first_step


class RematCallback(TrainerCallback):
    """Has a Trainer train within a memory budget: Trainer(..., callbacks=[RematCallback("8GiB")]).

    The first batch is what is planned for. Models stay what they are: `save_model`, `from_pretrained` and `generate` go on.
    """

    def __init__(self, budget: str | int, file: str | os.PathLike[str] | None = None, **options: Any) -> None:
        """Arguments are those of `remat_codegen.integrations.at_first_step`; what is cast to is the Trainer's."""
        self.budget, self.file, self.options = budget, file, options
        self.first: Any = None  # what stands for the first step

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer with its model, before it puts anything around that."""
        casts = "bfloat16" if args.bf16 else "float16" if args.fp16 else None
        at_first_step(kwargs["model"], self.budget, self.file, **{"autocast": casts} | self.options)
        self.first = vars(kwargs["model"])["forward"]

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called after each step, the first of which was planned for."""
        if self.first is not None and not self.first.done:
            what = "the Trainer goes around the forward of its model, so that nothing is planned"
            warnings.warn(f"{what}: instead of the callback, use at_first_step(model.base_model, ...)", stacklevel=2)
        self.first = None
