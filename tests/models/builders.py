"""How the catalogues get their models: a function that builds one with random weights, another that makes its inputs.

A model from a library is built when it is asked for, so that the others need not be installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LIBRARIES: dict[str, str] = {}  # by model: the library it comes from, where it is not torch itself


class Catalogue:
    """Adds targets to a file: NAME builds a model, NAME_inputs what it is called with."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self.names: list[str] = []

    def add(self, name: str, make: Callable[[], Any], inputs: Callable[[], Any], library: str | None = None) -> None:
        """A model that is built by `make`."""
        self.names.append(name)
        self.namespace[name], self.namespace[f"{name}_inputs"] = make, inputs
        if library is not None:
            LIBRARIES[name] = library

    def torchvision(self, name: str, size: int = 64, inputs: Callable[[], Any] | None = None, **options: Any) -> None:
        """A model of torchvision, by the name of its function; a dot leads into one of its packages."""

        def make():
            import torchvision_cpu  # noqa: F401 - first
            from torchvision import models

            found = models
            for part in name.split("."):
                found = getattr(found, part)
            return found(weights=None, **options)

        self.add(name.rpartition(".")[2], make, inputs or image(size), "torchvision")

    def timm(self, name: str, size: int, model: str | None = None, **options: Any) -> None:
        """A model of timm."""

        def make():
            import torchvision_cpu  # noqa: F401, I001 - first
            import timm

            return timm.create_model(model or name, **options)

        self.add(name, make, image(size), "timm")

    def transformers(self, name: str, model: str, inputs: Callable[[], Any], **config: Any) -> None:
        """A model of transformers, from its configuration."""

        def make():
            import torchvision_cpu  # noqa: F401 - transformers imports torchvision where it is installed
            import transformers

            transformers.logging.set_verbosity_error()
            kind = getattr(transformers, model)
            return kind(kind.config_class(**config))

        self.add(name, make, inputs, "transformers")


def require(name: str) -> None:
    """Skips a test where the library that a model comes from is missing."""
    import pytest

    if name in LIBRARIES:
        import torchvision_cpu  # noqa: F401 - before whatever imports torchvision

        pytest.importorskip(LIBRARIES[name])


def image(size: int, channels: int = 3) -> Callable[[], Any]:
    """Two pictures."""
    return lambda: (torch.randn(2, channels, size, size),)


def tokens(*shape: int, high: int = 99) -> torch.Tensor:
    """Token numbers."""
    return torch.randint(0, high, shape)


def padded_mask() -> torch.Tensor:
    """Of a text of 16 tokens and one of 12. Where all is to be read, libraries leave out masks, but for those of a trace."""
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[1, 12:] = 0
    return mask


def language_inputs() -> dict[str, torch.Tensor]:
    """What a language model is trained with."""
    return {"input_ids": tokens(2, 16), "labels": tokens(2, 16)}


text = {"vocab_size": 99, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
narrow = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
