"""torch.export, called so that it finds the sizes that may change and refuses what no trace shows."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from remat_codegen.errors import RematError, TraceError
from remat_codegen.torch_seam import OpOverload, pytree, schema, tree_map, unchecked_distributions, without_code
from remat_codegen.trace import absent, cudnn_rnn, grouped_products
from remat_codegen.trace.autograd_functions import functions_as_operations
from remat_codegen.trace.caches import caches_as_before
from remat_codegen.trace.chance import beginning_anew, going_on
from remat_codegen.trace.checkpoints import checkpoints_noted
from remat_codegen.trace.faithful import Program, computes_alike, have_the_same_operations
from remat_codegen.trace.frames import places_noted
from remat_codegen.trace.function_calls import FunctionCalls
from remat_codegen.trace.hidden import (
    no_switching,
    only_plain_gradients,
    refused_calls,
    traced_alike,
    traced_data,
)
from remat_codegen.trace.ir import Modules, Trace
from remat_codegen.trace.questions import Questions
from remat_codegen.trace.reader import Reader
from remat_codegen.trace.recording import Chance, Recording, made_bytes, saving_nothing
from remat_codegen.trace.recording import recorded as record_run
from remat_codegen.trace.refusals import refusal, trace_error
from remat_codegen.trace.replay import with_run
from remat_codegen.trace.scripted import no_scripted_gradients
from remat_codegen.trace.settings import Reads, mentions_types
from remat_codegen.trace.sizes import Asked, Together
from remat_codegen.trace.state import Seen, attributes_of, hooks_of, put_back, put_hooks_back, watched, with_returned
from remat_codegen.trace.structures import known_outputs
from remat_codegen.trace.surroundings import Autocast, autocasting
from remat_codegen.trace.swapping import swapped
from remat_codegen.trace.values import Decisions, in_one_memory, reached
from remat_codegen.trace.views import separate_views
from remat_codegen.trace.vmaps import flatten_vmaps

A_FEW = 16  # questions to random numbers more than twice those of another run
MOST_ASKED = 8  # places that are told of the trace, one after the other


@going_on()
def trace(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    autocast: Autocast = (),
    dynamic: Asked = (),
    together: Together = Together.NONE,
    recorded: bool = False,
) -> Trace:
    """The operations of `module(*args, **kwargs)`, called under `autocast`. `dynamic` names the sizes that may change;
    `together` says which of them are always equal. Where forward does something by a tensor's value, and always if `recorded`,
    they are those of one run on these inputs, if no size may change.

    Raises TraceError where the forward pass fails, or decides something by a tensor's value, or by a size that may change
    (naming the line).
    """
    grouped_products.known_without_data()
    if (gpu := absent.gpu_of(module, args, kwargs)) is not None:  # where nothing can run
        with absent.chosen(gpu), absent.refusing_values():
            found = _exported(module, args, kwargs, absent.casts_on(autocast), dynamic, together)
        return absent.as_cuda(found, gpu)
    if torch.cuda.is_initialized():
        cudnn_rnn.drop_nothing_without_data()
    why: RematError | None = None
    if not recorded:
        try:
            return _exported(module, args, kwargs, autocast, dynamic, together)
        except TraceError as error:
            if dynamic:
                raise
            why = error
    noted = list[Reads]()
    try:
        found = traced_alike(partial(_recorded, module, args, kwargs, autocast, noted), module)
    except TraceError as error:  # it may be that nothing can run here, as on a device that is not there
        raise why or error from error
    finally:
        _put_back(noted)
    assert found.run is not None
    lines = found.run.lines or ((why.where if why is not None else None) or "forward",)
    return replace(found, run=replace(found.run, lines=lines))


def _exported(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    autocast: Autocast,
    dynamic: Asked,
    together: Together,
) -> Trace:
    """The same, by torch.export.

    Libraries that decide something by an input's value (a mask that is all ones is left out) do not in a trace, and may round
    otherwise then. Where they do, the trace is that of what they decide by these inputs.
    """
    numbers = _numbers(module)
    leaves = pytree.tree_leaves((args, kwargs))
    asked = frozenset((i, d) for tensor, d in dynamic for i, leaf in enumerate(leaves) if leaf is tensor)
    noted = list[Reads]()
    programs: list[Program] = []  # that may compute something else than the model, as libraries were told of the trace

    def read(seen: Seen, given: Any = None) -> Trace:
        reads, questions, decisions = Reads(), Questions(), Decisions(given)
        noted.append(reads)
        try:
            with warnings.catch_warnings(record=True), watched(module, seen, decisions), reads.noted():
                exported = _export(module, args, kwargs, autocast, dynamic, questions, decisions)
            programs.extend([Program(exported.module(), bool(seen.assigned or decisions.made))] if questions.told else [])
        except Exception as error:  # whatever torch.export raises, the user gets one line
            raise refusal(error) or trace_error(error) from error
        found = _read(Reader(exported, module, autocast, asked, together), exported, module, reads, seen, numbers)
        return with_returned(found, seen.assigned, decisions.lines())

    try:
        found = traced_alike(read, module)
    finally:
        _put_back(noted)
    if not programs:
        return found
    told = len(programs)
    try:
        decided = traced_alike(partial(read, given=(args, kwargs)), module)
    except RematError:
        return found
    finally:
        _put_back(noted)
    if not decided.decisions or have_the_same_operations(found, decided):
        return found
    if computes_alike(programs[0], module, args, kwargs, autocast):
        return found
    differs = len(programs) > told and computes_alike(programs[-1], module, args, kwargs, autocast) is False
    return found if differs else decided


def _put_back(noted: list[Reads]) -> None:
    """Leaves the plain objects that modules hold as they were before the first of some traces."""
    for reads in reversed(noted):
        reads.objects.put_back()
    noted.clear()


def _recorded(module: torch.nn.Module, args: Any, kwargs: Any, autocast: Autocast, noted: list[Reads], seen: Seen) -> Trace:
    """The operations of one run. Where random numbers alone decide something, as LayerDrop has them, that is always decided
    in the way that makes most: a step may take as much."""
    numbers = _numbers(module)
    run, reads = _one_run(module, args, kwargs, autocast, noted, seen, Chance())
    if run.by_chance:
        most, best, asked = made_bytes(run), Chance(), 2 * run.by_chance + A_FEW
        for answer in (False, True):
            with contextlib.suppress(RematError):  # where nothing is left, or what is refused
                nbytes = made_bytes(_one_run(module, args, kwargs, autocast, noted, Seen(), Chance(answer, asked))[0])
                most, best = (nbytes, Chance(answer, asked)) if nbytes > most else (most, best)
        vars(seen).update(vars(Seen()))
        run, reads = _one_run(module, args, kwargs, autocast, noted, seen, best)
    reader = Reader(run, module, autocast, frozenset(), Together.NONE)
    found = with_returned(_read(reader, run, module, reads, seen, numbers), seen.assigned, ())
    return with_run(found, {reader.of_node[node].variable: tensor for node, tensor in run.given.items()}, run.lines)


def _one_run(
    module: torch.nn.Module, args: Any, kwargs: Any, autocast: Autocast, noted: list[Reads], seen: Seen, chance: Chance
) -> tuple[Recording, Reads]:
    reads = Reads()
    noted.append(reads)
    try:
        noting = warnings.catch_warnings(record=True), watched(module, seen, Decisions()), reads.noted(), saving_nothing()
        with contextlib.ExitStack() as around:
            for context in (*noting, _watching(module, autocast), swapped(refused_calls()), beginning_anew(seen.drawn)):
                around.enter_context(context)
            return record_run(module, args, kwargs, chance), reads
    except Exception as error:  # whatever the model raises
        raise refusal(error) or trace_error(error) from error


def _read(
    reader: Reader, exported: Any, module: torch.nn.Module, reads: Reads, seen: Seen, numbers: Mapping[str, int]
) -> Trace:
    """The trace of an exported program, or of a recorded run."""
    typed = reads.asked_for_types or mentions_types(exported.graph_module)
    flatten_vmaps(exported.graph_module, _trained(exported, module))
    separate_views(exported.graph_module)
    _leave_out_unread(exported.graph_module)
    found = reader.read()
    asked = Modules(
        settings=reads.of(module, [*seen.attributes, *seen.written]),
        objects=reads.of_objects(module),
        moved=reads.objects.moved(),
        modes=reads.modes(module),
        evaluating=frozenset(path for path, m in module.named_modules() if not m.training),
        numbers=numbers,
        dtypes=frozenset(p.dtype for p in module.parameters() if typed),
    )
    return replace(found, modules=asked)


def _trained(exported: Any, module: torch.nn.Module) -> set[str]:
    """The placeholders of a traced graph that get gradients."""
    names = {name for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    placeholders = [n for n in exported.graph.nodes if n.op == "placeholder"]
    inputs = {n.name for n in placeholders if getattr(n.meta.get("val"), "requires_grad", False)}
    return inputs | {s.arg.name for s in exported.graph_signature.input_specs if s.target in names}


def _leave_out_unread(graph_module: torch.fx.GraphModule) -> None:
    """Removes constants that nothing reads, as libraries make them: a file with such a line would puzzle its readers."""
    constant = set[torch.fx.Node]()
    neighbours, written = in_one_memory(graph_module.graph)
    for node in graph_module.graph.nodes:
        ours = isinstance(node.target, OpOverload) and node.target.namespace == "aten"  # others may do anything
        if not ours:
            continue
        if schema(node.target).is_mutable:
            constant -= reached(written.intersection(node.all_input_nodes), neighbours)
        elif constant.issuperset(node.all_input_nodes) and torch.Tag.nondeterministic_seeded not in node.target.tags:
            constant.add(node)
    for node in reversed(list(graph_module.graph.nodes)):
        if node in constant and not node.users:
            graph_module.graph.erase_node(node)


def _numbers(module: torch.nn.Module) -> dict[str, int]:
    """The whole numbers that modules hold as attributes, `h.0.attn.heads`, before anything has run."""
    modules = module.named_modules(remove_duplicate=False)
    held = [(path, m, name, value) for path, m in modules for name, value in vars(m).items()]
    plain = [h for h in held if type(h[3]) is int and h[2].isidentifier() and not hasattr(type(h[1]), h[2])]
    return {f"{path}.{name}": value for path, _, name, value in plain}


def _export(
    module: Any, args: Any, kwargs: Any, autocast: Autocast, dynamic: Asked, questions: Questions, decisions: Decisions
) -> torch.export.ExportedProgram:
    held, hooks = attributes_of(module), hooks_of(module)

    def export(others: bool = False, noticed: bool = False) -> torch.export.ExportedProgram:
        decisions.made.clear()
        given, shapes = (args, kwargs), None
        if dynamic:
            given, copied = _copies(given, dynamic)
            shapes = _shapes(module, given[0], given[1], copied, others)
        with contextlib.ExitStack() as around:
            around.enter_context(_watching(module, autocast))
            around.enter_context(swapped(refused_calls() | ({} if noticed else questions.answers())))
            if not noticed:
                around.enter_context(decisions.answered(module))
            try:
                return torch.export.export(module, *given, strict=False, dynamic_shapes=shapes)
            except Exception:
                put_back(module, held)  # a table that forward has made and holds is one of that trace
                put_hooks_back(hooks)
                raise

    try:
        return _asked_again(export, questions)
    except Exception as error:
        if refusal(error) is not None:
            raise
        ways = [{"others": True}] if dynamic else []  # torch.export may find which sizes have to equal those asked for
        ways += [{**way, "noticed": True} for way in ({}, *ways)]  # some models are written to be traced, and only so can be
        for way in ways:
            with contextlib.suppress(Exception):
                return export(**way)
        raise


@contextlib.contextmanager
def _watching(module: torch.nn.Module, autocast: Autocast) -> Iterator[None]:
    """What a forward pass does is noted in here, or refused where no trace shows it."""
    with contextlib.ExitStack() as around:
        for context in (
            *(silent_logs(), contextlib.redirect_stderr(io.StringIO()), unchecked_distributions(), traced_data()),
            *(FunctionCalls(), no_switching(module), known_outputs(module), autocasting(autocast)),
            *(only_plain_gradients(), functions_as_operations(), checkpoints_noted(), places_noted(module)),
            *(no_scripted_gradients(), caches_as_before(module), without_code()),
        ):
            around.enter_context(context)
        yield


def _asked_again(export: Callable[[], torch.export.ExportedProgram], questions: Questions) -> torch.export.ExportedProgram:
    """What `export` gives once those have been told the truth who would else do what no trace can follow."""
    for _ in range(MOST_ASKED):
        try:
            return export()
        except Exception as error:
            if refusal(error) is not None or not questions.tell_last():
                raise
    return export()


def _copies(given: Any, dynamic: Asked) -> tuple[Any, Asked]:
    """Copies of the inputs: torch.export marks tensors whose sizes may change, for good."""
    made: dict[int, torch.Tensor] = {}

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in made:
            made[id(leaf)] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
        return made[id(leaf)]

    return tree_map(copy, given), tuple((copy(tensor), dimension) for tensor, dimension in dynamic)


def _shapes(module: Any, args: Any, kwargs: Any, dynamic: Asked, others: bool) -> Any:
    """torch.export's description of the sizes asked for; the `others` may follow from them."""
    collection = torch.export.ShapesCollection()
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor):
            asked = {d for tensor, d in dynamic if tensor is leaf}
            usual = torch.export.Dim.AUTO if others else torch.export.Dim.STATIC
            collection[leaf] = [torch.export.Dim.DYNAMIC if d in asked else usual for d in range(leaf.dim())]
    return collection.dynamic_shapes(module, args, kwargs)


@contextlib.contextmanager
def silent_logs() -> Iterator[None]:
    """PyTorch logs what it raises while it traces; the user gets one line of it from us, or none where it was a try."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
