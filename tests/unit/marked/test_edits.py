"""Changes in the bytes of a file, and which statements are laid out anew."""

from __future__ import annotations

import ast

import pytest

from remat_codegen.marked.edits import Edit, applied, first_lines, laid_out


@pytest.mark.parametrize(
    ("edits", "found"),
    [
        pytest.param([], "abcdef", id="nothing"),
        pytest.param([Edit(1, 3, b"X")], "aXdef", id="bytes give way to others"),
        pytest.param([Edit(2, 2, b"XY")], "abXYcdef", id="bytes come in between"),
        pytest.param([Edit(4, 6, b""), Edit(0, 1, b"XYZ")], "XYZbcd", id="places are those of the text before, in any order"),
        pytest.param([Edit(3, 3, b"X"), Edit(3, 5, b"Y")], "abcXYf", id="what comes in between stands first"),
    ],
)
def test_changes_of_bytes(edits, found):
    assert applied(b"abcdef", edits) == found.encode()


@pytest.mark.parametrize(
    ("body", "line"),
    [
        pytest.param("\n    x = 1\n", 2, id="the first statement"),
        pytest.param('\n    """Says."""\n    x = 1\n', 3, id="behind the docstring"),
        pytest.param('\n    """Says\n    more."""\n    x = 1\n', 4, id="behind all lines of the docstring"),
        pytest.param('\n    """Says."""  # why\n    x = 1\n', 3, id="behind a comment beside it"),
        pytest.param('\n    """Says."""; x = 1\n', 0, id="nowhere, where something stands beside the docstring"),
        pytest.param(" x = 1\n", 0, id="nowhere, where the body stands beside def"),
        pytest.param("\n    # why\n\n    # more\n    x = 1\n", 2, id="before comments about the first statement"),
        pytest.param("\n    @d\n    def g(): pass\n", 2, id="before a decorator"),
        pytest.param("\n    b'no docstring'\n    x = 1\n", 2, id="bytes are no docstring"),
    ],
)
def test_where_a_method_s_first_line_belongs(body, line):
    source = f"def f(x):{body}"
    assert first_lines(source.encode(), ast.parse(source).body[0]) == line


WIDTH = 30
LONG = "result = function(first, second)"
SPLIT = "result = function(\n    first, second\n)"


def out(text, *changed):
    return laid_out(text.encode(), changed or range(1, 30), WIDTH)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("x  =  1\n", "x  =  1\n", id="nothing, where all is narrow enough"),
        pytest.param(f"{LONG}\n", f"{SPLIT}\n", id="a statement that is too wide"),
        pytest.param(f"x  =  1\n{LONG}\n", f"x  =  1\n{SPLIT}\n", id="not its neighbours"),
        pytest.param(LONG, SPLIT, id="without an end of line, too"),
        pytest.param(f"{LONG}\r\n", SPLIT.replace("\n", "\r\n") + "\r\n", id="with other ends of lines, too"),
        pytest.param(
            f"if x:\n    {LONG}\n", "if x:\n    result = function(\n        first, second\n    )\n", id="inside of another"
        ),
        pytest.param(f"{LONG}; x = 1\n", f"{LONG}; x = 1\n", id="not beside another one behind it"),
        pytest.param(f"x = 1; {LONG}\n", f"x = 1; {LONG}\n", id="not beside another one before it"),
        pytest.param(f"if x: {LONG}\n", f"if x: {LONG}\n", id="not beside what it stands in"),
        pytest.param(
            "if function(first, second_one):\n    x  =  1\n",
            "if function(\n    first, second_one\n):\n    x  =  1\n",
            id="the head of a block, and not what is in it",
        ),
        pytest.param(
            "if a:\n    pass\nelif function(first, second_on):\n    pass\n",
            "if a:\n    pass\nelif function(\n    first, second_on\n):\n    pass\n",
            id="the head of another branch",
        ),
        pytest.param(
            "while function(first, second_on):\n    # why\n    x = 1\n",
            "while function(\n    first, second_on\n):\n    # why\n    x = 1\n",
            id="not the comments below a head",
        ),
        pytest.param(
            'result = f("""long\n  text""", second_one)\n',
            'result = f("""long\n  text""", second_one)\n',
            id="not texts of several lines",
        ),
    ],
)
def test_statements_that_are_too_wide_are_laid_out(text, found):
    assert out(text) == found
    assert ast.dump(ast.parse(found)) == ast.dump(ast.parse(text))


def test_a_text_of_several_lines_keeps_its_indent():
    text = 'if x:\n    result = function("""long t\n      text""", second)\n'
    assert out(text) == text


def test_only_statements_that_were_changed_are():
    assert out(f"{LONG}\n{LONG}\n", 2) == f"{LONG}\n{SPLIT}\n"
    assert out(f"\n{LONG}\n", 1) == f"\n{LONG}\n"
