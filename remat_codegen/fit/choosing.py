"""Budgets and batch sizes that are found rather than given: what fits a device (`--fit`), the smallest budget for so much extra
time (`--max-overhead`), the largest batch for a budget (`--largest-batch`).

A found budget is a number of bytes and goes the way of one that was given: into the request, the plan and the header's command,
so that `check` and `update` make the same file without asking again. `SavedPlan.answer` says what it is the answer to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from remat_codegen.ask.batch import Batch, parse_batch
from remat_codegen.ask.budget import format_bytes, parse_budget, parse_overhead
from remat_codegen.ask.optimizers import smaller_than
from remat_codegen.ask.request import FREE, Question, Request
from remat_codegen.errors import BudgetError, TargetError
from remat_codegen.files import check_writable
from remat_codegen.fit.batching import Trials, Tried
from remat_codegen.fit.drafts import Costed, Draft, Measure, draft_of, least_bytes, measured, write
from remat_codegen.fit.resident_memory import free_bytes, standing, sum_in_words
from remat_codegen.profile.devices import Device
from remat_codegen.run.marked import LITTLE_FELT
from remat_codegen.run.traced import Traced
from remat_codegen.show.results import Chosen, Item, Progress, Report, percent

CUDAS_BYTES = 10**9  # of a GPU's memory: context and driver; a T4 of 16 GB has 14.56 GiB, its out-of-memory messages say
MOST_PLANS = 12  # of one search for a budget
LEAST_PLANS = 4  # the same where the time is up
MORE_TIME = "raise --time-limit for a better answer"
NEAR = 0.004  # of the unmodified peak: budgets that differ by less are not told apart
MOST_BATCHES = 16  # that one search traces
MOST_SMALLER = 8  # the same where nothing fits, for a word of advice


@dataclass(frozen=True, slots=True)
class Room:
    """What there is for a whole training, and what of it is taken by what stands beside the step."""

    total_bytes: int
    items: tuple[Item, ...]
    optimizer: str
    free_on: str | None = None

    @property
    def left_bytes(self) -> int:
        """What is left for the step: its budget."""
        return self.total_bytes - sum(item.nbytes for item in self.items)

    def answer(self) -> str:
        """What the budget is, for the header."""
        *names, last = [item.what for item in self.items] or ["nothing"]
        listed = f"{', '.join(names)} and {last}" if names else last
        there = f"{format_bytes(self.total_bytes)}{f' that were free on {self.free_on}' if self.free_on else ''}"
        return f"what {there} leave beside {listed}"


# ---------------------------------------------------------------------------------------------- the way to a file


def generate(request: Request, question: Question, progress: Progress) -> Report:
    """Writes the file that `request` asks for, within a budget that answers `question`. Raises RematError."""
    for path in (request.output_path, request.save_plan):
        if path is not None:
            check_writable(path)
    if request.dynamic and request.edition == 2:
        request = replace(request, dynamic="")  # such files take all sizes that the model takes
    elif request.dynamic:
        request = replace(request, edition=1)
    if question.largest_batch is not None:
        parse_batch(request.batch or "1")  # which says that there can be one only
        draft, chosen = with_largest_batch(request, question, progress)
    elif question.max_overhead is not None:
        draft, chosen = least_budget(measured(request, progress), question.max_overhead, progress)
    else:
        draft, chosen = fitting(request, question, progress)
    return replace(write(draft, progress), chosen=chosen)


# ---------------------------------------------------------------------------------------------- --fit


def total_of(fit: str, device: str, gpu: Device | None = None) -> tuple[int, str | None]:
    """The bytes that `--fit` says, and the device where they are what it has free; of a `gpu` that is not there, what
    it is sold with, in decimal gigabytes, but for `CUDAS_BYTES`. Raises BudgetError.

    To be asked before a model is loaded: then what this process holds by then is what the one that trains will hold, too.
    """
    if fit == FREE and gpu is not None:
        return gpu.memory_bytes - CUDAS_BYTES, None
    if fit == FREE:
        return free_bytes(device), device
    budget = parse_budget(fit)
    if budget.nbytes is None:
        raise BudgetError(f"{fit} of what?", where="--fit", hint="give an amount, like --fit 24GiB, or --fit alone")
    return budget.nbytes, None


def room(traced: Traced, total_bytes: int, optimizer: str, device: str, free_on: str | None = None) -> Room:
    """What a training with a model and its inputs has for the step. `optimizer` is a name in `OPTIMIZERS`."""
    target, held = traced.target, [tensor for _, tensor in traced.model.trace.constants]
    items = standing(target.module, (target.args, target.kwargs), optimizer, device, held)
    return Room(total_bytes, items, optimizer, free_on)


def fitting(request: Request, question: Question, progress: Progress) -> tuple[Draft, Chosen]:
    """The draft for what a device's memory leaves to the step. Raises BudgetError, with what would fit, where nothing does."""
    assert question.fit is not None and question.optimizer is not None
    total, free_on = total_of(question.fit, request.device, request.gpu)
    found = measured(request, progress)
    there = room(found.traced, total, question.optimizer, request.device, free_on)
    return fit(found, there, progress), chosen_of(there)


def fit(found: Costed, there: Room, progress: Progress, measure: Measure = measured) -> Draft:
    """The draft of a model for the room that there is. Raises BudgetError, with what would fit, where nothing does.

    `measure` traces and measures a request's model, at the batch size that the request says.
    """
    try:
        if there.left_bytes <= 0:
            least = least_bytes(found, progress)
            raise BudgetError("nothing is left", least_bytes=least.nbytes, out_of_time=not least.sure)
        draft = draft_of(found, there.left_bytes, progress).saying(there.answer())
    except BudgetError as error:
        raise _does_not_fit(found, there, error, progress, measure) from error
    _note_optimizers_step(there, draft, progress)
    return draft


def chosen_of(there: Room, **more: object) -> Chosen:
    """How a budget that is left was found, for the report."""
    return replace(Chosen(there.items, there.total_bytes, there.optimizer), **more)  # type: ignore[arg-type]


def _does_not_fit(found: Costed, there: Room, error: BudgetError, progress: Progress, measure: Measure) -> BudgetError:
    """Says what is missing, and what would fit: a smaller batch, an optimizer that keeps less."""
    total, beside = format_bytes(there.total_bytes), sum_in_words(there.items)
    left = f"leave {format_bytes(there.left_bytes)}" if there.left_bytes > 0 else "leave nothing"
    if error.least_bytes is None or (error.out_of_time and there.left_bytes > 0):  # which says itself what does not fit
        return BudgetError(f"of {total}, {beside} {left} for the step, and {error.what}", where="--fit", hint=error.hint)
    what = f"{found.traced.target.label} does not fit into {total}: {beside}"
    so_far = " that was found in time" if error.out_of_time else ""
    needed = f"the smallest plan{so_far} needs {format_bytes(error.least_bytes, up=True)}"
    remedies = [_smaller_batch(found, there, progress, measure), _other_optimizer(found, there, error.least_bytes)]
    remedies += [] if any(remedies) else [f"{format_bytes(_needed(there, error.least_bytes), up=True)} would be enough"]
    hint = "what would fit: " + ", or ".join(r for r in remedies if r)
    return BudgetError(f"{what} {left} for the step, and {needed}", where="--fit", hint=hint, least_bytes=error.least_bytes)


def _needed(there: Room, least: int) -> int:
    return there.total_bytes - there.left_bytes + least


def _other_optimizer(found: Costed, there: Room, least: int) -> str:
    """The optimizer that keeps the most of those with which the model fits; empty where it fits with none."""
    for name in smaller_than(there.optimizer):
        if room(found.traced, there.total_bytes, name, found.request.device).left_bytes >= least:
            return f"--optimizer {name}"
    return ""


def _smaller_batch(found: Costed, there: Room, progress: Progress, measure: Measure) -> str:
    """The largest batch that fits, below the one that does not; empty where there is none, or the batch cannot be told."""
    device = found.request.device
    trials = Trials(found.request, "", lambda t: room(t, there.total_bytes, there.optimizer, device).left_bytes, measure)
    try:
        size = trials.begin(found)
    except TargetError:
        return ""
    if size == 1:
        return ""
    with progress.stage("smaller batches"):
        largest, _ = trials.search(MOST_SMALLER, progress)
    return f"a batch of {largest} instead of {size} (--batch {Batch(largest, trials.places)})" if largest else ""


def _note_optimizers_step(there: Room, draft: Draft, progress: Progress) -> None:
    """Says so where the optimizer's own step may take more than the budget: on CUDA, torch.optim works on lists of tensors
    as large as all parameters together, when no activations are there."""
    trained = next((i.nbytes for i in there.items if i.what == "gradients"), 0)
    on_cuda = torch.device(draft.measured.request.device).type == "cuda"
    keeps = any(i.what.endswith("'s state") for i in there.items)
    if on_cuda and keeps and trained > there.left_bytes:
        took = f"the step of {there.optimizer} may take {format_bytes(trained)} for itself, which is more than the budget"
        progress.note(f"note: {took}; with foreach=False or fused=True it takes next to nothing")


# ---------------------------------------------------------------------------------------------- --max-overhead


def least_budget(found: Costed, max_overhead: str, progress: Progress) -> tuple[Draft, Chosen]:
    """The smallest budget found whose plan takes at most so much more time, and its draft. Raises BudgetError.

    What a plan does not count of that, Python's time for parts on a CPU, counts here."""
    most, high = parse_overhead(max_overhead), found.plain_bytes
    drafts: dict[int, Draft] = {}
    late = list[bool]()  # whether a time limit ended the search, or that of a plan

    def good(nbytes: int) -> bool:
        try:
            drafts[nbytes] = draft_of(found, nbytes, progress)
        except BudgetError as error:
            late.append(error.out_of_time)
            return False
        overhead = drafts[nbytes].overhead  # with Python's time, which the user's clock counts, too
        progress.note(f"budget {format_bytes(nbytes)}: {percent(overhead)} more time")
        return overhead <= most

    def ends() -> bool:
        late.append(found.request.time_is_up)
        return late[-1]

    with progress.stage("budgets"):
        least = least_bytes(found, progress)
        late.append(not least.sure)
        best, tried = smallest_good(good, least.nbytes, high, MOST_PLANS, int(NEAR * high), ends)
    if any(late):
        progress.note(f"note: the search for a budget was cut short after {found.request.time_limit:g} s; {MORE_TIME}")
    if best is None:
        found_in_time = f" that was found in {found.request.time_limit:g} s" if any(late) else ""
        what = f"no plan{found_in_time} takes at most {max_overhead} more time"
        raise BudgetError(what, where="--max-overhead", hint="another --planner may find one")
    of = f"of {len(tried)} that were planned for " if len(tried) > 1 or any(late) else ""
    found_overhead, counted = drafts[best].overhead, ", Python's time for parts included"
    takes = f"{percent(found_overhead)}{counted if found_overhead > drafts[best].plan.overhead + LITTLE_FELT else ''}"
    said = f"the smallest {of}with at most {max_overhead} more time ({takes})"
    return drafts[best].saying(said), Chosen(tried=tried)


def smallest_good(
    good: Callable[[int], bool], low: int, high: int, most: int, near: int, time_is_up: Callable[[], bool] = lambda: False
) -> tuple[int | None, Tried]:
    """The smallest number found that is good, None where there is none, and all that were tried: `low`, `high`, then halves,
    until the time is up, `LEAST_PLANS` at least: else there would be nothing but the two ends.

    More is meant to be better but need not be, for planners are not perfect: the smallest good one of those tried it is.
    """
    tried = {low: good(low)}
    if not tried[low] and high > low:
        tried[high] = good(high)
    while not tried[low] and tried.get(high, False) and len(tried) < most and high - low > near:
        if len(tried) >= LEAST_PLANS and time_is_up():
            break
        middle = (low + high) // 2
        tried[middle] = good(middle)
        low, high = (low, middle) if tried[middle] else (middle, high)
    return min((n for n, is_good in tried.items() if is_good), default=None), tuple(tried.items())


# ---------------------------------------------------------------------------------------------- --largest-batch


def with_largest_batch(request: Request, question: Question, progress: Progress) -> tuple[Draft, Chosen]:
    """The draft with the largest batch that a budget, or what a device's memory leaves, takes. Raises RematError."""
    assert question.largest_batch is not None
    budget, total, free_on = None, 0, None
    if question.fit is None:
        budget = parse_budget(request.budget or "").nbytes
        if budget is None:
            hint = "give it in bytes, like 1GiB"
            raise BudgetError(f"a budget of {request.budget} grows with the batch", where="--largest-batch", hint=hint)
    else:
        total, free_on = total_of(question.fit, request.device, request.gpu)

    def there(traced: Traced) -> Room:
        return room(traced, total, question.optimizer or "", request.device, free_on)

    trials = Trials(request, question.largest_batch, lambda t: there(t).left_bytes if budget is None else budget)
    with progress.stage("batches"):
        trials.begin(measured(request, progress))
        size, tried = trials.search(MOST_BATCHES, progress)
    if trials.best is None:
        raise trials.nothing_fits(size for size, _ in tried)
    if trials.cut_short:
        progress.note(f"note: the search for a batch was cut short after {request.time_limit:g} s; {MORE_TIME}")
    draft, largest = trials.best, f"{size} is the largest batch that {'was found to fit' if trials.cut_short else 'fits'}"
    if budget is not None:
        return draft.saying(f"with which {largest}"), Chosen(batch=size, tried=tried)
    left = there(draft.measured.traced)
    _note_optimizers_step(left, draft, progress)
    return draft.saying(f"{left.answer()}; {largest}"), chosen_of(left, batch=size, tried=tried)
