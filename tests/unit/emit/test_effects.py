"""What a piece of a user's file may change when it runs."""

from __future__ import annotations

import ast

import pytest

from remat_codegen.emit.effects import (
    CLASS,
    PARAMETER,
    called_name,
    class_values,
    dotted,
    effects_of,
    first_name,
    is_quiet,
    roots,
)


def expression(text):
    return ast.parse(text, mode="eval").body


def effects(text, inside=False):
    return effects_of(ast.parse(text).body, inside)


@pytest.mark.parametrize(
    ("text", "whole", "first"),
    [
        pytest.param("a", "a", "a", id="a name"),
        pytest.param("a.b.c", "a.b.c", "a", id="attributes of a name"),
        pytest.param("a['x'].b", "", "a", id="an element is no part of a full name"),
        pytest.param("a().b", "", "a", id="nor is a call"),
        pytest.param("(a or b).c", "", "", id="what does not begin with a name"),
    ],
)
def test_names_of_expressions(text, whole, first):
    assert (dotted(expression(text)), first_name(expression(text))) == (whole, first)


@pytest.mark.parametrize(("text", "name"), [("f()", "f"), ("T.update(1)", "update"), ("f()()", "")])
def test_what_is_called_has_the_last_name(text, name):
    assert called_name(expression(text)) == name


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("'text'", id="a string"),
        pytest.param("T", id="a name"),
        pytest.param("T.x", id="an attribute"),
        pytest.param("assert T", id="an assertion"),
        pytest.param("assert len(T) == 1, str(T)", id="an assertion with well-known functions"),
        pytest.param("print(T)", id="a print"),
        pytest.param("print(len(T), T.keys())", id="a print of what changes nothing"),
        pytest.param("log.info(T)", id="a call of a logger"),
        pytest.param("torch.set_printoptions(2)", id="how tensors are printed"),
        pytest.param("print(torch.cuda.is_available())", id="a print of what there is"),
        pytest.param("sys.stdout.write('x')", id="what is written to a stream"),
    ],
)
def test_statements_that_only_print(statement):
    assert is_quiet(ast.parse(statement).body[0])


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("a = 1", id="an assignment"),
        pytest.param("f()", id="a call of anything else"),
        pytest.param("T.update(1)", id="a method that changes"),
        pytest.param("print(f())", id="a print of what a function does"),
        pytest.param("print(a := 1)", id="a print that assigns"),
        pytest.param("assert f()", id="an assertion that calls something"),
        pytest.param("assert T, f()", id="an assertion whose message calls something"),
        pytest.param("os.environ.update(A='1')", id="a variable of the environment"),
        pytest.param("sys.setattr(T, 'a', 1)", id="an attribute that is set"),
        pytest.param("torch.set_default_dtype(T)", id="a setting of PyTorch"),
        pytest.param("len(T)", id="a well-known function whose result nobody takes"),
    ],
)
def test_statements_that_may_do_more(statement):
    assert not is_quiet(ast.parse(statement).body[0])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("T", {"T"}, id="a name is its object"),
        pytest.param("T['a'].x", {"T"}, id="parts are of the whole"),
        pytest.param("a or b", {"a", "b"}, id="either of two"),
        pytest.param("a if c else b", {"a", "b", "c"}, id="a choice"),
        pytest.param("[a, b]", {"a", "b"}, id="a list holds its elements"),
        pytest.param("self.x", {"self.x"}, id="what an instance holds"),
        pytest.param("self.x.y", {"self.x"}, id="parts of what an instance holds"),
        pytest.param("T.__class__", {"~T"}, id="a class by its attribute"),
        pytest.param("type(T)", {"~T"}, id="a class by type"),
        pytest.param("f()", {"f()"}, id="what a call returns"),
        pytest.param("f(T)", {"f()", "T.given"}, id="a call may return what it is given"),
        pytest.param("f(a=T)", {"f()", "T.given"}, id="also by keyword"),
        pytest.param("f(g(T))", {"f()", "g()", "T.given"}, id="a call in a call"),
        pytest.param("T.get(1)", {"T.()"}, id="what a method returns"),
        pytest.param("self.get(T)", {"T.given"}, id="a method of the same object is seen where it is defined"),
        pytest.param("str(T)", set(), id="a text is nobody's part"),
        pytest.param("T == 1", set(), id="nor is a comparison"),
        pytest.param("lambda: T", set(), id="nor is a function without a name"),
        pytest.param("1", set(), id="nor is a number"),
        pytest.param("(y := T)", {"T"}, id="what is assigned on the way"),
        pytest.param("[*T]", {"T"}, id="what is unpacked"),
    ],
)
def test_whose_object_an_expression_may_be(text, found):
    assert roots(expression(text)) == found


def test_nothing_has_no_roots():
    assert roots(None) == set()


@pytest.mark.parametrize(
    ("text", "field", "found"),
    [
        pytest.param("a = T", "binds", {"a": {"T"}}, id="a name stands for what it was assigned"),
        pytest.param("a, (b, *c) = T", "binds", {"a": {"T"}, "b": {"T"}, "c": {"T"}}, id="so does each that was unpacked"),
        pytest.param("a: int = T", "binds", {"a": {"T"}}, id="and an annotated one"),
        pytest.param("a: int", "binds", {}, id="but not by an annotation alone"),
        pytest.param("for a in T: pass", "binds", {"a": {"T"}}, id="a loop binds parts of what it goes through"),
        pytest.param("[a for a in T]", "binds", {"a": {"T"}}, id="so does a comprehension"),
        pytest.param("with T as a: pass", "binds", {"a": {"T"}}, id="and a with"),
        pytest.param("if (a := T): pass", "binds", {"a": {"T"}}, id="and an assignment on the way"),
        pytest.param("T.a = 1", "stores", {"T"}, id="an attribute that is set changes its object"),
        pytest.param("T['a'] = 1", "stores", {"T"}, id="so does an element"),
        pytest.param("del T['a']", "stores", {"T"}, id="and one that is deleted"),
        pytest.param("del T", "stores", {"T"}, id="a name that is deleted is changed"),
        pytest.param("T['a'] += 1", "stores", {"T"}, id="an element in place"),
        pytest.param("setattr(T, 'a', 1)", "stores", {"T"}, id="setattr changes what it is given"),
        pytest.param("functools.update_wrapper(T, f)", "stores", {"T"}, id="so does update_wrapper"),
        pytest.param("T.add(1)", "methods", {("T", "add")}, id="a method may change its object"),
        pytest.param("a += 1", "methods", {("a", "__iadd__")}, id="so may an addition in place"),
        pytest.param("f(1)", "calls", {"f"}, id="a function that is called"),
        pytest.param("T['a']()", "calls", {"T"}, id="a function that a container holds"),
        pytest.param("map(f, T)", "calls", {"map", "f", "T"}, id="what map is given is called"),
        pytest.param("f(T)", "handed", [("f", frozenset({"T"}))], id="a function may change what it is given"),
        pytest.param("len(T)", "handed", [], id="but not a well-known one"),
        pytest.param("@f\ndef g(): pass", "handed", [("f", frozenset({"g"}))], id="a decorator is given what it decorates"),
        pytest.param("@f(1)\nclass g: pass", "calls", {"f"}, id="a decorator with arguments is called"),
        pytest.param("T.part.table['a'] = 1", "through", {("T", "part"), ("T", "table")}, id="the attributes on the way"),
        pytest.param("class A(B): pass", "bases", {"B"}, id="the classes that a class is made of"),
        pytest.param("class A(metaclass=M): pass", "calls", {"M"}, id="a metaclass is called"),
        pytest.param("class A:\n    x = T", "binds", {}, id="what a class's body binds is no name of the file"),
        pytest.param("def f(a=T): pass", "mentions", {"T"}, id="a default is looked up where the function is defined"),
        pytest.param("def f(a: T) -> U: pass", "mentions", {"T", "U"}, id="so are annotations"),
        pytest.param("def f():\n    T.a = 1", "stores", set(), id="what a function does is not done as it is defined"),
        pytest.param("x = lambda: T.add(1)", "methods", {("T", "add")}, id="a function without a name may run at once"),
        pytest.param(
            "a = torch.nn.Linear", "dotted", {"torch", "torch.nn", "torch.nn.Linear"}, id="full names, with all parts"
        ),
        pytest.param("f('a')", "texts", {"a"}, id="texts"),
        pytest.param("print(T)", "mentions", set(), id="what only prints is passed over"),
        pytest.param("try:\n    T\nexcept E: pass", "mentions", {"T", "E"}, id="but not where failing decides"),
        pytest.param("with f:\n    T", "mentions", {"f", "T"}, id="nor in a with"),
        pytest.param("global a", "outside", {"a"}, id="a name that is declared global"),
    ],
)
def test_what_code_does_when_it_is_loaded(text, field, found):
    assert getattr(effects(text), field) == found


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        pytest.param("exec('a = 1')", True, id="exec may bind any name"),
        pytest.param("globals()['a'] = 1", True, id="globals too"),
        pytest.param("vars()['a'] = 1", True, id="vars of nothing too"),
        pytest.param("vars(T)['a'] = 1", False, id="vars of an object is of that object"),
        pytest.param("T.eval()", False, id="a method of that name is something else"),
    ],
)
def test_what_may_bind_any_name(text, hidden):
    assert effects(text).hidden is hidden


@pytest.mark.parametrize(
    ("text", "any_name"),
    [
        pytest.param("setattr(T, name, 1)", True, id="a name that only the run knows"),
        pytest.param("setattr(T, 'a', 1)", False, id="a name that stands there"),
        pytest.param("setattr(self, name, 1)", False, id="an attribute of the same object"),
    ],
)
def test_what_may_set_any_attribute(text, any_name):
    assert effects(text).sets_any_name is any_name


@pytest.mark.parametrize(
    ("text", "field", "found"),
    [
        pytest.param("def f(a):\n    a.x = 1", "binds", {"a": {PARAMETER}}, id="a parameter is what a function is given"),
        pytest.param("def f(a=T): pass", "binds", {"a": {PARAMETER, "T"}}, id="or its default"),
        pytest.param("def f(*, a=T): pass", "binds", {"a": {PARAMETER, "T"}}, id="also by keyword only"),
        pytest.param("def f(*a, **b): pass", "binds", {"a": {PARAMETER}, "b": {PARAMETER}}, id="also any number of them"),
        pytest.param("class A:\n    def f(self): pass", "binds", {"self": set()}, id="self is nothing that it is given"),
        pytest.param("class A:\n    def f(cls): pass", "binds", {"cls": {CLASS}}, id="cls is the class"),
        pytest.param(
            "class A:\n    @staticmethod\n    def f(self): pass",
            "binds",
            {"self": {PARAMETER}},
            id="a static method has no self",
        ),
        pytest.param("class A:\n    x = []", "binds", {"x": set(), "self.x": {CLASS}}, id="instances share a class's list"),
        pytest.param("class A:\n    x = 1", "binds", {"x": set()}, id="but not its numbers"),
        pytest.param("def f(): self.x = T", "binds", {"self.x": {"T"}}, id="an instance holds what it was given"),
        pytest.param("def f(): return T", "returned", {"T"}, id="what is returned"),
        pytest.param("def f(): yield T", "returned", {"T"}, id="what is yielded"),
        pytest.param("def f(): T.a = 1", "stores", {"T"}, id="what is set"),
        pytest.param("def f():\n    del a", "stores", set(), id="a local name that is deleted changes nothing"),
        pytest.param("def f(): print(T)", "mentions", {"print", "T"}, id="prints are part of it"),
    ],
)
def test_what_functions_do_when_they_run(text, field, found):
    assert getattr(effects(text, inside=True), field) == found


def test_what_a_class_s_instances_share_is_what_can_change():
    (node,) = ast.parse("class A:\n    a = 1\n    b = []\n    c: dict = {}\n    d: int\n    e = T\n    def f(self): pass").body
    assert class_values(node) == [("a", False), ("b", True), ("c", True), ("e", True)]
