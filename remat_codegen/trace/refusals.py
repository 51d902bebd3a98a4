"""One line for the user where a model cannot be traced, with the line of theirs that it comes from."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator

import torch

from remat_codegen.errors import TraceError, UnsupportedError, ValuesError
from remat_codegen.torch_seam import ABSENT, DATA_DEPENDENT
from remat_codegen.trace.ir import Source


def refused(what: str, hint: str = "write it with differentiable operations, or move it out of the model") -> UnsupportedError:
    """The error for what the user's line does that calls us."""
    frames = [f for f in traceback.extract_stack() if not is_library(f.filename)]
    where = f"{short_path(frames[-1].filename)}:{frames[-1].lineno}" if frames else None
    return UnsupportedError(what, where=where, hint=hint)


def refusal(error: BaseException | None) -> UnsupportedError | None:
    """Our own refusal, whatever torch.export has made of it."""
    while error is not None:
        if isinstance(error, UnsupportedError):
            return error
        error = error.__cause__ or error.__context__
    return None


_ASKED = ("aten.item", "aten._local_scalar_dense", "aten.is_nonzero", "aten.equal")  # how Python asks for a value


def trace_error(error: Exception) -> TraceError | UnsupportedError:
    """The line for what torch.export raises, or the model itself."""
    text = re.sub(
        rf"\b{ABSENT}(?=:\d)", "cuda", str(error)
    )  # what stands for a GPU that is not there has that name nowhere else
    where = _user_frame(error) or _quoted_frame(text)
    fixed = re.search(r"You marked L\['(\w+)'\].*?size\(\)\[(\d+)\] as dynamic but your code specialized it", text)
    if fixed:
        return TraceError(
            f"the model fixes the size {fixed[1]}.{fixed[2]}, so it cannot be dynamic",
            hint="something in forward turns it into a plain number, or compares it with one",
        )
    if isinstance(error, DATA_DEPENDENT) or "data-dependent" in text:
        hint = "compute it with torch.where or masks, or move the decision out of the model"
        hint = "compute it from the model's outputs" if "_loss" in str(getattr(error, "func", "")) else hint
        return ValuesError(f"{_decider(error)} by the value of a tensor, which a plan cannot follow", where=where, hint=hint)
    if isinstance(error, TypeError) and "FakeTensor" in text and _comes_through(error, PACKED):
        hint = "plan on inputs without lengths: a file with marks trains on packed ones, too"
        return UnsupportedError(  # what recurrent networks do with one, no run shows
            "a packed sequence has sizes by the values of a tensor, which a plan cannot follow", where=where, hint=hint
        )
    unknown = re.search(r"Found <class '([^']+)'> in output, which is not a known type", text)
    if unknown:
        return unknown_class(unknown[1].rpartition(".")[2])
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return TraceError(f"the forward pass cannot be traced: {type(error).__name__}: {first[:300]}", where=where)


def unknown_class(name: str) -> TraceError:
    """The error for what forward returns, where that is of a class that can hold tensors unseen."""
    hint = "return tensors in tuples, lists and dicts, or register the class with torch.utils._pytree"
    if name.endswith("Cache"):  # what models of transformers return unless told not to
        hint = "training needs no cache: set use_cache=False in the configuration or the inputs"
    return TraceError(f"forward returns a {name}, which torch.export does not know", hint=hint)


LONGEST = 120  # characters of a line that asks for a value, in messages
PACKED = "/torch/nn/modules/rnn.py", "/torch/nn/utils/rnn.py"  # where packed sequences are made and read
MARKED = "_marked_by_remat_codegen"  # the module that a text with marks is while it is traced
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def is_library(path: str) -> bool:
    """Whether a file is neither the user's nor a text with marks, which stands in its place."""
    between = path.endswith(("/contextlib.py", "/typing_extensions.py"))
    return between or (path.startswith("<") and path != f"<{MARKED}>") or "/torch/" in path or "/remat_codegen/" in path


def _user_frame(error: BaseException | None) -> str | None:
    """The innermost line of the user's own code in an exception's traceback."""
    found = None
    while error is not None:
        frame = error.__traceback__
        while frame is not None:
            path = frame.tb_frame.f_code.co_filename
            if not is_library(path):
                found = f"{short_path(path)}:{frame.tb_lineno}"
            frame = frame.tb_next
        error = error.__cause__
    return found


def _decider(error: BaseException) -> str:
    """What decides something by a tensor's value: an operation, a module of PyTorch's, or the user's code."""
    func = str(getattr(error, "func", ""))
    if func and not func.startswith(_ASKED):
        return f"{func} decides the size of what it makes"
    frame, found = error.__traceback__, "the model"
    while frame is not None:
        path, module = frame.tb_frame.f_code.co_filename, frame.tb_frame.f_locals.get("self")
        inner = "/torch/nn/modules/" in path and not path.endswith(("/module.py", "/container.py"))
        if inner and isinstance(module, torch.nn.Module):
            found = f"a {type(module).__name__} ({short_path(path)}:{frame.tb_lineno})"
        elif not is_library(path):
            found = "the model"
        frame = frame.tb_next
    return f"{found} decides something"


def _comes_through(error: BaseException, paths: tuple[str, ...]) -> bool:
    """Whether an error comes from one of these files."""
    frame = error.__traceback__
    while frame is not None and not frame.tb_frame.f_code.co_filename.endswith(paths):
        frame = frame.tb_next
    return frame is not None


def _quoted_frame(text: str) -> str | None:
    found = [f"{short_path(path)}:{line}" for path, line in _FRAME.findall(text) if not is_library(path)]
    return found[-1] if found else None


def short_path(path: str) -> str:
    """A file's name. A notebook's cells have files of their own, whose names are numbers that say nothing."""
    folder, _, name = path.rpartition("/")
    return "cell" if folder.rpartition("/")[2].startswith("ipykernel_") else name


def asking_line() -> str:
    """The line that asks for a value: where it is, and its text."""
    frame = next(f for f in reversed(traceback.extract_stack()) if not is_library(f.filename))
    return line_of(frame.filename, frame.lineno or 0, frame.line or "")


def line_of(file: str, line: int, text: str) -> str:
    """A line as notes print it: file.py:12 (`n = int(index.max())`)."""
    return f"{short_path(file)}:{line} (`{text.strip().rstrip(':')[:LONGEST]}`)"


def location(source: Source | None) -> str | None:
    """A source line as messages print it: file.py:12."""
    return None if source is None else f"{short_path(source.innermost.file)}:{source.innermost.line}"


@contextlib.contextmanager
def naming_the_line(source: Source | None) -> Iterator[None]:
    """Adds a user's line to refusals of what is inside that name none."""
    try:
        yield
    except (UnsupportedError, ValuesError) as error:
        if error.where is not None or source is None:
            raise
        raise type(error)(error.what, where=location(source), hint=error.hint) from error
