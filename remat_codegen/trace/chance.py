"""The generators of random numbers that are not PyTorch's: Python's, NumPy's, and those that a model has of their kinds."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from remat_codegen.trace.training import seed_python_and_numpy

SEED = 0  # of Python's and NumPy's generators in recorded runs
LOWEST, HIGHEST = 0, 0x12DD9BB3  # words of a Mersenne Twister's state from which it makes 0 and 2**32 - 1
FORCED = 600  # such words: decisions by the first 300 numbers go one way, then the other


def python_and_numpy() -> dict[str, Any]:
    """The states of the generators that are not PyTorch's."""
    states: dict[str, Any] = {"Python's random": random.getstate()}
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        states["numpy.random"] = kind, keys.tobytes(), *rest
    return states


@contextlib.contextmanager
def going_on() -> Iterator[None]:
    """After this, Python's and NumPy's generators go on as if nothing was."""
    numpy = sys.modules["numpy"].random if "numpy" in sys.modules else None
    own, theirs = random.getstate(), None if numpy is None else numpy.get_state()
    try:
        yield
    finally:
        random.setstate(own)
        if numpy is not None:
            numpy.set_state(theirs)


@contextlib.contextmanager
def beginning_anew(drawn: list[str] | None = None) -> Iterator[None]:
    """In here, these generators begin anew, so that every run draws the same; after this they go on. `drawn` gets the names of
    those that were drawn from."""
    with going_on():
        seed_python_and_numpy(SEED)
        begun = python_and_numpy()
        yield
        if drawn is not None:
            drawn += [name for name, state in python_and_numpy().items() if state != begun.get(name, state)]


def force(word: int) -> None:
    """Has Python's and NumPy's generators make their next numbers of one word of their state. The words behind are others, so
    that what draws until it likes the number ends."""
    version, words, _ = random.getstate()
    random.setstate((version, (word,) * FORCED + words[FORCED:-1] + (0,), None))
    if "numpy" in sys.modules:
        kind, keys, *_ = sys.modules["numpy"].random.get_state()
        keys = keys.copy()
        keys[:FORCED] = word
        sys.modules["numpy"].random.set_state((kind, keys, 0, 0, 0.0))


def own_generators(module: torch.nn.Module) -> dict[tuple[str, int], Any]:
    """The states of generators of Python's and NumPy's kinds that modules have in attributes, or their files by a name: by that
    name, and by the generator's number, as each module may have one of its own."""
    homes = {kind.__module__ for m in module.modules() for kind in type(m).__mro__ if not kind.__module__.startswith("torch.")}
    named = [(f"self.{name}", value) for m in module.modules() for name, value in vars(m).items()]
    named += [(name, value) for home in homes & sys.modules.keys() for name, value in vars(sys.modules[home]).items()]
    return {(name, id(value)): state for name, value in named if (state := _state_of(value)) is not None}


def _state_of(value: Any) -> Any:
    kind, numpy = type(value), sys.modules.get("numpy.random")  # a proxy may say that it is of another class
    if issubclass(kind, random.Random):
        return value.getstate()
    if numpy is None or not issubclass(kind, (numpy.Generator, numpy.RandomState)):
        return None
    return repr(value.bit_generator.state if issubclass(kind, numpy.Generator) else value.get_state(legacy=False))
