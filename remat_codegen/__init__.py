"""Generates PyTorch source code that trains a model within a memory budget, exactly.

    plan = remat_codegen.plan(model, inputs, budget="50%")  # plan.peak_bytes, .overhead, .bound, .blocks, .explain()
    plan.write("gpt2_remat.py")  # the file, as the command line writes it
    model = plan.module()  # or in a line: remat_codegen.rematerialize(model, inputs, budget="8GB")
    curve = remat_codegen.compare(model, inputs, budgets=["30%", "50%"])  # a table; curve.plot()

Importing this module imports nothing else: what it has is looked up when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from remat_codegen.api import BlockSummary, ComparedPlan, Comparison, OtherPlan, RematPlan, compare, plan, rematerialize
    from remat_codegen.errors import RematError

__all__ = [
    "BlockSummary",
    "ComparedPlan",
    "Comparison",
    "OtherPlan",
    "RematError",
    "RematPlan",
    "__version__",
    "compare",
    "plan",
    "rematerialize",
]


def __getattr__(name: str) -> Any:
    """What `__all__` names, imported when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"{__name__}.{'errors' if name == 'RematError' else 'api'}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
