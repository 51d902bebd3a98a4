"""The schedule as a program over block functions, with runs of equal steps as loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from remat_codegen.emit.about import about
from remat_codegen.emit.functions import Function, write_function
from remat_codegen.emit.lines import uses
from remat_codegen.emit.linkage import FunctionExpression, Linkage
from remat_codegen.emit.loops import compress, mark, number
from remat_codegen.emit.names import Namer
from remat_codegen.emit.reruns import run_again
from remat_codegen.emit.scope import Scope, module_expression
from remat_codegen.emit.segments import Program, Role, Segment
from remat_codegen.emit.spell import DEVICE
from remat_codegen.emit.uniting import share_rebuilds, unite
from remat_codegen.graph.simplify import Model
from remat_codegen.trace import Origin, refs

LOOPS = "ijkn"  # what loops count with, from the outermost on


@dataclass(frozen=True, slots=True)
class Named:
    """A function with its name, the block it was first written for, and what it says of itself."""

    name: str
    function: Function
    block: int
    about: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """All that a program becomes: functions, and the lines of run_forward and run_backward (empty if nothing has to
    be done). `alive_bytes` are held at the loss."""

    functions: tuple[Named, ...]
    forward: tuple[str, ...]
    backward: tuple[str, ...]
    outputs: dict[int, str]
    alive_bytes: int


def write_program(
    program: Program,
    model: Model,
    wishes: dict[int, str],
    namer: Namer,
    given: dict[int, str],
    class_expression: FunctionExpression,
) -> Written:
    """Writes every segment. `given` names the model's inputs and constants, `namer` owns the module's names, `class_expression`
    says how to reach a class of the user's."""
    linkage = Linkage.of(program, model, wishes, class_expression)
    backwards = [(s, write_function(linkage, s)) for s in program.segments if _is_late(s, program)]
    backwards = share_rebuilds(linkage, backwards)
    _plan_waits(linkage, backwards)
    forwards = unite(linkage, [(s, write_function(linkage, s)) for s in program.segments if s.role is Role.FORWARD])
    backwards = run_again(linkage, forwards, backwards)
    names = _Library(linkage, namer)
    pairs = sorted([*forwards, *backwards], key=lambda p: (p[0].block, list(Role).index(p[0].role)))
    for segment, function in pairs:
        names.add(segment, function)
    main = _Main(linkage, names, given)
    forward = main.forward(forwards)
    backward = main.backward(backwards)
    return Written(tuple(names.ordered()), tuple(forward), tuple(backward), main.names, program.alive_at_loss())


def _is_late(segment: Segment, program: Program) -> bool:
    return segment.role is not Role.FORWARD and segment.block < len(program.graph.blocks)


def _plan_waits(linkage: Linkage, backwards: Sequence[tuple[Segment, Function]]) -> None:
    """A rebuild of its own waits in the main program."""
    for segment, _ in backwards:
        if segment.role is Role.REBUILD:
            linkage.waiting_point(segment.positions[0])


class _Library:
    """The functions by text: equal ones are written once."""

    def __init__(self, linkage: Linkage, namer: Namer) -> None:
        self.linkage, self.namer = linkage, namer
        self.by_text: dict[object, Named] = {}
        self.of_segment: dict[int, Named] = {}
        self.uses: dict[str, list[Segment]] = {}

    def add(self, segment: Segment, function: Function) -> None:
        if not function.lines:
            return
        if function.text not in self.by_text:
            title = self.linkage.scopes[segment.block].title()
            name = self.namer.fresh(f"{title}_{segment.role}")
            self.by_text[function.text] = Named(name, function, segment.block)
        self.of_segment[id(segment)] = self.by_text[function.text]
        self.uses.setdefault(self.by_text[function.text].name, []).append(segment)

    def ordered(self) -> list[Named]:
        return [replace(named, about=self._about(named)) for named in self.by_text.values()]

    def _about(self, named: Named) -> str:
        segments = self.uses[named.name]
        rerun = next((s for s in segments if s.role is not named.function.role), None)
        return about(self.linkage.program, segments[0], [self.linkage.scopes[s.block] for s in segments], rerun)


class _Main:
    """Writes run_forward and run_backward."""

    def __init__(self, linkage: Linkage, library: _Library, given: dict[int, str]) -> None:
        self.linkage, self.library = linkage, library
        self.model = linkage.model
        self.names = dict(given)
        self.namer = Namer()
        self.namer.taken.update(given.values())
        self.last_reader = self._last_readers()

    def _last_readers(self) -> dict[int, int]:
        last = {v: s.block for s in self.linkage.scopes for v in s.outside()}
        return last | {v: len(self.linkage.scopes) for v in refs(self.model.trace.outputs)}

    def _call(self, segment: Segment, function: Function) -> str:
        named = self.library.of_segment[id(segment)]
        scope = self.linkage.scopes[segment.block]
        arguments = [mark(self._module(scope))]
        if function.uses_kept:
            arguments.append(f"step[{number(segment.block)}]")
        arguments += [DEVICE] if function.uses_device else []
        kept = function.keeps
        arguments += [self._keep(scope, v, self.names[v]) if v in kept else self.names[v] for v in function.arguments]
        return f"{named.name}({', '.join(arguments)})"

    def _call_again(self, segment: Segment, function: Function, given: int | None) -> str:
        """A second run of a first function, with what the first run was given; `given` was just made again."""
        named, scope = self.library.of_segment[id(segment)], self.linkage.scopes[segment.block]
        kept, takes = f"step[{number(segment.block)}]", dict(function.takes)
        taken = {v: f"{kept}.{verb}({scope.name(v)!r})" for v, verb in takes.items() if v != given}
        arguments = [DEVICE] if function.uses_device else []
        arguments += [taken.get(v, self.names[v]) for v in function.arguments]
        return f"{named.name}({', '.join([mark(self._module(scope)), f'Again({kept})', *arguments])})"

    def _module(self, scope: Scope) -> str:
        return module_expression("m", scope.root, self.model.trace.containers)

    def forward(self, pairs: Sequence[tuple[Segment, Function]]) -> list[str]:
        lines: list[str] = []
        for segment, function in pairs:
            for variable in function.handed:
                if variable in function.keeps:
                    lines.append(self._keep(self.linkage.scopes[segment.block], variable, self.names[variable]))
                self._hand(lines, segment, variable)
            call = self._call(segment, function)
            dying = [v for v in function.arguments if self._dies(v, segment.block)]
            targets = self._targets(function, dying)
            lines.append(f"{', '.join(targets)} = {call}" if targets else call)
            lines += [f"step[{number(block)}].forget({name!r})" for block, name in function.forgets]
            gone = [self.names[v] for v in dying if self.names[v] not in targets]
            if gone and segment is not pairs[-1][0]:
                lines.append(f"del {', '.join(gone)}")
        return compress(lines, self._counters())

    def _counters(self) -> list[str]:
        """What loops count with: names that nothing else has."""
        free = [name for name in LOOPS if name not in self.namer.taken]
        return free or [f"{LOOPS[0]}_in_loop"]

    def _dies(self, variable: int, block: int) -> bool:
        result = self.model.trace.variables[variable].origin is Origin.RESULT
        return result and self.last_reader[variable] == block

    def _targets(self, function: Function, dying: Sequence[int]) -> list[str]:
        free = [self.names[v] for v in dying]
        targets = []
        for variable, wish in zip(function.returns, self._wishes(function), strict=True):
            name = free.pop(0) if free and len(function.returns) == 1 else self.namer.fresh(wish)
            self.names[variable] = name
            targets.append(name)
        return targets

    def _wishes(self, function: Function) -> list[str]:
        scopes = self.linkage.scopes
        home = {v: next(s for s in scopes if s.own(v)) for v in function.returns}
        return [home[v].name(v) for v in function.returns]

    def _keep(self, scope: Scope, variable: int, value: str) -> str:
        """Keeps a value under the name that a block's functions know it by."""
        return f"step[{number(scope.block)}].keep({scope.name(variable)!r}, {value})"

    def _hand(self, lines: list[str], segment: Segment, variable: int) -> None:
        """Gives an argument away, so that the function can free it."""
        name = self.names[variable]
        inside = self.linkage.scopes[segment.block].name(variable)
        hand = f"step[{number(segment.block)}].hand({inside!r}, "
        if lines and lines[-1].startswith(f"{name} = "):
            call = lines[-1].removeprefix(f"{name} = ")
            lines[-1] = f"{hand}{call})"
            lines += [f"del {name}"] if uses(name, call) else []  # what the name stood for before goes now
        else:
            lines += [f"{hand}{name})", f"del {name}"]

    def backward(self, pairs: Sequence[tuple[Segment, Function]]) -> list[str]:
        lines: list[str] = []
        waited: int | None = None
        given: int | None = None
        pairs = [(s, f) for s, f in pairs if f.lines]
        for (segment, function), following in zip(pairs, [*pairs[1:], None], strict=False):
            if segment.role is Role.BACKWARD:
                lines.append(f"yield from {self._call(segment, function)}")
                continue
            node = self.linkage.waiting_point(segment.positions[0])
            if node is not None and node != waited:
                block, name = self.linkage.stop_name(node)
                lines.append(f"yield step[{number(block)}].stops[{name!r}]")
            waited = node
            before, given = given, self._given_on(segment, function, following)
            again = function.role is not Role.REBUILD
            call = self._call_again(segment, function, before) if again else self._call(segment, function)
            lines += [f"{self.names[given]} = {call}"] if given is not None else self._rebuild(segment, function, call)
            if before is not None and following is not None and (given is None or self.names[given] != self.names[before]):
                lines.append(f"del {self.names[before]}")
        return compress(lines, self._counters())

    def _given_on(self, segment: Segment, function: Function, following: tuple[Segment, Function] | None) -> int | None:
        """What a rebuild makes for the next one alone, which is to take it at once."""
        if following is None or len(function.returns) != 1 or following[1].role is Role.REBUILD:
            return None
        (variable,), (then, takes) = function.returns, following
        at_once = dict(takes.takes).get(variable) == "take" and self._keepers(segment, function) == [(then.block, variable)]
        waits = self.linkage.waiting_point(then.positions[0]) != self.linkage.waiting_point(segment.positions[0])
        return variable if at_once and then.role is Role.REBUILD and not waits else None

    def _keepers(self, segment: Segment, function: Function) -> list[tuple[int, int]]:
        """The blocks that run again with what a rebuild returns, and which variable that is."""
        later = range(segment.block + 1, len(self.linkage.scopes))
        found = [(block, v) for v in function.returns for block in later if v in self.linkage.scopes[block].outside()]
        return [(block, v) for block, v in found if self._keeps(segment, v, block)]

    def _rebuild(self, segment: Segment, function: Function, call: str) -> list[str]:
        """A call, and what is kept of what it returns."""
        keeps = self._keepers(segment, function)
        if not keeps:
            return [call]
        if len(keeps) == 1 == len(function.returns):
            block, variable = keeps[0]
            return [self._keep(self.linkage.scopes[block], variable, call)]
        local = {v: f"again_{i}" for i, v in enumerate(function.returns)}
        lines = [f"{', '.join(local.values())} = {call}"]
        lines += [self._keep(self.linkage.scopes[block], v, local[v]) for block, v in keeps]
        return [*lines, f"del {', '.join(local.values())}"]

    def _keeps(self, segment: Segment, variable: int, block: int) -> bool:
        data = self.model.data_of[variable]
        copies = () if data is None else self.linkage.program.copies[data]  # none of what is a view of a parameter
        made = [c for c in copies if c.start in segment.positions]
        return data is not None and any(self.linkage.keepers(variable, data, c, block) for c in made)
