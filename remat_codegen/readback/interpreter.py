"""Follows run_forward and run_backward of a generated file through the functions that they call, statement by statement."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remat_codegen.graph.simplify import Model
from remat_codegen.readback.expressions import Expressions, dotted
from remat_codegen.readback.machine import Key, Machine
from remat_codegen.readback.matching import Operations
from remat_codegen.readback.values import Block, Other, Place, Problem, Shapes, Step, Stop, Tensor, Unreadable, tensors
from remat_codegen.schedule import Schedule

DEEPEST = 50  # calls
LONGEST = 1_000_000  # statements
_LIBRARIES = ("torch", "F", "nn", "math")


@dataclass(frozen=True, slots=True)
class Call:
    """A block function that run_forward or run_backward calls: its name, its place in the model, and its line."""

    function: str
    path: str
    block: int | None
    line: int
    backward: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file's functions do. `lines` has the line that causes each step of the schedule.

    `complete` says whether they could be followed to their end.
    """

    schedule: Schedule
    lines: tuple[int, ...]
    calls: tuple[Call, ...]
    problems: tuple[Problem, ...]
    complete: bool


def read_back(text: str, model: Model) -> Reading:
    """The schedule of a generated file, from its text and the model that it was generated from."""
    operations = Operations(model)
    machine = Machine(model, operations)
    complete = False
    calls: list[Call] = []
    try:
        tree = ast.parse(text)
        reader = _Interpreter(tree, machine, operations)
        calls = reader.calls
        reader.whole_step()
        complete = True
    except SyntaxError as error:
        machine.problems.append(Problem(error.lineno or 1, f"is no Python: {error.msg}"))
    except Unreadable as found:
        machine.problems.append(found.problem)
    return Reading(Schedule(tuple(machine.steps)), tuple(machine.lines), tuple(calls), tuple(machine.problems), complete)


class _Interpreter(Expressions):
    """Runs functions on names of tensors instead of tensors."""

    def __init__(self, tree: ast.Module, machine: Machine, operations: Operations) -> None:
        super().__init__(machine, operations)
        self.functions = {s.name: s for s in tree.body if isinstance(s, ast.FunctionDef)}
        self.constants = self._constants(tree)
        self.calls: list[Call] = []
        self.depth = self.statements = 0
        machine.describe = self._where

    def _constants(self, tree: ast.Module) -> dict[str, Any]:
        """What stands under CONSTANT_0 and so on, and other assignments of the file."""
        found: dict[str, Any] = {}
        own = [variable for variable, _ in self.model.trace.constants]
        for statement in tree.body:
            for target in statement.targets if isinstance(statement, ast.Assign) else ():
                if isinstance(target, ast.Name):
                    index = re.fullmatch(r"CONSTANT_(\d+)_*", target.id)
                    known = index is not None and int(index[1]) < len(own)
                    found[target.id] = Tensor(own[int(index[1])]) if known and index is not None else Other()
        return found

    def _where(self) -> str:
        """The block that is being read, for messages."""
        place = self.env.get("m")
        return f" (in {place.path})" if isinstance(place, Place) and place.path else ""

    def global_name(self, name: str) -> Any:
        """A constant of the file, or a library."""
        found = self.constants.get(name)
        return Other() if found is None and (name in _LIBRARIES or name in dir(__builtins__)) else found

    # ------------------------------------------------------------------ the whole step

    def whole_step(self) -> None:
        """The forward pass, the loss, the backward pass."""
        forward, backward = self._main("run_forward"), self._main("run_backward")
        if forward is None:
            raise Unreadable(1, "has no run_forward")
        self.machine.line = forward.lineno
        self.machine.end_forward(self._enter(forward, self._given(forward)))
        self.machine.backward = True
        if backward is not None:
            self.machine.line = backward.lineno
            self.machine.drop(self._enter(backward, self._given(backward)))
        self.machine.end()

    def _main(self, name: str) -> ast.FunctionDef | None:
        """A function that may have got underscores because the user has one of the same name."""
        found = [f for n, f in self.functions.items() if re.fullmatch(f"{name}_*", n)]
        return max(found, key=lambda f: len(f.name), default=None)

    def _given(self, function: ast.FunctionDef) -> dict[str, Any]:
        inputs = iter([v for v in self.model.trace.inputs if v is not None])
        given: dict[str, Any] = {}
        for argument in function.args.args:
            fixed = {"m": Place(""), "step": Step()}.get(argument.arg)
            given[argument.arg] = fixed if fixed is not None else self._input(next(inputs, None), argument)
        return given

    def _input(self, variable: int | None, argument: ast.arg) -> Any:
        if variable is None:
            raise Unreadable(argument.lineno, f"takes {argument.arg}, which is no input of the model")
        return Tensor(variable)

    # ------------------------------------------------------------------ functions

    def _enter(self, function: ast.FunctionDef, given: dict[str, Any]) -> Any:
        """Runs a function on values, which it uses up; returns what it returns, held once."""
        if self.depth > DEEPEST:
            raise self.machine.give_up(f"{function.name} calls itself")
        outer = self.env, self.ran, self.wish
        self.env, self.ran = given, set()
        self.depth += 1
        result = self._block(function.body)
        self.depth -= 1
        self.machine.drop(self.env)
        self.env, self.ran, self.wish = outer
        return result[0] if result else None

    def _block(self, body: Sequence[ast.stmt]) -> tuple[Any] | None:
        """Runs statements; what is returned stands in a tuple, None where nothing is."""
        for statement in body:
            self.statements += 1
            if self.statements > LONGEST:
                raise self.machine.give_up("runs for ever")
            self.machine.line = statement.lineno
            method = getattr(self, f"_do_{type(statement).__name__.lower()}", None)
            if method is None:
                raise self.machine.give_up(f"`{ast.unparse(statement)[:60]}` is nothing that remat-codegen writes")
            result = method(statement)
            if result is not None:
                return result
            self.machine.settle()
        return None

    # ------------------------------------------------------------------ statements

    def _do_return(self, statement: ast.Return) -> tuple[Any]:
        self.wish = ()
        return (None if statement.value is None else self.evaluate(statement.value),)

    def _do_pass(self, statement: ast.Pass) -> None:
        return None

    def _do_expr(self, statement: ast.Expr) -> None:
        self.wish = ()
        self.machine.drop(self.evaluate(statement.value))

    def _do_assign(self, statement: ast.Assign) -> None:
        targets = statement.targets
        self.wish = tuple(n.id for n in ast.walk(targets[0]) if isinstance(n, ast.Name))
        value = self.evaluate(statement.value)
        for target in targets:
            self._bind(target, value)

    def _bind(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.machine.drop(self.env.get(target.id))
            self.env[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = value if isinstance(value, tuple) and len(value) == len(target.elts) else None
            if parts is None:
                raise self.machine.give_up(f"`{ast.unparse(target)}` does not fit what is assigned to it")
            for one, part in zip(target.elts, parts, strict=True):
                self._bind(one, part)
        elif isinstance(target, ast.Subscript) and isinstance(shapes := self.evaluate(target.value), Shapes):
            self.shapes[shapes.number, str(self.evaluate(target.slice))] = value
        else:
            raise self.machine.give_up(f"`{ast.unparse(target)}` is nothing that remat-codegen assigns to")

    def _do_delete(self, statement: ast.Delete) -> None:
        targets = [t for target in statement.targets for t in (target.elts if isinstance(target, ast.Tuple) else [target])]
        for target in targets:
            if not isinstance(target, ast.Name) or target.id not in self.env:
                raise self.machine.give_up(f"deletes {ast.unparse(target)}, which has no value here")
            self.machine.drop(self.env.pop(target.id))

    def _do_for(self, statement: ast.For) -> tuple[Any] | None:
        over = statement.iter
        bounds = [self.evaluate(a) for a in over.args] if isinstance(over, ast.Call) and dotted(over.func) == "range" else []
        if not bounds or not all(isinstance(b, int) for b in bounds):
            raise self.machine.give_up(f"`{ast.unparse(over)}` is nothing that remat-codegen writes")
        for number in range(*bounds):
            self._bind(statement.target, number)
            result = self._block(statement.body)
            if result is not None:
                return result
        return None

    def _do_if(self, statement: ast.If) -> tuple[Any] | None:
        """As in training."""
        test = self.evaluate(statement.test)
        self.machine.drop(test)
        return self._block(statement.orelse if test is False or test is None else statement.body)

    def _do_with(self, statement: ast.With) -> tuple[Any] | None:
        before = self.machine.group, list(self.machine.draws), list(self.machine.modes)
        forgotten = [key for item in statement.items if (key := self._manager(item.context_expr)) is not None]
        result = self._block(statement.body)
        self.machine.group, self.machine.draws, self.machine.modes = before
        for key in forgotten:
            self.machine.forget_saved(key)
        return result

    def _manager(self, node: ast.expr) -> Key | None:
        """Enters a `with`; returns the group that is forgotten at its end, if one is."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            raise self.machine.give_up(f"`with {ast.unparse(node)}` is nothing that remat-codegen writes")
        if dotted(node.func).startswith("torch."):
            self.machine.modes.append(ast.unparse(node))
            return None
        block, what = self.evaluate(node.func.value), node.func.attr
        values = [self.evaluate(a) for a in node.args]
        if what not in ("saves", "draws") or not isinstance(block, Block) or not values or not isinstance(values[0], str):
            raise self.machine.give_up(f"`with {ast.unparse(node)}` is nothing that remat-codegen writes")
        key = block.number, values[0]
        self.machine.group = key if what == "saves" else self.machine.group
        self.machine.draws += [key] if what == "draws" else []
        forgets = any(k.arg == "forget" and self.evaluate(k.value) is True for k in node.keywords)
        return key if forgets and not block.again else None

    # ------------------------------------------------------------------ calls

    def _yield(self, node: ast.Yield) -> Any:
        stop = None if node.value is None else self.evaluate(node.value)
        if not isinstance(stop, Stop):
            raise self.machine.give_up("yields something else than a place to wait for")
        self.machine.wait(stop)
        return None

    def _yieldfrom(self, node: ast.YieldFrom) -> Any:
        return self.evaluate(node.value)

    def _call(self, node: ast.Call) -> Any:
        name = dotted(node.func)
        if name in self.functions and name not in self.env:
            return self._own_function(node, self.functions[name])
        if name == "Again" and len(node.args) == 1 and isinstance(block := self.evaluate(node.args[0]), Block):
            return Block(block.number, again=True)
        if name == "getattr" and len(node.args) == 2:
            base, attribute = (self.evaluate(a) for a in node.args)
            return self._in_model(base.child(str(attribute))) if isinstance(base, Place) else Other()
        if name.partition(".")[0] in _LIBRARIES and "." in name:
            return self._library(name, node)
        if (function := self._function_applied(node.func)) is not None:
            return self.apply(function, self._arguments(node))
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func)
        given = self._arguments(node)  # of float("-inf"), or of a class of what the model returns
        return given if any(True for _ in tensors(given)) else Other()

    def _function_applied(self, called: ast.expr) -> str | None:
        """The name of an autograd.Function: of GeLU.apply, or function_of(m.act, "GeLU").apply."""
        if not isinstance(called, ast.Attribute) or called.attr != "apply":
            return None
        owner = called.value
        if (
            isinstance(owner, ast.Call)
            and dotted(owner.func).startswith(("function_of", "known_class"))
            and len(owner.args) == 2
        ):
            return str(self.evaluate(owner.args[1]))
        name = dotted(owner)
        return name if name and name.partition(".")[0] not in self.env else None

    def _arguments(self, node: ast.Call) -> tuple[Any, ...]:
        return (*(self.evaluate(a) for a in node.args), *(self.evaluate(k.value) for k in node.keywords))

    def _library(self, name: str, node: ast.Call) -> Any:
        parts = name.split(".")
        given = self._arguments(node)
        if parts[1] in ("device", "Size", "finfo", "iinfo") or parts[0] == "math":
            return Other()
        return self.apply(parts[3] if parts[:2] == ["torch", "ops"] and len(parts) > 3 else parts[-1], given)

    def _method(self, node: ast.Call, function: ast.Attribute) -> Any:
        base = self.evaluate(function.value)
        if isinstance(base, Block):
            return self._kept(base, function.attr, node)
        given = self._arguments(node)
        if isinstance(base, Tensor) and function.attr == "size":
            self.machine.drop(base)
            shape = self.model.trace.variables[base.variable].shape
            return shape[given[0]] if given and isinstance(given[0], int) else shape
        if isinstance(base, (Tensor, tuple)):
            return self.apply(function.attr, (base, *given))
        self.machine.drop((base, given))
        return Other()

    def _kept(self, block: Block, what: str, node: ast.Call) -> Any:
        """kept.WHAT(name, value). The name says which of several equal operations the value is."""
        if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
            self.wish = (*self.wish, node.args[0].value)
        values = [self.evaluate(a) for a in node.args]
        name, value = values[0] if values else None, values[1] if len(values) > 1 else None
        if what == "before" and isinstance(name, int):
            return Block(block.number - name)
        key, machine = (block.number, str(name)), self.machine
        if what in ("read", "take"):
            return machine.take(key, what == "take")
        if what == "receive":
            return machine.receive(key)
        if what == "hand":
            machine.handed[key] = value
            return None
        if what == "slot":
            (machine.rebuild if machine.backward else machine.slot)(key, value)
        if not block.again and (what == "stop" or any(k.arg == "stop" for k in node.keywords)):
            machine.stop(key, value)
        if what == "keep":
            machine.keep(key, value)
        if what in ("slot", "stop", "keep"):
            return value
        if what in ("forget", "forget_saved") and block.again:
            return None
        if what in ("forget", "forget_saved"):
            (machine.forget if what == "forget" else machine.forget_saved)(key)
        else:
            raise machine.give_up(f"`{ast.unparse(node)}` is nothing that remat-codegen writes")
        machine.drop(value)
        return None

    def _own_function(self, node: ast.Call, function: ast.FunctionDef) -> Any:
        given = self._parameters(node, function)
        if self.depth == 1:
            block = next((v.number for v in given.values() if isinstance(v, Block)), None)
            place = given.get("m")
            path = place.path if isinstance(place, Place) else ""
            self.calls.append(Call(function.name, path, block, node.lineno, self.machine.backward))
        return self._enter(function, given)

    def _parameters(self, node: ast.Call, function: ast.FunctionDef) -> dict[str, Any]:
        parameters = function.args.args
        given = {p.arg: self.evaluate(a) for p, a in zip(parameters, node.args, strict=False)}
        given |= {k.arg: self.evaluate(k.value) for k in node.keywords if k.arg is not None}
        defaults = function.args.defaults
        for parameter, default in zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True):
            if parameter.arg not in given:
                given[parameter.arg] = self.evaluate(default)
        if len(node.args) > len(parameters) or set(given) != {p.arg for p in parameters}:
            wanted = ", ".join(p.arg for p in parameters)
            raise self.machine.give_up(f"{function.name} takes ({wanted}), and is not called like that")
        return given
