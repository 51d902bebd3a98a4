"""Which numbers of the user's source are spelled as an expression, and how."""

from __future__ import annotations

import ast
import math

import pytest

from remat_codegen.emit.arithmetic import DEEPEST, LARGEST_BASE, LARGEST_EXPONENT, LONGEST, Arithmetic, operands


class Names:
    """A function in which `B, C = x.shape` gave 2 and 12, `self.heads` is 3, and some names were assigned."""

    def __init__(self, math=True, **assigned):
        self.math, self.of = math, {name: expression(text) for name, text in assigned.items()}

    def size(self, name):
        return {"B": 2, "C": 12}.get(name)

    def size_spelled(self, name):
        return f"{name}_2"

    def attribute(self, name):
        return (3, "m.attn.heads") if name == "heads" else None

    def assigned(self, name):
        return self.of.get(name)

    def has_math(self):
        return self.math


def expression(text):
    return ast.parse(text, mode="eval").body


@pytest.mark.parametrize(
    ("text", "number", "written"),
    [
        pytest.param("7", 7, "7", id="a number is itself"),
        pytest.param("C", 12, "C_2", id="a size has its name in the generated file"),
        pytest.param("self.heads", 3, "m.attn.heads", id="an attribute is reached from the function's module"),
        pytest.param("C // self.heads", 4, "C_2 // m.attn.heads", id="operators stay"),
        pytest.param("-C", -12, "-C_2", id="a sign stays"),
        pytest.param("2 ** 5", 32, "2 ** 5", id="powers are computed"),
        pytest.param("C % 5", 2, "C_2 % 5", id="remainders are computed"),
        pytest.param("1 / math.sqrt(C)", 1 / math.sqrt(12), "1 / math.sqrt(C_2)", id="roots are computed"),
        pytest.param("half * 3", 18, "C_2 // B_2 * 3", id="a name gives way to what it was assigned"),
        pytest.param("twice", 12, "C_2 // B_2 * 2", id="also by way of another name"),
        pytest.param("C * (half + 1)", 84, "C_2 * (C_2 // B_2 + 1)", id="brackets stay where they are needed"),
    ],
)
def test_what_is_spelled_and_how(text, number, written):
    assert Arithmetic(Names(half="C // B", twice="half * 2")).spelled(expression(text), number) == written


@pytest.mark.parametrize(
    ("text", "number"),
    [
        pytest.param("C", 13, id="another number than the traced one"),
        pytest.param("2", 2.0, id="a whole number for one with a point"),
        pytest.param("0.0", -0.0, id="zero of the other sign"),
        pytest.param("True", True, id="a truth value"),
        pytest.param("unknown", 12, id="a name of which nothing is known"),
        pytest.param("self.other", 3, id="an attribute of which nothing is known"),
        pytest.param("other.heads", 3, id="an attribute of something else than self"),
        pytest.param("C // 0", 0, id="a division by zero"),
        pytest.param("math.log(-1)", 0.0, id="a logarithm that is not defined"),
        pytest.param("(-2) ** 0.5", (-2) ** 0.5, id="a complex power"),
        pytest.param(f"2 ** {LARGEST_EXPONENT + 1}", 2 ** (LARGEST_EXPONENT + 1), id="a power with a large exponent"),
        pytest.param(f"{LARGEST_BASE + 1} ** 2", (LARGEST_BASE + 1) ** 2, id="a power of a large number"),
        pytest.param("math.floor(2.5)", 2, id="a function of math that is not in the list"),
        pytest.param("math.log(C, 2)", math.log(12, 2), id="a call with two arguments"),
        pytest.param("max(B, C)", 12, id="a call of anything but math"),
        pytest.param("C << 1", 24, id="an operator on bits"),
        pytest.param("C if B else 0", 12, id="a choice"),
        pytest.param("+".join(["B"] * LONGEST), 2 * LONGEST, id="an expression that is longer than its number is hard to read"),
        pytest.param("+".join(["B"] * 600), 1200, id="an expression too deep to be written"),
        pytest.param("circle", 1, id="names that lead to one another for ever"),
    ],
)
def test_what_stays_a_number(text, number):
    assert Arithmetic(Names(circle="circle")).spelled(expression(text), number) is None


def test_what_is_too_deep_to_be_read_stays_a_number():
    sum_of_many = expression("1")
    for _ in range(3_000):
        sum_of_many = ast.BinOp(sum_of_many, ast.Add(), expression("1"))
    assert Arithmetic(Names()).spelled(sum_of_many, 3_001) is None


def test_nothing_of_math_is_spelled_where_math_is_something_else():
    assert Arithmetic(Names(math=False)).spelled(expression("math.sqrt(4)"), 2.0) is None


@pytest.mark.parametrize(("steps", "read"), [(DEEPEST, True), (DEEPEST + 1, False)])
def test_assignments_are_followed_up_to_a_depth(steps, read):
    names = Names(**{f"n{i}": f"n{i + 1}" for i in range(steps)})
    names.of[f"n{steps - 1}"] = expression("5")
    assert (Arithmetic(names).value(expression("n0")) == 5) is read


@pytest.mark.parametrize(
    ("text", "number", "written"),
    [
        pytest.param("C + 1", 13, "(C_2 + 1)", id="a sum gets brackets"),
        pytest.param("-C", -12, "(-C_2)", id="a negative gets brackets"),
        pytest.param("C", 12, "C_2", id="a name gets none"),
        pytest.param("half", 6, "(C_2 // B_2)", id="a name for a quotient gets brackets"),
        pytest.param("math.sqrt(C)", math.sqrt(12), "math.sqrt(C_2)", id="a call gets none"),
    ],
)
def test_operands_can_stand_beside_an_operator(text, number, written):
    assert Arithmetic(Names(half="C // B")).spelled(expression(text), number, operand=True) == written


@pytest.mark.parametrize(
    ("statement", "operation", "sides"),
    [
        pytest.param("y = x * scale", "mul", ["scale", "x"], id="both sides, the right one first"),
        pytest.param("y *= scale", "mul", ["scale"], id="in place only the right one"),
        pytest.param("y = x * a + b", "add", ["b", "x * a"], id="only those of the operation's operator"),
        pytest.param("y = (x / a) / b", "div", ["b", "x / a", "a", "x"], id="every such operator of the statement"),
        pytest.param("y = x // a", "div", [], id="another kind of division is another operation"),
        pytest.param("y = x @ a", "matmul", [], id="operations without numbers have none"),
    ],
)
def test_operands_are_what_stands_beside_the_operators_of_an_operation(statement, operation, sides):
    assert [ast.unparse(side) for side in operands(ast.parse(statement).body[0], operation)] == sides
