"""Marks in a file's text: each rule, and that marked models compute what they did, bit by bit."""

from __future__ import annotations

import copy
import sys

import black
import pytest
import torch
from conftest import ROOT
from marking import Once, Twice, in_file, leaves, loaded, marks_for, results, same, tree_of, whole

from remat_codegen.errors import UnsupportedError
from remat_codegen.marked.file import reads_what_loops_set
from remat_codegen.marked.markable import markable
from remat_codegen.marked.marking import Mark, marked, refusal_of
from remat_codegen.marked.names import name_for
from remat_codegen.marked.syntax import syntax_of

HEAD = "class A(nn.Module):\n    def forward(self, x, y, skips, flag=False):\n"


def at(source, text, nth=0):
    """The span of the nth occurrence of a text."""
    start = -1
    for _ in range(nth + 1):
        start = source.index(text, start + 1)
    before, to = source[:start], source[: start + len(text)]
    return tuple(n for t in (before, to) for n in (t.count("\n") + 1, len(t.split("\n")[-1].encode())))


def method(*lines):
    return HEAD + "".join(f"        {line}\n" for line in lines)


def one(line, text, inputs=("x", "y"), outside=(), made=None, name="p"):
    """A line of a method with one mark in it."""
    source = method(line)
    spans = None if made is None else frozenset(at(source, m) for m in made)
    mark = Mark(at(source, text), name, inputs, tuple(at(source, o) for o in outside), spans)
    new = marked(source, [mark], 200).text
    assert new.startswith(HEAD)
    return new[len(HEAD) :].strip()


def why(line, text, **options):
    source = method(line)
    made = options.pop("made", None)
    spans = None if made is None else frozenset(at(source, m) for m in made)
    outside = tuple(at(source, o) for o in options.pop("outside", ()))
    return refusal_of(source, Mark(at(source, text), "p", options.pop("inputs", ("x", "y")), outside, spans))


WRAPPED = [
    ("z = F.gelu(x)", "F.gelu(x)", 'z = parts(self).part("p", F.gelu, x)'),
    ("z = self.drop(x)", "self.drop(x)", 'z = parts(self).part("p", self.drop, x)'),
    (
        "z = F.softmax(x, dim=-1)",
        "F.softmax(x, dim=-1)",
        'z = parts(self).part("p", lambda x: F.softmax(x, dim=-1), x)',
    ),
    ("z = F.dropout(x, 0.1)", "F.dropout(x, 0.1)", 'z = parts(self).part("p", lambda x: F.dropout(x, 0.1), x)'),
    ("z = x.exp()", "x.exp()", 'z = parts(self).part("p", lambda x: x.exp(), x)'),
    (
        "z = x @ y.transpose(-2, -1) * s",
        "x @ y.transpose(-2, -1) * s",
        'z = parts(self).part("p", lambda x, y: x @ y.transpose(-2, -1) * s, x, y)',
    ),
    ("z = (x @ y) * 2  # why", "x @ y", 'z = parts(self).part("p", lambda x, y: x @ y, x, y) * 2  # why'),
    ("return x + 1, y * 2", "x + 1, y * 2", 'return parts(self).part("p", lambda x, y: (x + 1, y * 2), x, y)'),
    ("return (x + y).exp(), y", "(x + y).exp(), y", 'return parts(self).part("p", lambda x, y: ((x + y).exp(), y), x, y)'),
    ("return (x + 1), (y * 2)", "(x + 1), (y * 2)", 'return parts(self).part("p", lambda x, y: ((x + 1), (y * 2)), x, y)'),
    ("return (x + 1, y)", "(x + 1, y)", 'return parts(self).part("p", lambda x, y: (x + 1, y), x, y)'),
    ("return x + 1,", "x + 1,", 'return parts(self).part("p", lambda x: (x + 1,), x)'),
    ("z = torch.ones(3)", "torch.ones(3)", 'z = parts(self).part("p", lambda: torch.ones(3))'),
    ("z = x.exp() if flag else x", "x.exp()", 'z = parts(self).part("p", lambda x: x.exp(), x) if flag else x'),
    (
        "z = x.exp() if flag else y",
        "x.exp() if flag else y",
        'z = parts(self).part("p", lambda x, y: x.exp() if flag else y, x, y)',
    ),
    ("x += y.exp()", "x += y.exp()", 'x = parts(self).part("p", lambda x, exp: x.add_(exp), x, y.exp())'),
    ("x *= 2", "x *= 2", 'x = parts(self).part("p", lambda x, value: x.mul_(value), x, 2)'),
    ("x += y.exp()", "y.exp()", 'x += parts(self).part("p", lambda y: y.exp(), y)'),
    ("z = 0 < x.sum() < 3", "x.sum()", 'z = 0 < parts(self).part("p", lambda x: x.sum(), x) < 3'),
    ("z = [w.exp() for w in x]", "w.exp()", 'z = [parts(self).part("p", lambda w: w.exp(), w) for w in x]'),
    (
        "z = torch.stack([x + w for w in x])",
        "torch.stack([x + w for w in x])",
        'z = parts(self).part("p", lambda x: torch.stack([x + w for w in x]), x)',
    ),
    ("z = torch.cat(*skips)", "torch.cat(*skips)", 'z = parts(self).part("p", lambda skips: torch.cat(*skips), skips)'),
    ("f = lambda v: v.exp() + x", "v.exp()", 'f = lambda v: parts(self).part("p", lambda v: v.exp(), v) + x'),
    ("z = f'{x.sum()}' + y", "f'{x.sum()}' + y", "z = parts(self).part(\"p\", lambda x, y: f'{x.sum()}' + y, x, y)"),
    (
        "z = torch.cat([x, skips.pop()], dim=1)",
        "torch.cat([x, skips.pop()], dim=1)",
        'z = parts(self).part("p", lambda x, skip: torch.cat([x, skip], dim=1), x, skips.pop())',
    ),
    (
        "z = self.up(next(x), y)",
        "self.up(next(x), y)",
        'z = parts(self).part("p", lambda y, value: self.up(value, y), y, next(x))',
    ),
    ("z = self.up(skips.pop())", "self.up(skips.pop())", 'z = parts(self).part("p", self.up, skips.pop())'),
    (
        "z = x.view(len(skips), x.size(0))",
        "x.view(len(skips), x.size(0))",
        'z = parts(self).part("p", lambda x: x.view(len(skips), x.size(0)), x)',
    ),
]


@pytest.mark.parametrize(("line", "text", "expected"), WRAPPED, ids=[line for line, *_ in WRAPPED])
def test_expressions_are_wrapped(line, text, expected):
    assert one(line, text, ("x", "y", "w", "v", "skips") if "*skips" in line else ("x", "y", "w", "v")) == expected


def test_all_local_names_are_inputs_where_nothing_was_observed():
    source = method("b, t = x.shape", "z = self.f(x, y).view(b, t) * SCALE")
    new = marked(source, [Mark(at(source, "self.f(x, y).view(b, t) * SCALE"), "p")], 200).text
    assert 'z = parts(self).part("p", lambda x, y, b, t: self.f(x, y).view(b, t) * SCALE, x, y, b, t)' in new


def test_what_is_no_part_is_handed_in():
    assert one("z = F.gelu(self.c_fc(x))", "F.gelu(self.c_fc(x))", outside=["self.c_fc(x)"]) == (
        'z = parts(self).part("p", F.gelu, self.c_fc(x))'
    )
    assert one("z = x + self.gamma * self.f(y)", "self.gamma * self.f(y)", outside=["self.f(y)"]) == (
        'z = x + parts(self).part("p", lambda gamma, f: gamma * f, self.gamma, self.f(y))'
    )


def test_names_are_bound_in_a_part_or_where_that_is_handed_in():
    assert one("z = (w := x.exp()) + w", "(w := x.exp()) + w") == ('z = parts(self).part("p", lambda x: (w := x.exp()) + w, x)')
    assert one("z = x + (w := self.f(x)) * w.tanh()", "x + (w := self.f(x)) * w.tanh()", outside=["self.f(x)"]) == (
        'z = parts(self).part("p", lambda x, w: x + w * w.tanh(), x, w := self.f(x))'
    )
    both = one("z = (w := self.f(x)) * w.tanh()", "(w := self.f(x)) * w.tanh()", outside=["self.f(x)", "w.tanh()"])
    assert both == 'z = parts(self).part("p", lambda w, tanh: w * tanh, w := self.f(x), w.tanh())'
    assert one("z = F.silu(w := self.f(x))", "F.silu(w := self.f(x))", outside=["self.f(x)"]) == (
        'z = parts(self).part("p", F.silu, w := self.f(x))'
    )


def test_calls_that_make_no_operation_are_evaluated_before_where_that_is_known():
    line = "z = torch.cat([x, self.take(y)])"
    expected = 'z = parts(self).part("p", lambda x, take: torch.cat([x, take]), x, self.take(y))'
    assert one(line, "torch.cat([x, self.take(y)])", made=["torch.cat([x, self.take(y)])"]) == expected
    both = one(line, "torch.cat([x, self.take(y)])", made=["torch.cat([x, self.take(y)])", "self.take(y)"])
    assert both == 'z = parts(self).part("p", lambda x, y: torch.cat([x, self.take(y)]), x, y)'
    pure = "z = x.view(x.size(0), max(2, len(y)), int(math.sqrt(4)))"
    assert "lambda x, y: x.view(x.size(0)" in one(pure, pure[4:], made=[pure[4:]])


REFUSED = [
    ("z = (w := x.exp()) + 1; v = w", "(w := x.exp()) + 1", "not only read in it"),
    ("z = w * (w := x.exp())", "w * (w := x.exp())", "before it assigns it"),
    ("z = ((w := x.exp()) if y else x) * w", "((w := x.exp()) if y else x) * w", "before it assigns it"),
    ("z = x.exp() * d[f'{(w := 1)}'] * d[w]", "x.exp() * d[f'{(w := 1)}'] * d[w]", "formatted string"),
    ("z = (w := x.exp()) + w; f(locals())", "(w := x.exp()) + w", "not only read in it"),
    ("z = super().forward(x)", "super().forward(x)", "super()"),
    ("z = f(locals(), x)", "f(locals(), x)", "locals()"),
    ("z = (v.exp() for v in x)", "(v.exp() for v in x)", "runs later"),
    ("self.w += y", "self.w += y", "no variable"),
    ("x @= y", "x @= y", "no variable"),
    ("z = 1; pass", "pass", "no expression stands"),
    ("x[0] = y", "x[0]", "assigned to"),
    ("def f(a=x.exp()): pass", "x.exp()", "a default"),
    ("z: x.exp() = 3", "x.exp()", "annotation"),
    ("z = f'{x.sum()}'", "x.sum()", "no expression stands there"),
    ("z = x.pop() + skips.view(x.pop())", "x.pop()", "changes something"),
    ("z = y.exp() + (skips.pop() if flag else x)", "y.exp() + (skips.pop() if flag else x)", "not always happen"),
    ("z = [skips.pop() + v for v in x]", "[skips.pop() + v for v in x]", "not always happen"),
    ("z = skips[-1].exp() + skips.pop()", "skips[-1].exp() + skips.pop()", "change its order"),
    ("z = self.up(x, skips) + skips.pop()", "self.up(x, skips) + skips.pop()", "change its order"),
    ("z = f'{skips.pop()}' + x", "f'{skips.pop()}' + x", "formatted string"),
    ("yield x.exp()", "x.exp()", "in a generator"),
    ("self = x; z = x.exp()", "x.exp()", "self is assigned to"),
]


@pytest.mark.parametrize(("line", "text", "reason"), REFUSED, ids=[line for line, *_ in REFUSED])
def test_what_cannot_be_done_right_is_refused(line, text, reason):
    assert reason in why(line, text)


def test_evaluation_order_stays():
    asked = {"outside": ["self.b(y)"], "made": ["F.dropout(x) + self.b(y)", "F.dropout(x)", "self.b(y)"]}
    assert "change its order" in why("z = F.dropout(x) + self.b(y)", "F.dropout(x) + self.b(y)", **asked)
    for first in (
        "F.rrelu(x)",
        "F.relu(x, True)",
        "F.relu(x, inplace=True)",
        "F.scaled_dot_product_attention(x, x, x, None, 0.1)",
    ):
        asked = {"outside": ["self.b(y)"], "made": [f"{first} + self.b(y)", first, "self.b(y)"]}
        assert "change its order" in why(f"z = {first} + self.b(y)", f"{first} + self.b(y)", **asked)
    assert not why("z = x.exp() + self.b(y)", "x.exp() + self.b(y)", outside=["self.b(y)"])


OUTSIDE = """
LIMIT = torch.ones(3)
def helper(x, scale=torch.ones(2)):
    return x.exp()
class A(nn.Module):
    eps = torch.zeros(1)
    @staticmethod
    def still(x):
        return x.sin()
    async def later(self, x):
        return x.cos()
    def matched(self, x):
        match x.tan():
            case Kind.TWO:
                return x.sinh()
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("torch.ones(3)", "neither in a method nor"),
        ("torch.ones(2)", "a default"),
        ("x.exp()", ""),
        ("torch.zeros(1)", "neither in a method nor"),
        ("x.sin()", "no self"),
        ("x.cos()", "neither in a method nor"),
        ("Kind.TWO", "in a pattern"),
        ("x.tan()", ""),
        ("x.sinh()", ""),
    ],
)
def test_only_expressions_in_methods_and_functions_can_be_marked(text, reason):
    found = markable(OUTSIDE, at(OUTSIDE, text))
    assert reason in found and bool(found) == bool(reason)


def test_several_marks_share_what_holds_them():
    """After the docstring, before comments; and inner functions see it, too."""
    source = HEAD + (
        '        """Doc."""\n        # first\n        def f(v):\n            return v.exp()\n'
        "\n        return F.silu(self.norm(f(x)))\n"
    )
    marks = [
        Mark(at(source, "v.exp()"), "exp", ("v",)),
        Mark(at(source, "F.silu(self.norm(f(x)))"), "silu", ("x",), (at(source, "self.norm(f(x))"),)),
        Mark(at(source, "self.norm(f(x))"), "norm", ("x",), (at(source, "f(x)"),)),
    ]
    assert marked(source, marks).text == HEAD + (
        '        """Doc."""\n        kept = parts(self)\n        # first\n        def f(v):\n'
        '            return parts(self).part("exp", lambda v: v.exp(), v)\n'
        '\n        return kept.part("silu", F.silu, kept.part("norm", self.norm, f(x)))\n'
    )


def test_marks_lie_within_the_function_of_another():
    source = method("return self.drop(F.silu(torch.cat([x, skips.pop()])))")
    texts = ["self.drop(F.silu(torch.cat([x, skips.pop()])))", "torch.cat([x, skips.pop()])"]
    new = marked(source, [Mark(at(source, t), n, ("x",)) for t, n in zip(texts, ("drop", "cat"), strict=True)], 200).text
    inner = 'kept.part("cat", lambda x, skip: torch.cat([x, skip]), x, skip)'
    assert f'return kept.part("drop", lambda x, skip: self.drop(F.silu({inner})), x, skips.pop())' in new


def test_names_of_the_source_are_not_taken():
    source = method("kept, parts = x, y", "return kept.exp() + parts.sin()")
    new = marked(source, [Mark(at(source, t), "p", ("kept", "parts")) for t in ("kept.exp()", "parts.sin()")])
    assert new.parts == "remat_parts" and "kept_parts = remat_parts(self)" in new.text
    assert 'kept_parts.part("p", lambda kept: kept.exp(), kept)' in new.text


def test_methods_on_one_line_are_marked_there():
    source = "class A(nn.Module):\n    def forward(self, x): return F.gelu(x) + F.silu(x)\n"
    new = marked(source, [Mark(at(source, f"F.{f}(x)"), f, ("x",)) for f in ("gelu", "silu")]).text
    assert new.endswith('return parts(self).part("gelu", F.gelu, x) + parts(self).part("silu", F.silu, x)\n')


def test_only_what_is_marked_changes():
    source = method(
        "z   =   { 'a':1 }   # odd   layout", "ü = 'ü'; w = f('ü', x.exp())  # ends", "", "return   (w,)", r"s = x.a \ ", ""
    ).replace("\\ \n", "\\\n            .b()\n")
    new = marked(source, [Mark(at(source, "x.exp()"), "exp", ("x",))]).text
    assert new == source.replace("x.exp()", 'parts(self).part("exp", lambda x: x.exp(), x)')
    crlf = source.replace("\n", "\r\n")
    both = marked(crlf, [Mark(at(source, t), "p", ("x",)) for t in ("x.exp()", "x.a")]).text
    assert both.count("\r\n") == both.count("\n") and "        kept = parts(self)\r\n" in both


def test_statements_that_get_too_wide_are_laid_out_anew():
    wide = "self.first_of_all(x_of_this_method, y_of_this_method) * self.and_then_some(x_of_this_method)"
    source = method(f"z = {wide}  # said", "w   = 1", f"for v in {wide}:", "    pass")
    marks = [Mark(at(source, wide, n), f"name{n}", ("x_of_this_method", "y_of_this_method")) for n in (0, 1)]
    new = marked(source, marks, 100).text
    assert max(map(len, new.split("\n"))) <= 100 and "        w   = 1\n" in new and "# said" in new
    assert black.format_str(new.replace("w   =", "w ="), mode=black.Mode(line_length=100)) == new.replace("w   =", "w =")


def named(line, text, taken=(), children=()):
    source = method(line)
    return name_for(syntax_of(source), at(source, text), taken, children)


def test_names_say_what_the_user_says():
    assert named("probs = self.drop(F.softmax(x, -1))", "self.drop(F.softmax(x, -1))") == "probs"
    assert named("return self.drop(F.silu(x))", "self.drop(F.silu(x))") == "drop"
    assert named("return F.gelu(x)", "F.gelu(x)") == "gelu"
    assert [named(f"return {e}", e) for e in ("x + y", "x * y", "x @ y", "x[0]")] == ["add", "mul", "matmul", "getitem"]
    assert named("x, y = self.f(x)", "self.f(x)") == "f"
    assert named("return self.blocks[0](x)", "self.blocks[0](x)") == "blocks"
    assert named("return F.gelu(self.c_fc(x))", "F.gelu(self.c_fc(x))", {"gelu"}) == "gelu_c_fc"
    assert named("z = F.gelu(x)", "F.gelu(x)", {"z", "gelu", "gelu_x"}) == "gelu_2"
    assert named("norm = self.norm(x)", "self.norm(x)", (), {"norm"}) == "norm_x"
    assert named("return not x", "not x") == "negation"


# ------------------------------------------------------------------------------------------------- models, marked and run


def of_example(name, make, inputs):
    return ROOT / "examples" / f"{name}.py", make, inputs


def of_zoo(name):
    return ROOT / "tests" / "zoo.py", lambda m: m.build(name)[0], lambda m: m.build(name)[1:]


MODELS = {
    "gpt2": of_example(
        "gpt2",
        lambda m: m.GPT2(layers=2, width=32, heads=2, vocabulary=50, context=16),
        lambda m: ((torch.randint(50, (2, 8)),), {}),
    ),
    "unet": of_example(
        "unet",
        lambda m: m.UNet(width=16, levels=2, time=16),
        lambda m: ((torch.randn(2, 3, 16, 16), torch.rand(2)), {}),
    ),
    "resnet": of_example("resnet", lambda m: m.ResNet((1, 1), 8, 5), lambda m: ((torch.randn(2, 3, 16, 16),), {})),
    "vit": of_example(
        "vit", lambda m: m.ViT(image=16, width=24, layers=2, classes=5), lambda m: ((torch.randn(2, 3, 16, 16),), {})
    ),
    "encoder_decoder": of_example(
        "encoder_decoder",
        lambda m: m.EncoderDecoder(width=32, heads=2, layers=1, vocabulary=50, longest=16),
        lambda m: ((torch.randint(50, (2, 7)), torch.randint(50, (2, 5))), {}),
    ),
    **{f"zoo {name}": of_zoo(name) for name in "gpt2 vgg resnet unet lstm encoder odd".split()},
}


@pytest.mark.parametrize("name", MODELS)
def test_marked_models_compute_what_they_did(name):
    """Each level of marks: the innermost expressions, whole right sides, and all inside of each other."""
    path, make, inputs = MODELS[name]
    check(path.read_text(), str(path), make, inputs)


def check(source, file, make, inputs, package=""):
    plain = loaded(source, file, package=package)

    def model(module):
        torch.manual_seed(0)
        return make(module)

    args, kwargs = inputs(plain)
    tree = tree_of(model(plain), args, kwargs)
    want = results(model(plain), *copy.deepcopy((args, kwargs)))
    for level in (leaves, whole, in_file):
        marks = marks_for(source, tree, level(tree, file), model(plain))
        assert marks, level
        new = marked(source, marks)
        for holder in (Once(), Twice()):
            marked_model = model(loaded(new.text, file, new.parts, holder, package))
            assert same(want, results(marked_model, *copy.deepcopy((args, kwargs)))), (level, holder)


@pytest.mark.slow
def test_a_librarys_own_text_can_be_marked():
    pytest.importorskip("transformers")
    import transformers.models.distilbert.modeling_distilbert as library

    def make(module):
        config = sys.modules["transformers"].DistilBertConfig(
            vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=32, num_labels=5
        )
        return module.DistilBertForSequenceClassification(config)

    def inputs(module):
        ones = torch.ones(2, 8, dtype=torch.int64)
        return (), {"input_ids": ones * 3, "attention_mask": ones, "labels": torch.tensor([1, 2])}

    with open(library.__file__) as file:
        check(file.read(), library.__file__, make, inputs, library.__package__)


def test_a_mark_that_is_refused_raises_with_its_reason():
    source = method("return super().forward(x)")
    with pytest.raises(UnsupportedError, match="cannot be marked: super"):
        marked(source, [Mark(at(source, "super().forward(x)"), "p")])


@pytest.mark.parametrize(
    ("body", "late"),
    [
        ("for way in ways:\n        x = part(lambda x: way(x), x)", True),
        ("for i, way in enumerate(ways):\n        x = part(lambda x: x * i, x)", True),
        ("while x:\n        y = g(x)\n        x = part(lambda x: y + x, x)", True),
        ("for way in ways:\n        x = part(lambda x, way: way(x), x, way)", False),
        ("for way in ways:\n        x = way(x)\n    return part(lambda x: f(x), x)", False),
        ("way = ways[0]\n    x = part(lambda x: way(x), x)", False),
    ],
)
def test_what_a_linter_has_to_be_told(body, late):
    assert reads_what_loops_set(f"def forward(self, x, ways):\n    {body}\n") is late
