"""Finding, constructing and feeding the model that the user names."""

from __future__ import annotations

import inspect
import sys

import pytest
import torch
from conftest import EXAMPLE, SMALL, SMALL_INPUTS

from remat_codegen.ask.target import TargetKind, load_target
from remat_codegen.errors import TargetError

NET = """
import torch
import torch.nn as nn

class Net(nn.Module):
    def __init__(self, width=4, bias=True):
        super().__init__()
        if width < 0:
            raise ValueError("width must not be negative")
        self.a = nn.Linear(width, 2, bias=bias)

    def forward(self, x, scale=1.0):
        return self.a(x) * scale

class Unrelated:
    pass

def build(width=4):
    return Net(width)

def build_nothing():
    return 3

instance = Net()
number = 3

def example_inputs():
    return (torch.randn(3, 4),)
"""


@pytest.fixture(autouse=True)
def _same_modules():
    """What a test imports is gone after it."""
    before = dict(sys.modules)
    path = list(sys.path)
    yield
    assert sys.path == path
    for name in set(sys.modules) - set(before):
        file = getattr(sys.modules[name], "__file__", None) or ""
        if "site-packages" not in file and "remat_codegen" not in file:
            del sys.modules[name]


def failure(spec, **options) -> str:
    with pytest.raises(TargetError) as caught:
        load_target(str(spec), **options)
    line = caught.value.line()
    assert "\n" not in line
    return line


def test_a_class(write_file):
    path = write_file(NET)
    target = load_target(f"{path}:Net", init="width=4, bias=False")
    assert target.kind is TargetKind.CLASS
    assert target.module.a.bias is None and target.module.training
    assert target.args[0].shape == (3, 4) and target.kwargs == {}
    assert (target.path, target.source, target.name, target.class_name) == (path, NET, "Net", "Net")
    assert target.label == "model.py:Net" and target.init_text == "width=4, bias=False"


def test_a_function_and_an_instance(write_file):
    path = write_file(NET)
    function, instance = load_target(f"{path}:build", init="4"), load_target(f"{path}:instance")
    assert (function.kind, instance.kind) == (TargetKind.FUNCTION, TargetKind.INSTANCE)
    assert function.class_name == instance.class_name == "Net"


@pytest.mark.parametrize("name", ["Net", "build", "instance"])
def test_the_same_seed_gives_the_same_model_and_inputs(write_file, name):
    spec = f"{write_file(NET)}:{name}"
    one, two, other = load_target(spec, seed=5), load_target(spec, seed=5), load_target(spec, seed=6)
    assert torch.equal(one.module.a.weight, two.module.a.weight) and torch.equal(one.args[0], two.args[0])
    assert not torch.equal(one.module.a.weight, other.module.a.weight) and not torch.equal(one.args[0], other.args[0])


def test_the_class_can_be_inspected_and_pickled_by_name(write_file):
    target = load_target(f"{write_file(NET, 'some_net.py')}:Net")
    cls = type(target.module)
    assert getattr(sys.modules[cls.__module__], cls.__qualname__) is cls and cls.__module__ == "some_net"
    assert inspect.getsource(cls).startswith("class Net(nn.Module)")


def test_a_file_may_have_the_name_of_another_module(write_file):
    target = load_target(f"{write_file(NET, 'json.py')}:Net")
    import json

    assert json.loads("1") == 1 and type(target.module).__module__ != "json"


def test_siblings_are_imported(write_file):
    write_file("WIDTH = 4\n", "my_sibling.py")
    path = write_file("import my_sibling\n" + NET.replace("width=4, bias", "width=my_sibling.WIDTH, bias"))
    assert load_target(f"{path}:Net").module.a.in_features == 4


def test_a_module_in_a_package(write_file, tmp_path, monkeypatch):
    write_file("", "my_package/__init__.py")
    path = write_file(NET, "my_package/net.py")
    monkeypatch.chdir(tmp_path)
    target = load_target("my_package.net:Net")
    assert target.path == path and target.source == NET


def test_example_inputs_on_the_class_come_first(write_file):
    for decorator, argument in (("    @staticmethod\n", ""), ("    @classmethod\n", "cls"), ("", "self")):
        text = NET.replace(
            "class Unrelated",
            f"{decorator}    def example_inputs({argument}):\n        return torch.ones(7, 4)\n\nclass Unrelated",
        )
        assert load_target(f"{write_file(text)}:Net").args[0].shape == (7, 4)


def test_example_inputs_beside_the_class_that_a_function_returns(write_file):
    write_file(NET, "net_with_inputs.py")
    path = write_file("from net_with_inputs import Net\ndef make():\n    return Net()\n", "maker.py")
    assert load_target(f"{path}:make").args[0].shape == (3, 4)


def test_inputs_override(write_file):
    path = write_file(NET)
    target = load_target(f"{path}:Net", inputs="float32[5,4]; scale=2.0")
    assert target.args[0].shape == (5, 4) and target.kwargs == {"scale": 2.0}


def test_inputs_of_a_function(write_file):
    path = write_file(NET + "\ndef more():\n    return {'x': torch.ones(9, 4), 'scale': 3}\n")
    other = write_file("import torch\ndef one():\n    return torch.ones(8, 4)\n", "other.py")
    assert load_target(f"{path}:Net", inputs=f"{path}:more").kwargs["x"].shape == (9, 4)
    assert load_target(f"{path}:Net", inputs=f"{other}:one").args[0].shape == (8, 4)


def test_the_example():
    target = load_target(f"{EXAMPLE}:GPT2", init=SMALL, inputs=SMALL_INPUTS)
    assert target.module(*target.args).shape == (2, 16, 101)
    assert len(target.module.h) == 2 and target.module.head.weight is target.module.wte.weight


def test_the_examples_own_inputs():
    assert load_target(f"{EXAMPLE}:GPT2", init="layers=1, width=12, context=512").args[0].shape == (2, 512)


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("", "cannot read the target ''; a target is written like model.py:Name or package.module:Name"),
        ("Net", "cannot read the target 'Net'; a target is written like model.py:Name or package.module:Name"),
        (":Net", "cannot read the target ':Net'; a target is written like model.py:Name or package.module:Name"),
        ("no_such.py:Net", "no_such.py: no such file"),
        ("no_such_package.net:Net", "no_such_package.net: no module named 'no_such_package'; run this in the folder it is in"),
        (
            "a b.c:Net",
            "'a b.c' is neither a Python file nor a module's name; "
            "a target is written like model.py:Name or package.module:Name",
        ),
    ],
)
def test_nothing_there(spec, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert failure(spec) == line


def test_close_names_are_proposed(write_file):
    path = write_file(NET)
    assert failure(f"{path}:net") == "model.py: has no 'net'; did you mean Net?"
    assert failure(f"{path}:biuld") == "model.py: has no 'biuld'; did you mean build?"
    assert failure(path.with_name("modle.py:Net")).endswith("no such file; did you mean model.py?")
    assert failure(path).endswith("names no model; write " + f"{path}:Net")


def test_no_module(write_file):
    path = write_file(NET)
    hint = "; name a class of modules, a function that returns one, or a module"
    assert failure(f"{path}:Unrelated") == "model.py:Unrelated: is a class, but not one of torch.nn.Module" + hint
    assert failure(f"{path}:number") == "model.py:number: is int, not a torch.nn.Module" + hint
    found = failure(f"{path}:build_nothing")
    assert found == "model.py:build_nothing(): returned int, not a torch.nn.Module; return the model alone"
    assert failure(path.parent / "model.py:torch").startswith("model.py:torch: is module, not")


def test_the_users_own_errors_name_their_line(write_file):
    path = write_file(NET)
    assert failure(f"{path}:Net", init="width=-1") == "model.py:9: Net() fails: ValueError: width must not be negative"
    assert failure(f"{path}:Net", init="width='a'").startswith("model.py:8: Net() fails: TypeError: ")
    assert failure(f"{path}:Net", init="width=2.5").startswith("model.py:10: Net() fails: TypeError: ")


def test_arguments_that_do_not_fit(write_file):
    path = write_file(NET)
    assert "did you mean width?" in failure(f"{path}:Net", init="witdh=3")
    assert "it is model.py:Net(width=4, bias=True)" in failure(f"{path}:Net", init="1, True, 3")
    assert "takes no arguments" in failure(f"{path}:instance", init="3")
    assert failure(f"{path}:Net", init="width=").startswith("--init: ")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = 1\ndef f(:\n", "broken.py:2: cannot be imported: SyntaxError: "),
        (
            "import no_such_package_here\n",
            "broken.py:1: cannot be imported: ModuleNotFoundError: No module named 'no_such_package_here'",
        ),
        ("\n1 / 0\n", "broken.py:2: cannot be imported: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit('bye')\n", "broken.py:2: cannot be imported: it calls sys.exit('bye')"),
        (
            "from .layers import x\n",
            "broken.py:1: cannot be imported: ImportError: attempted relative import with no known parent package; give",
        ),
        ("raise ValueError('two\\nlines')\n", "broken.py:1: cannot be imported: ValueError: two"),
        ("x = '\x00'\n", "broken.py"),
    ],
)
def test_files_that_cannot_be_imported(write_file, text, line):
    assert failure(f"{write_file(text, 'broken.py')}:Net").startswith(line)
    assert "broken" not in sys.modules


def test_a_broken_module_in_a_package(write_file, tmp_path, monkeypatch):
    write_file("", "my_broken/__init__.py")
    write_file("import my_broken.missing\n", "my_broken/net.py")
    monkeypatch.chdir(tmp_path)
    assert failure("my_broken.net:Net").startswith("net.py:1: cannot be imported: ModuleNotFoundError")


def test_no_example_inputs(write_file):
    path = write_file(NET.replace("example_inputs", "other"))
    line = failure(f"{path}:Net")
    assert line.startswith("model.py:Net: has no example inputs; ") and "--inputs" in line and "example_inputs()" in line


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("return [1]", "model.py:example_inputs(): returned a list; return a tuple"),
        ("return None", "model.py:example_inputs(): returned None; return a tuple"),
        ("return 1 / 0", "model.py:28: example_inputs() fails: ZeroDivisionError: division by zero"),
        ("return ()", "Net: the inputs do not fit forward: missing a required argument: 'x'; forward is forward(x, scale=1.0)"),
        ("return {'y': 1}", "Net: the inputs do not fit forward: "),
    ],
)
def test_example_inputs_that_are_no_inputs(write_file, body, line):
    path = write_file(NET.replace("return (torch.randn(3, 4),)", body))
    assert failure(f"{path}:Net").startswith(line)


def test_inputs_that_are_no_function(write_file):
    path = write_file(NET)
    assert failure(f"{path}:Net", inputs=f"{path}:numbre") == "model.py: has no 'numbre'; did you mean number?"
    assert failure(f"{path}:Net", inputs=f"{path}:number").endswith("is no function; name one that returns the inputs")
    assert failure(f"{path}:Net", inputs="int64[2").startswith("--inputs: ")


def test_nothing_requires_grad(write_file):
    frozen = NET + "\ninstance.requires_grad_(False)\n"
    path = write_file(frozen)
    assert failure(f"{path}:instance").startswith("instance: no parameter requires grad")
    assert load_target(f"{path}:instance", inputs="float32[2,4] requires_grad").args[0].requires_grad


def test_modules_without_shapes_yet(write_file):
    path = write_file("import torch\nlazy = torch.nn.LazyLinear(3)\n")
    assert "has no shape before the first call" in failure(f"{path}:lazy", inputs="float32[2,3]")


@pytest.mark.parametrize("device", ["gpu", "", "cuda:99", "meta", "cpu:x"])
def test_devices(write_file, device):
    assert failure(f"{write_file(NET)}:Net", device=device).startswith("--device: ")
