"""The errors a user can meet: one line saying what is wrong, where, and what to do about it."""

from __future__ import annotations


class RematError(Exception):
    """Something the user can put right. The command line prints it as one line and exits with code 2.

    `where` names a place in the user's own words (a source line, a module path, an option); `hint` says what to do.
    """

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.what, self.where, self.hint = what, where, hint
        super().__init__(self.line())

    def line(self) -> str:
        """The whole message on one line."""
        text = self.what if self.where is None else f"{self.where}: {self.what}"
        text = text if self.hint is None else f"{text}; {self.hint}"
        return " ".join(text.split())

    def without_place(self) -> str:
        """The message on one line, without `where`: for those who have named the place."""
        return " ".join((self.what if self.hint is None else f"{self.what}; {self.hint}").split())


class TargetError(RematError):
    """The model, its constructor arguments or its inputs cannot be found or used."""


class TraceError(RematError):
    """The model cannot be captured as one graph of operations."""


class ValuesError(TraceError):
    """What the model does depends on values of tensors, which no trace without data can follow."""


class UnsupportedError(RematError):
    """An operation that no exact plan is known for."""


class BudgetError(RematError):
    """The budget cannot be read, or no plan reaches it. `least_bytes` is then the smallest that works, where one is known.

    `out_of_time` says that a time limit ended the search: there may be a plan, and `least_bytes` is the smallest so far.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        least_bytes: int | None = None,
        out_of_time: bool = False,
    ) -> None:
        self.least_bytes, self.out_of_time = least_bytes, out_of_time
        super().__init__(what, where=where, hint=hint)


class PlanFileError(RematError):
    """A saved plan is malformed, or belongs to another model."""


class GraphFileError(RematError):
    """A graph from a file is malformed."""


class OutputError(RematError):
    """The generated file cannot be written."""


class VersionWarning(UserWarning):
    """PyTorch is of a version that this package was not tried with."""


class VersionError(RematError):
    """PyTorch is of a version that this package does not work with."""


class VerifyError(RematError):
    """The generated file cannot be compared with its original."""
