"""What a user's file does to things outside of it as it is loaded: to PyTorch as a whole, to the process, to other packages.

What only sets something, to the same value however often, is carried. What registers something, or replaces a function by one
that may call it, would be done twice where the generated file is imported beside the original: then no file is carried.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

import torch

from remat_codegen.emit import others
from remat_codegen.emit.constants import full_name
from remat_codegen.emit.effects import QUIET_FUNCTIONS, QUIET_OF_TORCH, called_name, effects_of, roots
from remat_codegen.emit.statements import Statement
from remat_codegen.emit.userfile import OURS, File

# The namespaces of operations that PyTorch itself brings.
OPERATIONS_OF_TORCH = frozenset("aten prim prims quantized mkldnn mkl _c10d_functional inductor rngprims".split())

ONCE = (  # makes operations, or fails the second time
    "torch.library torch._library torch.utils.cpp_extension torch.ops.load_library torch.classes torch.distributed.init "
    "torch.multiprocessing.set_start_method multiprocessing.set_start_method"
).split()
SETTINGS = ("set_", "use_deterministic_", "enable_")
OF_ONE_MODULE = frozenset("register_parametrization register_buffer register_parameter register_module".split())
SEEDS = frozenset(
    "random.seed torch.manual_seed torch.seed torch.random.manual_seed torch.cuda.manual_seed "
    "torch.cuda.manual_seed_all".split()
)
LOOKS_AT_ITSELF = (
    "inspect.getsource inspect.getfile inspect.stack inspect.currentframe inspect.getmodule sys._getframe sys.modules".split()
)
NAMES_BY_TEXT = ("sys.modules", "importlib.import_module", "importlib.reload", "inspect.getmodule", "builtins.__dict__")
DRAWS = frozenset(
    "rand rand_like randn randn_like randint randint_like randperm normal normal_ uniform_ bernoulli bernoulli_ multinomial "
    "exponential_ random_ trunc_normal_ kaiming_normal_ kaiming_uniform_ xavier_normal_ xavier_uniform_ orthogonal_".split()
)
DRAWING = ("random.", "secrets.", "uuid.", "time.", "datetime.datetime.now")
# Packages whose import and whose functions leave PyTorch as it is.
HARMLESS = frozenset(
    "numpy scipy pandas matplotlib seaborn PIL cv2 sklearn tqdm wandb tensorboard mlflow yaml omegaconf hydra fire click typer "
    "absl rich loguru dotenv tiktoken tokenizers sentencepiece datasets requests psutil pytest packaging typing_extensions "
    "jaxtyping beartype IPython plotly tabulate termcolor colorama".split()
)


def sets_something(file: File, statement: Statement) -> bool:
    """Whether a statement sets how PyTorch computes, or the environment: torch.set_default_dtype(torch.float64)."""
    found = file.loaded[statement], *file.reaches[statement].effects
    calls = any(_is_setting(call, file.imports) for effects in found for call in effects.called)
    return calls or any(_reaches_out(file, names) for names, _ in file.patches(statement))


def _is_setting(call: ast.Call, imports: Mapping[str, str]) -> bool:
    name = full_name(call.func, imports)
    if name.startswith("os.environ.") or name == "os.putenv":
        return called_name(call) in ("setdefault", "update", "pop", "putenv")
    if name in SEEDS:
        return True
    return name.startswith("torch.") and called_name(call).startswith(SETTINGS) and called_name(call) not in QUIET_OF_TORCH


def _reaches_out(file: File, names: Iterable[str]) -> set[str]:
    """The imported names of torch and the standard library among those whose attributes are set."""
    found = {n: file.imports[n].partition(".")[0] for n in names if n in file.imports}
    return {n for n, package in found.items() if package in OURS - QUIET_FUNCTIONS | {"os"}}


def may_be_carried(file: File, needed: Iterable[Statement]) -> bool:
    """Whether a file does nothing outside of it that a second copy of `needed` would do again, or that cannot be told."""
    if any(_does_too_much(file, s) for s in file.running) or _unused_imports(file):
        return False
    if any(_draws(file, s) or _depends_on_its_place(file, s) for s in needed):
        return False
    used = others.imported(part for s in needed for part in s.parts)
    return not used or others.only_within_functions([part for s in file.running for part in s.parts])


def _does_too_much(file: File, statement: Statement) -> bool:
    loaded, reach = file.loaded[statement], file.reaches[statement]
    found = [loaded, *reach.effects]
    names = {_full(n, file.imports) for effects in found for n in effects.dotted}
    if any(effects.hidden for effects in found) or any(_begins(n, (*ONCE, *NAMES_BY_TEXT)) for n in names):
        return True
    if any(_registers(file, call) for effects in found for call in effects.called):
        return True
    if any(_replaces(file, names, value) for names, value in file.patches(statement)):
        return True
    foreign = any(_is_foreign(file, call) for effects in found for call in effects.commands)
    return foreign or any(_is_unknown(file, call) for call in loaded.commands)


def _registers(file: File, call: ast.Call) -> bool:
    """Whether a call registers something with PyTorch that a second copy would register again; a class of the file is another
    in a copy."""
    name = full_name(call.func, file.imports)
    last = name.rpartition(".")[2]
    if not name.startswith("torch.") or not last.startswith("register") or last in OF_ONE_MODULE:
        return False
    own = bool(call.args) and any(map(file.is_class, file.objects(roots(call.args[0]))))
    return not own or any(k.arg == "serialized_type_name" for k in call.keywords)


def _replaces(file: File, names: Iterable[str], value: ast.expr | None) -> bool:
    """Whether something of a library is replaced by what may call it, so that twice is not the same as once."""
    if all(file.imports[n] == "os" for n in _reaches_out(file, names)):  # the environment holds texts
        return False
    parts = [] if value is None else list(ast.walk(value))
    if value is None or any(isinstance(p, (ast.Call, ast.Lambda)) for p in parts):
        return True
    return any(isinstance(p, ast.Name) and file.imports.get(p.id, "").partition(".")[0] not in OURS for p in parts)


def _is_unknown(file: File, call: ast.Call) -> bool:
    """Whether a call of PyTorch's own whose result nobody takes may set anything of it."""
    if file.package_of(call.func) != "torch":
        return False
    given = {n for a in call.args for n in file.objects(roots(a))} - set(file.imports)
    known = called_name(call).endswith("_") or called_name(call) in QUIET_OF_TORCH or _is_setting(call, file.imports)
    return not known and not given


def _is_foreign(file: File, call: ast.Call) -> bool:
    """Whether a call of another package's whose result nobody takes may set anything of PyTorch."""
    return file.package_of(call.func) not in OURS | HARMLESS | {""}


def _unused_imports(file: File) -> bool:
    """Whether another package is imported only for what it does as it is imported."""
    mentioned = {n for s in file.statements for n in s.mentions}
    for statement in (s for s in file.running if s.is_import):
        for name, what in statement.bindings.items():
            package = what.partition(".")[0]
            if name not in mentioned and package not in OURS | HARMLESS and not statement.is_future:
                return True
    return False


def _draws(file: File, statement: Statement) -> bool:
    """Whether loading a statement draws random numbers, or asks for the time: it gives something else each time."""
    others = [s for s in file.running if s is not statement]
    if _is_a_table_of_functions(statement) and not any(_mentions(file, s, statement.defines) for s in others):
        return False
    found = file.loaded[statement], *file.reaches[statement].effects
    names = {full_name(c.func, file.imports) for effects in found for c in effects.called} - SEEDS
    methods = {m for effects in found for _, m in effects.methods}
    return bool(methods & DRAWS) or any(_begins(n, DRAWING) or n.rpartition(".")[2] in DRAWS or _has_weights(n) for n in names)


def _is_a_table_of_functions(statement: Statement) -> bool:
    """Whether a statement only gives a name to functions, which it does not call: `{"conv": lambda c: nn.Conv2d(c, c, 3)}`."""
    return all(isinstance(p, (ast.Assign, ast.AnnAssign)) and _is_held(p.value) for p in statement.parts)


def _is_held(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Dict):
        return all(map(_is_held, (*node.keys, *node.values)))
    if isinstance(node, (ast.List, ast.Tuple)):
        return all(map(_is_held, node.elts))
    return isinstance(node, (ast.Lambda, ast.Constant, ast.Name, ast.Attribute))  # not None, as in {**others}


def _mentions(file: File, statement: Statement, names: Iterable[str]) -> bool:
    """Whether loading a statement may call what one of these names means."""
    found = [file.loaded[statement], *file.reaches[statement].effects]
    return any(not effects.mentions.isdisjoint(names) for effects in found)


def _has_weights(name: str) -> bool:
    return name.startswith("torch.nn.") and hasattr(getattr(torch.nn, name.rpartition(".")[2], None), "reset_parameters")


def _depends_on_its_place(file: File, statement: Statement) -> bool:
    """Whether a statement, its functions, too, mentions operations that are not PyTorch's own, or the file's own text."""
    names = {_full(n, file.imports) for n in effects_of(statement.parts, inside=True).dotted}
    theirs = {n for n in names if n.startswith("torch.ops.") and n.split(".")[2] not in OPERATIONS_OF_TORCH}
    return bool(theirs) or any(_begins(n, ("torch.library", "torch._library", *LOOKS_AT_ITSELF)) for n in names)


def _full(name: str, imports: Mapping[str, str]) -> str:
    root, dot, rest = name.partition(".")
    return f"{imports.get(root, root)}{dot}{rest}"


def _begins(name: str, prefixes: Iterable[str]) -> bool:
    return any(name == p or name.startswith(p if p.endswith(".") else f"{p}.") or name.startswith(f"{p}_") for p in prefixes)
