"""A thin layer over python-mip: 0-1 programs with a time limit and a relative gap, solved silently.

HiGHS where it is installed and works, else CBC, which python-mip brings. Rows are sums of (variable, coefficient); a variable
that is known beforehand may be a plain number, so that a formulation need not treat fixed cases apart. One thread: same
program, same answer.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import mip

from remat_codegen.planners.base.deadline import check, seconds_left, within
from remat_codegen.planners.base.result import Status

Term = tuple[Any, float]  # a mip.Var or a number, and its coefficient
TINY = 1e-6  # values this close to an integer are that integer
MODULES = {"HIGHS": ("mip.highs", "highslib"), "CBC": ("mip.cbc", "cbclib")}  # of python-mip, and their libraries
HIGHS_PACKAGES = "highspy", "highsbox"  # where python-mip looks for the library, in this order
HIGHS_PATH = "PMIP_HIGHS_LIBRARY"  # python-mip takes the library from there, if it is set


@dataclass(frozen=True, slots=True)
class Result:
    """How a solve ended. `values` holds the incumbent by variable index, empty when there is none; `gap` is relative to it."""

    status: Status
    objective: float
    bound: float
    gap: float
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Solver:
    """Who solves, as python-mip spells it, and a note for the user where that is not who was installed for it."""

    name: str
    note: str | None = None


@lru_cache(maxsize=1)
def solver() -> Solver:
    """The best solver that works, found once by solving something: that a package is installed does not say that its library
    can be loaded."""
    installed = [package for package in HIGHS_PACKAGES if importlib.util.find_spec(package) is not None]
    if not installed and HIGHS_PATH not in os.environ:
        return Solver("CBC")
    if _highs_works():
        return Solver("HIGHS")
    return Solver("CBC", _why_not_highs(installed))


def _why_not_highs(installed: list[str]) -> str:
    found, repair = ", ".join(map(_with_version, installed)), "`pip install highsbox` brings one that works"
    if HIGHS_PATH in os.environ:
        found, repair = f"{HIGHS_PATH}={os.environ[HIGHS_PATH]}", f"unset {HIGHS_PATH}, or let it name HiGHS's shared library"
    return f"CBC plans, which is slower: {_with_version('mip')} cannot use the HiGHS of {found}; {repair}"


def _with_version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # a folder on the path that pip did not put there
        return package


def _highs_works() -> bool:
    """Whether HiGHS finds the only solution of a program of one variable."""
    with _silence(), within(None):  # what is found out here is remembered
        if not importlib.import_module("mip.highs").has_highs:  # asked first: a model that is half made complains when it goes
            return False
        try:
            program = Program("HIGHS")
            one = program.binary()
            program.equal([(one, 1)], 1)
            found = program.minimise([(one, 1)], 10.0, gap=0)
        except Exception:  # whatever a library of another version does
            return False
    return found.status is Status.OPTIMAL and abs(found.objective - 1) <= TINY


class Program:
    """A minimisation problem that is built row by row and solved once."""

    def __init__(self, name: str | None = None) -> None:
        name = name or solver().name
        with _silence():
            _bind_destructors(name)
            self.model = mip.Model(sense=mip.MINIMIZE, solver_name=name)
            self.model.verbose = 0
        self.model.add_var(lb=1, ub=1)  # solvers disagree on what the solution of a program without variables is
        self.rows = 0

    def binary(self) -> mip.Var:
        """A new 0-1 variable."""
        return self.model.add_var(var_type=mip.BINARY)

    def between(self, low: float, high: float) -> mip.Var:
        """A new continuous variable."""
        return self.model.add_var(lb=low, ub=high)

    def at_most(self, terms: Iterable[Term], limit: float) -> None:
        """Adds the row  sum of terms <= limit."""
        expression = _sum(terms)
        if expression.expr:
            self.model.add_constr(expression <= limit)
            self.rows += 1
        elif expression.const > limit + TINY:
            self._contradiction()

    def equal(self, terms: Iterable[Term], value: float) -> None:
        """Adds the row  sum of terms = value."""
        expression = _sum(terms)
        if expression.expr:
            self.model.add_constr(expression == value)
            self.rows += 1
        elif abs(expression.const - value) > TINY:
            self._contradiction()

    def _contradiction(self) -> None:
        """A row without variables that cannot hold makes the program infeasible, not the caller wrong."""
        never = self.model.add_var(lb=0, ub=1)
        self.model.add_constr(never >= 2)

    def minimise(self, terms: Iterable[Term], seconds: float, gap: float) -> Result:
        """Solves. A solve that runs out of its seconds with an incumbent is TIME_LIMIT; without one it is TIME_LIMIT with no
        values. Raises TimeUp where a deadline ended it before."""
        self.model.objective = mip.minimize(_sum(terms))
        self.model.max_mip_gap = gap
        self.model.max_mip_gap_abs = 1e-9
        self.model.threads = 1
        self.model.seed = 1
        most = seconds_left(seconds)
        with _silence():
            result = self._result(self.model.optimize(max_seconds=most))
        check(cut_short=most < seconds and result.status is Status.TIME_LIMIT)
        return result

    def _result(self, found: mip.OptimizationStatus) -> Result:
        if found in (mip.OptimizationStatus.INFEASIBLE, mip.OptimizationStatus.INT_INFEASIBLE):
            return Result(Status.INFEASIBLE, float("inf"), float("inf"), 0.0, ())
        if not self.model.num_solutions:
            return Result(Status.TIME_LIMIT, float("inf"), 0.0, float("inf"), ())
        status = Status.OPTIMAL if found is mip.OptimizationStatus.OPTIMAL else Status.TIME_LIMIT
        objective, bound = float(self.model.objective_value), float(self.model.objective_bound)
        gap = max(0.0, objective - bound) / max(abs(objective), TINY)
        return Result(status, objective, bound, gap, tuple(float(v.x) for v in self.model.vars))


@lru_cache
def _bind_destructors(name: str) -> None:
    """Looks up once what python-mip calls when a model is collected.

    cffi looks a C function up under a lock that is not re-entrant. If the garbage collector runs inside such a look-up and
    finds an old model, whose `__del__` looks its destructor up for the first time, the process waits for itself for ever.
    """
    module, library_name = MODULES[name]
    library = getattr(importlib.import_module(module), library_name, None)
    enabled = gc.isenabled()
    gc.disable()
    for function in ("Highs_destroy", "Cbc_deleteModel", "Osi_deleteSolver"):
        getattr(library, function, None)
    if enabled:
        gc.enable()


def _sum(terms: Iterable[Term]) -> mip.LinExpr:
    variables, coefficients, constant = [], [], 0.0
    for factor, coefficient in terms:
        if isinstance(factor, mip.Var):
            variables.append(factor)
            coefficients.append(coefficient)
        else:
            constant += factor * coefficient
    return mip.LinExpr(variables, coefficients, constant)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Sends file descriptors 1 and 2 to nowhere: solvers written in C print past sys.stdout."""
    kept: list[tuple[int, int]] = []
    with open(os.devnull, "w") as nowhere:
        for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
            with contextlib.suppress(OSError):
                kept.append((number, os.dup(number)))
                os.dup2(nowhere.fileno(), number)
        try:
            yield
        finally:
            for number, copy in kept:
                os.dup2(copy, number)
                os.close(copy)
