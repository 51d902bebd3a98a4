"""What of a marked expression is evaluated before its part runs, and where a mark is refused for it."""

from __future__ import annotations

import ast

import pytest

from remat_codegen.marked.outside import outside_of
from remat_codegen.marked.syntax import span_of, syntax_of


def outside(text, *asked, made=None, held=()):
    """What of the expression `text` is outside, as texts; or why it cannot be. `asked` and `made` are texts in it."""
    syntax = syntax_of(text)
    whole = syntax.tree.body[0].value

    def spans(texts):
        found = {span_of(n) for n in ast.walk(whole) if isinstance(n, ast.expr) and ast.unparse(n) in texts}
        assert len(found) >= len(texts)
        return found

    found = outside_of(syntax, whole, spans(asked), None if made is None else spans(made), held)
    return found.refused or [ast.unparse(n) for n in found.nodes]


@pytest.mark.parametrize(
    ("text", "asked", "found"),
    [
        pytest.param("f(x)", [], [], id="nothing, where nothing is asked for"),
        pytest.param("f(g(x))", ["g(x)"], ["g(x)"], id="what is asked for"),
        pytest.param("f(g(x), h(y))", ["h(y)", "g(x)"], ["g(x)", "h(y)"], id="in the order in which it is evaluated"),
        pytest.param("f(x.pop())", [], ["x.pop()"], id="what changes something, though nobody asks"),
        pytest.param("f(next(x))", [], ["next(x)"], id="what uses something up"),
        pytest.param("f(torch.rand(2), x.pop())", [], ["x.pop()"], id="also before random numbers, which it does not see"),
        pytest.param("f(math.pop())", [], [], id="not what a library has under such a name"),
        pytest.param(
            "f(g(h(x)))", ["g(h(x))", "h(x)"], "what should be outside is not in it", id="not what is in what is outside"
        ),
        pytest.param("self.drop(f(self.x))", ["f(self.x)"], ["f(self.x)"], id="not what is only called"),
        pytest.param(
            "g(self.x.y, f(self.x))", ["f(self.x)"], ["self.x.y", "f(self.x)"], id="attributes that are read before, with it"
        ),
    ],
)
def test_what_is_handed_in(text, asked, found):
    assert outside(text, *asked) == found


@pytest.mark.parametrize(
    ("text", "asked", "why"),
    [
        pytest.param("x.pop()", [], "it changes something", id="the whole changes something"),
        pytest.param("f(a if b else x.pop())", [], "does not always happen", id="a change in a choice"),
        pytest.param("f(b and x.pop())", [], "does not always happen", id="a change behind and"),
        pytest.param("f(lambda: x.pop())", [], "does not always happen", id="a change in a function without a name"),
        pytest.param("f([x.pop() for _ in y])", [], "does not always happen", id="a change in a comprehension"),
        pytest.param("f(a < b < x.pop())", [], "does not always happen", id="a change in a comparison that may end before"),
        pytest.param("f(a < b < c < x.pop())", [], "does not always happen", id="also in a longer one"),
        pytest.param("f(a < x.pop() < c)", [], "", id="not where it is compared first"),
        pytest.param("f(a if b else g(x))", ["g(x)"], "does not always happen", id="what is asked for, in a choice"),
        pytest.param("f(f'{x.pop()}')", [], "in a formatted string", id="a change in a formatted string"),
        pytest.param("f(x[0], g(x))", ["g(x)"], "change its order", id="an element that is read before"),
        pytest.param("f(dropout(y), g(x))", ["g(x)"], "change its order", id="random numbers that are drawn before"),
        pytest.param("f(unknown(y), g(x))", ["g(x)"], "change its order", id="something unknown that comes before"),
        pytest.param("f(y.relu_(), g(x))", ["g(x)"], "change its order", id="a change in place that comes before"),
        pytest.param("f(F.relu(y, True), g(x))", ["g(x)"], "change its order", id="a change in place by an argument"),
        pytest.param("f(torch.relu(y), g(x))", ["g(x)"], "", id="nothing, where PyTorch computes before"),
        pytest.param("f(torch.rand(2), g(x))", ["g(x)"], "change its order", id="random numbers of PyTorch's"),
    ],
)
def test_why_a_mark_is_refused(text, asked, why):
    found = outside(text, *asked)
    assert (why in found) if why else isinstance(found, list)


@pytest.mark.parametrize(
    ("text", "made", "found"),
    [
        pytest.param("f(g(x))", ["f(g(x))"], ["g(x)"], id="a call that makes no operation and may do anything is outside"),
        pytest.param("f(g(x))", ["f(g(x))", "g(x)"], [], id="one that makes an operation is inside"),
        pytest.param("f(len(x))", ["f(len(x))"], [], id="a function that is known to change nothing is inside"),
        pytest.param("f(x.view(3))", ["f(x.view(3))"], [], id="so is a tensor's method"),
        pytest.param("f(self.view(3))", ["f(self.view(3))"], ["self.view(3)"], id="not one of the module's own"),
        pytest.param("f(d.keys())", ["f(d.keys())"], [], id="so is a dictionary's"),
        pytest.param("f(torch.tensor(3))", ["f(torch.tensor(3))"], [], id="so is a function of PyTorch's"),
        pytest.param("f(torch.relu_(x))", ["f(torch.relu_(x))"], ["torch.relu_(x)"], id="not one that changes in place"),
        pytest.param("f(random.random())", ["f(random.random())"], ["random.random()"], id="not one that draws"),
        pytest.param("f(x.add(y))", ["f(x.add(y))", "x.add(y)"], [], id="an addition that makes an operation is inside"),
        pytest.param("f(x.add(y))", ["f(x.add(y))"], ["x.add(y)"], id="one that makes none adds to a set"),
        pytest.param(
            "f(x.pop(g(y)))", ["f(x.pop(g(y)))", "g(y)"], "a call in it changes something", id="not around an operation"
        ),
        pytest.param(
            "f(g(x) if a else b)", ["f(g(x) if a else b)"], ["g(x) if a else b"], id="a choice goes outside as a whole"
        ),
        pytest.param("f([g(i) for i in x])", ["f([g(i) for i in x])"], ["[g(i) for i in x]"], id="so does a comprehension"),
        pytest.param(
            "sum(g(x))", ["sum(g(x))"], "what is handed in may be a generator, which runs once", id="not what is gone through"
        ),
        pytest.param(
            "f(*g(x))", ["f(*g(x))"], "what is handed in may be a generator, which runs once", id="nor what is unpacked"
        ),
    ],
)
def test_where_operations_are_known_other_calls_are_handed_in(text, made, found):
    assert outside(text, made=made) == found


@pytest.mark.parametrize(
    ("text", "made", "found"),
    [
        pytest.param("f(s.x, s.turn + 1)", [], ["s.x", "s.turn"], id="attributes of an object with tensors"),
        pytest.param("s.x.view(2) + s.x", ["s.x.view(2)"], ["s.x", "s.x"], id="also of those that are read on"),
        pytest.param("s.x if k else s.turn", [], [], id="not what is not always read"),
        pytest.param("s.look(s.x)", ["s.look(s.x)"], ["s.x"], id="not methods"),
        pytest.param("k.x + y", [], [], id="not of others"),
        pytest.param("f(xs[-1], xs[i])", [], ["xs[-1]", "xs[i]"], id="elements of a list"),
        pytest.param("f(s.x['a'])", [], ["s.x['a']"], id="elements of an attribute"),
        pytest.param("f(x[0])", ["x[0]"], [], id="not what an operation takes from a tensor"),
        pytest.param("f(xs[i + 1], xs[-i - 1])", [], ["xs[i + 1]", "xs[-i - 1]"], id="where that counts"),
        pytest.param("f(xs[i + 1])", ["i + 1"], [], id="not where an operation counts"),
        pytest.param("f(xs[len(xs) - 1])", [], [], id="not where something else is computed for it"),
        pytest.param("f(xs.pop(), xs[0])", [], ["xs.pop()", "xs[0]"], id="in order"),
        pytest.param("f(g(xs), xs[0])", ["g(xs)"], "change its order", id="not before what may change the list"),
        pytest.param("xs[0].sin() * xs[1]", ["xs[0].sin()"], ["xs[0]", "xs[1]"], id="but before what is done to another"),
        pytest.param("y.view(x.shape[0], x.size(-1))", [], ["x.shape[0]", "x.size(-1)"], id="sizes of what is not read"),
        pytest.param("y.to(x.dtype)", [], ["x.dtype"], id="its type"),
        pytest.param("(x * y).view(x.shape)", ["x * y"], [], id="not of what is read, too"),
        pytest.param("y.type_as(x)", [], "for its size or type alone", id="what is held for its type"),
        pytest.param("f(y, torch.zeros_like(x))", ["torch.zeros_like(x)"], "for its size or type alone", id="or for its size"),
        pytest.param("(x * y).type_as(x)", ["x * y"], [], id="not what is read, too"),
        pytest.param("y.to(k)", [], [], id="not what is no tensor"),
    ],
)
def test_a_part_is_given_what_it_reads_of_what_is_held(text, made, found):
    got = outside(text, made=made, held=("x", "y", "xs", "s.x", "s.turn"))
    assert found in got if isinstance(found, str) else got == found
