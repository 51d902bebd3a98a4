"""Model files as hostile input: any forward, argument, constant and name, and anything at once."""

# ruff: noqa: E501 - a model file, or a part of one, is easier to read as one string

from __future__ import annotations

import pytest
import torch
from hostile import FORWARD, INIT, Case, holds, source
from hypothesis import given, settings
from hypothesis import strategies as st

# ---------------------------------------------------------------------------------------------- forward

FORWARDS = {
    "*args and **kwargs": "    def forward(self, *args, **kwargs):\n        return self.b(self.a(args[0]).tanh()) * kwargs.get('k', 1)\n",
    "all kinds of parameters": (
        "    def forward(self, x: torch.Tensor, /, y: 'torch.Tensor | None' = None, *, scale: float = 2.0, act=torch.tanh, s=float('nan')):\n"
        "        return self.b(act(self.a(x)).exp()) * scale\n"
    ),
    "defaults from the class": "    D = 3\n    def forward(self, x, d=D, f=lambda t: t * 2):\n        return self.b(self.a(x).tanh() * d)\n",
    "self by another name": "    def forward(this, x):\n        return this.b(this.a(x).tanh().exp())\n",
    "walrus": "    def forward(self, x):\n        if (n := x.shape[0]) > 1:\n            x = x * n\n        return self.b((h := self.a(x)).tanh() * h)\n",
    "match": (
        "    def forward(self, x):\n        match x.shape:\n            case (2, _):\n                x = x * 3\n            case _:\n                pass\n"
        "        return self.b(self.a(x).exp())\n"
    ),
    "lambdas": "    act = lambda self, t: torch.tanh(t)\n    def forward(self, x):\n        return self.b(self.act(self.a(x)))\n",
    "f-strings": "    def forward(self, x):\n        n = f\"{'a'}{x.ndim=}{{}}\"\n        return self.b(getattr(self, n[0])(x).tanh())\n",
    "no_grad": "    def forward(self, x):\n        with torch.no_grad():\n            s = x.sum()\n        return self.b(self.a(x).tanh()) * s\n",
    "on one line": "    def forward(self, x): h = self.a(x); return self.b(h.tanh())\n",
    "twice": FORWARD + FORWARD.replace("sin", "cos"),
    "a local import": "    def forward(self, x):\n        import math as mm\n        return self.b(self.a(x).tanh() * mm.pi)\n",
    "a private name": "    def forward(self, x):\n        return self.__in(x)\n    def __in(self, x):\n        return self.b(self.a(x).tanh())\n",
    "non-finite numbers": (
        "    def forward(self, x):\n        h = self.a(x).tanh()\n        h = h.masked_fill(h > 0.5, float('-inf')).clamp(-5, float('inf'))\n"
        "        return self.b(h + torch.full((4,), float('nan')).nan_to_num(0.5) - 1e-320 * h)\n"
    ),
    "complex numbers": "    def forward(self, x):\n        h = self.a(x).tanh()\n        return self.b((h * complex(-0.0, 1.5) + (1 - 2j)).abs())\n",
    "dtypes, devices and formats": (
        "    def forward(self, x):\n        h = self.a(x).tanh().to(torch.float64).to(device='cpu', memory_format=torch.contiguous_format).float()\n"
        "        h = h.view(1, 1, 2, 4).contiguous(memory_format=torch.channels_last).view(2, 4)\n"
        "        return self.b(h + torch.zeros(4, dtype=torch.bfloat16, device=torch.device('cpu'), layout=torch.strided))\n"
    ),
    "odd results": "    def forward(self, x):\n        return {'a\\n\"': self.b(self.a(x).tanh()), 3: x, ('t', 1): 'lit\\n', None: float('inf')}\n",
}


@pytest.mark.parametrize("name", FORWARDS)
def test_forwards(name, tmp_path):
    holds(Case(source(forward=FORWARDS[name])), tmp_path)


@pytest.mark.parametrize(
    ("forward", "carried"),
    [
        ("    @deco\n" + FORWARD, True),
        (FORWARD.replace("def forward", "def other") + "    forward = other\n", False),
        (FORWARD + "    forward = deco(forward)\n", False),
        ("    if True:\n" + "".join(f"    {line}\n" for line in FORWARD.splitlines()), False),
    ],
)
def test_a_forward_that_is_made_by_something_else(forward, carried, tmp_path):
    deco = "def deco(f):\n    def g(*a, **k):\n        return f(*a, **k) * 2\n    return g\n"
    holds(Case(source(deco, forward=forward), carried), tmp_path)


@pytest.mark.parametrize(
    "name", "torch check_call run_forward Step step m kept FROZEN call given args kwargs remat_step F super".split()
)
def test_a_parameter_of_forward_named_like_something_generated(name, tmp_path):
    holds(
        Case(source(forward=FORWARD.replace("torch.tanh(self.a(x))", "self.a(x).tanh()").replace("x)", f"{name})"))), tmp_path
    )


@pytest.mark.parametrize(
    "body",
    [
        "    K = 1\n",
        "    def forward(self, x):\n        return super().forward(x * 2).sin()\n",
        "    def forward(self, x):\n        return super(Model, self).forward(x * 2).sin()\n",
        "    def forward(self, x):\n        return super(__class__, self).forward(x * 2).sin()\n",
        "    def forward(self, x):\n        return Base.forward(self, x * 2).sin()\n",
        "    def __init__(self):\n        super(Model, self).__init__()\n",
        "    def __init__(self):\n        Base.__init__(self)\n",
    ],
)
def test_a_class_that_inherits_from_another_in_the_file(body, tmp_path):
    holds(Case(source().replace("class Model", "class Base") + f"class Model(Base):\n{body}"), tmp_path)


def test_a_class_that_inherits_from_torchs_containers(tmp_path):
    text = "    def __init__(self):\n        super().__init__(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))\n"
    holds(Case(source(bases="nn.Sequential", init=text, forward="")), tmp_path)


@pytest.mark.parametrize(
    ("forward", "args", "kwargs"),
    [
        (
            "(self, x, **kw):\n        return self.b(self.a(x).tanh()) * next(iter(kw.values()))\n",
            1,
            {'a\n"b\\': torch.ones(4)},
        ),
        ("(self, d):\n        return self.b(self.a(d['k\\n\"']).tanh())\n", ({'k\n"': torch.ones(2, 4)},), {}),
        ("(self, d):\n        return self.b(self.a(d[3]).tanh())\n", ({3: torch.ones(2, 4)},), {}),
        ("(self, x, mode):\n        return self.b(self.a(x).tanh())\n", (torch.ones(2, 4), 'a"\n\\'), {}),
        ("(self, x, s):\n        return self.b(self.a(x).tanh())\n", (torch.ones(2, 4), float("nan")), {}),
        ("(self, x, s):\n        return self.b(self.a(x).tanh() * s)\n", (torch.ones(2, 4), float("inf")), {}),
    ],
)
def test_odd_arguments(forward, args, kwargs, tmp_path):
    given = (torch.ones(2, 4),) if args == 1 else args
    holds(Case(source(forward=f"    def forward{forward}"), args=given, kwargs=kwargs), tmp_path)


@pytest.mark.parametrize(
    ("value", "use"),
    [
        ("torch.tensor([1.0, float('inf'), -0.0, 1e-45])", "torch.where(h > 0, h, 1 / self.c)"),
        ("torch.tensor([float('nan'), 1, 2, 3])", "(h + self.c).nan_to_num(2.0)"),
        ("torch.tensor([1.1, 2, 3, 4], dtype=torch.bfloat16)", "h * self.c"),
        ("torch.tensor([1 + 2j, 1, 2, complex(-0.0, 1)])", "(h * self.c).abs()"),
        ("torch.zeros(0, 4)", "torch.cat([h, self.c])"),
        ("torch.tensor([True, False, True, True])", "h.masked_fill(self.c, 0.5)"),
    ],
)
def test_constant_tensors(value, use, tmp_path):
    forward = FORWARD.replace("return", f"h = {use}\n        return")
    holds(Case(source(init=f"{INIT}        self.c = {value}\n", forward=forward)), tmp_path)


# ---------------------------------------------------------------------------------------------- names

ODD = [
    "[",
    "a[",
    "[0]",
    "it's",
    'a"b',
    '"""',
    "a\nb",
    "a\\b",
    "\\N",
    "é",
    "ﬁ",
    "class",
    "None",
    "match",
    "__x",
    "__weird__",
    "a b",
    "00",
    "٣",
    "{{x}}",
    "#",
]
ODD += [
    "m",
    "kept",
    "step",
    "self",
    "torch",
    "\u2028",
    "\x00",
    "𝐱",
    "x" * 300,
    "%s",
    "\ud800",
    "__debug__",
    "F",
    "Step",
    "print",
]


def with_names(names: list[str]) -> str:
    """A model whose submodules, parameters and buffers have such names."""
    init = "    def __init__(self):\n        super().__init__()\n        self.q = nn.Module()\n"
    forward = "    def forward(self, x):\n"
    for name in names:
        init += f"        self.add_module({name!a}, nn.Linear(4, 4))\n"
        init += f"        self.q.add_module({name!a}, nn.Linear(4, 4))\n"
        init += f"        self.register_parameter({name + 'p'!a}, nn.Parameter(torch.ones(4)))\n"
        init += f"        self.q.register_buffer({name + 'b'!a}, torch.ones(4))\n"
        forward += f"        x = self._modules[{name!a}](x).tanh() * self._parameters[{name + 'p'!a}]\n"
        forward += f"        x = self.q._modules[{name!a}](x.exp()).sin() * self.q._buffers[{name + 'b'!a}]\n"
    return source(init=init, forward=forward + "        return x\n")


@pytest.mark.parametrize("names", [ODD[i : i + 4] for i in range(0, len(ODD), 4)], ids=lambda names: ascii(names)[:40])
def test_odd_names_of_modules_and_parameters(names, tmp_path):
    holds(Case(with_names(names)), tmp_path)


NAMES = st.text(st.characters(exclude_characters="."), min_size=1, max_size=8).filter(
    lambda n: not hasattr(torch.nn.Module(), n)
)


@settings(max_examples=10)
@given(st.lists(NAMES | st.sampled_from(ODD), min_size=1, max_size=3, unique=True))
def test_any_names_of_modules_and_parameters(tmp_path_factory, names):
    holds(Case(with_names([n for n in names if n not in ("q", "a", "b")] or ["z"])), tmp_path_factory.mktemp("names"))


# ---------------------------------------------------------------------------------------------- anything at once

TOPS = [
    "",
    "print('side effect')\n",
    "W = 4\nprint(W); W += 0\n",
    "# coding: none of that\n",
    "def deco(f):\n    return f\n",
    "class Step: pass\nclass Group(Step): pass\n",
    "T = [1, 2]\nT.append(3)\nfor t in T: print(t)\n",
    "try:\n    import einops_nope\nexcept ImportError:\n    einops_nope = None\n",
    "if __name__ == '__main__':\n    raise SystemExit\n",
    "x = lambda: (yield)\n",
    "class Meta(type): pass\n",
    "import math, os.path as p; from functools import partial as F_\n",
    "@property\ndef nothing(self): ...\n",
    'S = """multi\nline \\\n \'\'\' """\n',
]
BODIES = [
    '    """doc \\""" """\n',
    "    r'''raw \\d \"\"\"'''\n",
    "    K = 1; L = 2\n",
    "    # comment\n",
    "    class In: z = f'{1!r:>{2}}'\n",
    "    x: int\n",
    "",
]
EXTRAS = [
    "",
    "    def extra(self): return [T for T in ()]\n",
    "    @property\n    def prop(self): return W\n",
    "    @staticmethod\n    def s(*, k=1, **kw): ...\n",
    "    async def co(self): await self\n",
    "    def g(self): yield Step\n",
    "    def h(self):\n        global G\n        G = deco\n",
]
FIRSTS = [
    "",
    '"""doc"""\n',
    "from __future__ import annotations\n",
    "#!/usr/bin/env python\n",
    "'''a\\\nb'''\nfrom __future__ import annotations, division\n",
]
ENDINGS = ["\n", "\r\n", "\r"]


@settings(max_examples=25)
@given(
    first=st.sampled_from(FIRSTS),
    tops=st.lists(st.sampled_from(TOPS), max_size=4),
    bodies=st.lists(st.sampled_from(BODIES), max_size=3),
    extras=st.lists(st.sampled_from(EXTRAS), max_size=3),
    forward=st.sampled_from([FORWARD, *FORWARDS.values()]),
    ending=st.sampled_from(ENDINGS),
    tabs=st.booleans(),
    last=st.booleans(),
)
def test_anything_at_once(tmp_path_factory, first, tops, bodies, extras, forward, ending, tabs, last):
    text = first + source("".join(tops), init="".join(bodies) + INIT, forward=forward, extra="".join(extras))
    text = text.replace("    ", "\t") if tabs else text
    text = text if last else text.rstrip()
    holds(Case(text.replace("\n", ending).encode(), None), tmp_path_factory.mktemp("anything"))
