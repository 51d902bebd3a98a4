"""What `--budget` says: a number of bytes, or a share of the unmodified step's peak."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from remat_codegen.errors import BudgetError

UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("ib", 1024), ("b", 1000))
}
LARGEST = 2**63 - 1
LEAST_BYTES = 1024  # of a model's budget
MOST_BUDGETS = 100  # of one range
HINT = "write it like 1GiB, 800MiB, 1.5GB, a number of bytes, or 40% of the unmodified peak"

_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*|%)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget as the user wrote it. Exactly one of `nbytes` and `percent` is set."""

    text: str
    nbytes: int | None = None
    percent: Fraction | None = None

    def resolve(self, unmodified_peak: int) -> int:
        """The budget in bytes, for a model whose unmodified step peaks at `unmodified_peak` bytes."""
        if self.nbytes is not None:
            return self.nbytes
        assert self.percent is not None
        return int(unmodified_peak * self.percent / 100)


def parse_budget(text: str) -> Budget:
    """Reads `--budget`. Raises BudgetError where it says no positive amount."""
    text = text.strip()
    match = _AMOUNT.fullmatch(text)
    if match is None or len(text) > 40:
        raise BudgetError(f"cannot read the budget {_quoted(text)}", hint=HINT)
    amount, unit = Fraction(match[1]), match[2].lower()
    if amount == 0:
        raise BudgetError(f"the budget {_quoted(text)} leaves no memory at all", hint=HINT)
    return _share(text, amount) if unit == "%" else _bytes(text, amount, unit)


def check_units(text: str) -> None:
    """Refuses a model's budget that is a small number without a unit: it was meant otherwise. Raises BudgetError."""
    for budget in parse_budgets(text):
        if budget.nbytes is not None and budget.nbytes < LEAST_BYTES and budget.text.isdigit():
            hint = f"write {budget.text}% or {budget.text}MiB if you mean that"
            raise BudgetError(f"a budget of {budget.nbytes} bytes is less than any model needs", hint=hint)


def parse_overhead(text: str) -> Fraction:
    """Reads `--max-overhead`: 10% as 1/10. Raises BudgetError."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None or match[2] != "%" or len(text) > 40:
        raise BudgetError(f"cannot read the overhead {_quoted(text)}", hint="write it like 10% or 2.5%")
    return Fraction(match[1]) / 100


def parse_budgets(text: str) -> tuple[Budget, ...]:
    """Reads `--budgets`: budgets with commas between, or a range and a count, like 10%..90%/9. Raises BudgetError."""
    found: dict[Budget, None] = {}
    for part in text.split(","):
        first, dots, rest = part.partition("..")
        if dots:
            found |= dict.fromkeys(_range(part, first, rest))
        else:
            found[parse_budget(part)] = None
    return tuple(found)


def _range(text: str, first: str, rest: str) -> list[Budget]:
    last, _, number = rest.partition("/")
    if not re.fullmatch(r"\s*[0-9]{1,3}\s*", number, re.ASCII) or not 2 <= int(number) <= MOST_BUDGETS:
        raise BudgetError(f"the range {_quoted(text)} needs a count from 2 to {MOST_BUDGETS}", hint="write it like 10%..90%/9")
    low, high, count = parse_budget(first), parse_budget(last), int(number)
    if low.percent is not None and high.percent is not None:
        shares = [low.percent + (high.percent - low.percent) * i / (count - 1) for i in range(count)]
        return [Budget(f"{float(share):.6g}%", percent=share) for share in shares]
    if low.nbytes is None or high.nbytes is None:
        raise BudgetError(f"the range {_quoted(text)} goes from a share to an amount", hint="write both ends alike")
    amounts = [low.nbytes + (high.nbytes - low.nbytes) * i // (count - 1) for i in range(count)]
    return [Budget(str(n), nbytes=n) for n in amounts]


def _share(text: str, percent: Fraction) -> Budget:
    if percent > 100:
        raise BudgetError(f"the budget {_quoted(text)} is more than the unmodified peak", hint="100% plans no recomputation")
    return Budget(text, percent=percent)


def _bytes(text: str, amount: Fraction, unit: str) -> Budget:
    if f"{unit}ib" in UNITS:  # 1G: a power of two to some, a power of ten to others
        raise BudgetError(f"the budget {_quoted(text)} has half a unit", hint=f"write {text}iB or {text}B")
    if unit not in UNITS:
        raise BudgetError(f"the budget {_quoted(text)} has the unknown unit {unit!r}", hint=HINT)
    nbytes = amount * UNITS[unit]
    if unit in ("", "b") and nbytes.denominator != 1:
        raise BudgetError(f"the budget {_quoted(text)} is not a whole number of bytes", hint=HINT)
    if not 1 <= nbytes <= LARGEST:
        raise BudgetError(f"the budget {_quoted(text)} is not an amount of memory", hint=HINT)
    return Budget(text, nbytes=int(nbytes))


def plan_label(budget_bytes: int, batch: int | None) -> str:
    """What tells a plan from others in one file: its batch size, where these differ, or else its budget."""
    return format_bytes(budget_bytes) if batch is None else f"a batch of {batch}"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def format_bytes(nbytes: int, up: bool = False) -> str:
    """A size for people: 1.00 GiB, 431.2 MiB, 12 bytes. `up` rounds up: at least so much is needed."""
    for power, unit, digits in ((3, "GiB", 2), (2, "MiB", 1), (1, "KiB", 1)):
        amount = nbytes / 1024**power
        if abs(amount) >= 1 - 0.05 / 1024:  # less would be below 1024.0 of the next smaller unit
            amount = math.ceil(amount * 10**digits) / 10**digits if up else amount
            return f"{amount:.{digits}f} {unit}"
    return f"{nbytes} bytes"
