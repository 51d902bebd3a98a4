"""Files for CUDA devices: any device of the kind, its generator, its memory as its allocator counts it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

MODELS = Path(__file__).with_name("models.py")
EXAMPLE = Path(__file__).parents[2] / "examples" / "gpt2.py"
IDS, VALUES = "int64[8,128]<100", "float32[8,128,64]"


def made(output: Path, name: str, inputs: str | None, **options: str) -> Path:
    """A file for a model."""
    from remat_codegen.ask.request import Request
    from remat_codegen.run import pipeline
    from remat_codegen.show.results import Progress

    spec = name if ":" in name else f"{MODELS}:{name}"
    given = {"budget": "60%", "device": "cuda:0"} | options
    pipeline.generate(Request(spec, output=output, inputs=inputs, **given), Progress(None))
    return output


def graph_of(name: str, inputs: str, device: str):
    from remat_codegen.ask.request import Request
    from remat_codegen.run.traced import trace_target
    from remat_codegen.show.results import Progress

    return trace_target(Request(f"{MODELS}:{name}", inputs=inputs, device=device), Progress(None)).graph


def loaded(name: str, inputs: str | None, device: str):
    from remat_codegen.ask.target import load_target

    return load_target(name if ":" in name else f"{MODELS}:{name}", inputs=inputs, device=device)


def rematerialized(file: Path, model: torch.nn.Module) -> torch.nn.Module:
    from remat_codegen.verify.beside import load_generated

    return load_generated(file).rematerialize(model)


def step(model: torch.nn.Module, target) -> None:
    from remat_codegen.trace.training import example_loss

    example_loss(model(*target.args, **target.kwargs)).backward()


def generators() -> list[torch.Tensor]:
    return [torch.cuda.get_rng_state(index) for index in range(torch.cuda.device_count())]


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> list[bool]:
    return [torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)]


def test_a_file_names_no_device_number(device, second_device, tmp_path):
    texts = [made(tmp_path / f"{i}.py", "Made", IDS, device=d).read_text() for i, d in enumerate((device, second_device))]
    assert all("cuda:" not in text and "default_generators[0]" not in text for text in texts)
    assert "torch.cuda.default_generators[device.index]" in texts[0]  # which recomputes dropout


def test_a_graph_is_the_same_on_each_device(device, second_device):
    assert graph_of("Made", IDS, device).digest() == graph_of("Made", IDS, second_device).digest()


def test_dropout_on_another_device_moves_its_generator_as_the_original_does(device, second_device, tmp_path):
    file = made(tmp_path / "made_remat.py", "Made", IDS, device=device)
    target = loaded("Made", IDS, second_device)
    ends = []
    for model in (target.module, rematerialized(file, target.module)):
        torch.cuda.manual_seed_all(7)
        before = generators()
        for _ in range(2):
            step(model, target)
        ends.append(generators())
        assert same(before, ends[-1]) == [True, False]
    assert all(same(*ends))


@pytest.mark.real_gpu
def test_gradients_are_exact_on_another_device(device, second_device, tmp_path):
    file = made(tmp_path / "made_remat.py", "Made", IDS, device=device)
    found = []
    for generated in (False, True):
        torch.manual_seed(0)
        target = loaded("Made", IDS, second_device)
        model = rematerialized(file, target.module) if generated else target.module
        torch.cuda.manual_seed_all(7)
        step(model, target)
        found.append([p.grad.cpu() for p in model.parameters()])
    assert all(same(*found))


def test_a_model_on_another_kind_of_device_is_refused(device, tmp_path):
    file = made(tmp_path / "made_remat.py", "Made", IDS, device=device)
    target = loaded("Made", IDS, "cpu")
    with pytest.raises(ValueError, match=r"the device of embed\.weight is cpu, but this file was planned for cuda"):
        rematerialized(file, target.module)(*target.args)


def peaks(model: torch.nn.Module, target) -> tuple[int, int]:
    """A step's peak in allocated and in requested bytes, after one that makes what stays: cuBLAS's workspace."""
    step(model, target)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    step(model, target)
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    kinds = "allocated_bytes.all", "requested_bytes.all"
    allocated, requested = (after[f"{kind}.peak"] - before[f"{kind}.current"] for kind in kinds)
    return allocated, requested


@pytest.mark.parametrize("budget", ["85%", "60%", "50%"])
@pytest.mark.parametrize(
    ("name", "inputs"), [("Made", IDS), ("Attention", VALUES), ("Prepared", VALUES), ("Recurrent", VALUES)]
)
def test_a_step_keeps_to_its_budget_in_allocated_bytes(name, inputs, budget, device, tmp_path):
    from remat_codegen.errors import BudgetError
    from remat_codegen.verify.beside import load_generated

    file = tmp_path / "file_remat.py"
    with contextlib.suppress(BudgetError):
        made(file, name, inputs, budget=budget, device=device)
    if not file.exists():
        made(file, name, inputs, budget="100%", device=device)
    target, limit = loaded(name, inputs, device), load_generated(file).BUDGET_BYTES
    allocated, requested = peaks(rematerialized(file, target.module), target)
    assert requested <= allocated <= limit


@pytest.mark.parametrize("budget", ["100%", "60%"])
def test_a_step_keeps_to_its_budget_where_freed_blocks_seldom_fit(budget, device, tmp_path):
    """A piece may get a block that is up to 1 MiB larger, even where nothing runs again."""
    from remat_codegen.verify.beside import load_generated

    inputs = "float32[2048,256]"
    file = made(tmp_path / "varied_remat.py", "Varied", inputs, budget=budget, device=device)
    target = loaded("Varied", inputs, device)
    allocated, _ = peaks(rematerialized(file, target.module), target)
    assert allocated <= load_generated(file).BUDGET_BYTES


def test_gpt2_keeps_to_its_budget_in_allocated_bytes(device, tmp_path):
    from remat_codegen.verify.beside import load_generated

    spec = f"{EXAMPLE}:GPT2"
    file = made(tmp_path / "gpt2_remat.py", spec, None, budget="1GiB", device=device)
    target, generated = loaded(spec, None, device), load_generated(file)
    allocated, _ = peaks(rematerialized(file, target.module), target)
    assert generated.PLANNED_PEAK_BYTES * 0.98 < allocated <= generated.BUDGET_BYTES == 2**30


def test_what_gradients_go_through_stays_on_one_device(device):
    from remat_codegen.errors import UnsupportedError

    with pytest.raises(UnsupportedError, match=r"makes a value on cpu, and others are on cuda:0") as refused:
        graph_of("Apart", VALUES, device)
    assert "models.py:" in refused.value.line() and "\n" not in refused.value.line()


def test_autograd_has_one_thread_for_a_file(device, tmp_path):
    """So that nobody else goes on with a backward program."""
    import threading

    target = loaded("Made", IDS, device)
    file = made(tmp_path / "made_remat.py", "Made", IDS, device=device)
    model = rematerialized(file, target.module)
    generated = sys.modules[type(model).forward.__module__]
    threads, usual = [], generated.Step.go_on

    def go_on(self):
        threads.append(threading.get_ident())
        usual(self)

    generated.Step.go_on = go_on
    step(model, target)
    assert len(set(threads)) == 1


def test_what_decides_is_kept_where_kernels_are_not_deterministic(device):
    nodes = {n.name: n.recomputable for n in graph_of("Router", VALUES, device).forward_nodes}
    assert not nodes["argmax"] and nodes["softmax"] and nodes["scatter_add"]


def test_recurrent_networks_run_once(device):
    assert not next(n for n in graph_of("Recurrent", VALUES, device).forward_nodes if "lstm" in n.name).recomputable


def test_another_generation_is_named(device, tmp_path):
    """PyTorch chooses attention's kernel by the GPU's generation: the graph is another one there."""
    if "Null" not in torch.cuda.get_device_name(device):
        pytest.skip("needs a GPU whose generation can be set")
    made(tmp_path / "attention_remat.py", f"{MODELS}:Attention", VALUES, device="cuda", autocast="bfloat16", budget="100%")
    (tmp_path / "models.py").write_text(MODELS.read_text())
    command = [sys.executable, "-m", "remat_codegen", "check", "attention_remat.py"]
    here = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert here.returncode == 0, here.stdout + here.stderr
    other = os.environ | {"NULLGPU_CAPABILITY": "60"}
    there = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=other)
    assert there.returncode == 1
    planned = "{}.{}".format(*torch.cuda.get_device_capability(device))
    said = f"planned for a GPU of compute capability {planned}, and this one has 6.0"
    assert said in " ".join(there.stdout.split())


@pytest.mark.real_gpu
def test_weights_of_recurrent_networks_are_not_counted_twice(device, tmp_path):
    """cuDNN copies weights that do not lie in one piece; a module's do."""
    from remat_codegen.verify.beside import load_generated

    file = made(tmp_path / "recurrent_remat.py", "Recurrent", VALUES, budget="100%", device=device)
    target = loaded("Recurrent", VALUES, device)
    allocated, _ = peaks(rematerialized(file, target.module), target)
    assert allocated > 0.95 * load_generated(file).PLANNED_PEAK_BYTES


@pytest.mark.parametrize("room", [0.3, 0.75])
def test_out_of_memory_tells_who_has_it(device, tmp_path, room):
    """In the forward pass, or later; what the allocator lets a process have is less than the step takes."""
    from remat_codegen.ask.request import Request
    from remat_codegen.ask.target import load_target
    from remat_codegen.run import marked
    from remat_codegen.show.results import Progress

    file, init = tmp_path / "gpt2_remat.py", "layers=6, width=256, heads=4, vocabulary=101, context=256"
    given = {"init": init, "inputs": "int64[8,256]<101", "device": device}
    marked.generate(Request(f"{EXAMPLE}:GPT2", "75%", file, edition=2, **given), Progress(None))
    target = load_target(f"{EXAMPLE}:GPT2", **given)
    model = rematerialized(file, target.module)
    torch.cuda.reset_peak_memory_stats(device)  # others may have had more
    step(model, target)
    base, peak = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info(device)[1]
    torch.cuda.set_per_process_memory_fraction((base + room * (peak - base)) / total, device)
    try:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            step(model, target)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    notes = getattr(caught.value, "__notes__", [])
    assert len(notes) == 1 or room > 0.5  # autograd's own kernels run out of it where no part runs
    assert all("Memory ran out" in told and "--budget " in told for told in notes)


def test_the_largest_plan_that_there_is_room_for(device, tmp_path, monkeypatch):
    """Less gradients that are not there yet, and as much again twice; what PyTorch holds unused counts as free."""
    from remat_codegen.ask.request import Request
    from remat_codegen.ask.target import load_target
    from remat_codegen.run import marked
    from remat_codegen.show.results import Progress
    from remat_codegen.verify.beside import load_generated

    file, init = tmp_path / "gpt2_remat.py", "layers=6, width=256, heads=4, vocabulary=101, context=256"
    given = {"init": init, "inputs": "int64[8,256]<101", "device": device}
    marked.generate(Request(f"{EXAMPLE}:GPT2", "75%,90%", file, **given), Progress(None))
    generated = load_generated(file)
    target = load_target(f"{EXAMPLE}:GPT2", **given)
    own = sum(p.nbytes for p in target.module.parameters())
    unused = 2**20
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda d: 3 * unused)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda d: 2 * unused)
    least, most = generated.PLANS
    for room, chosen in [(most, most), (most - 2**21, least), (0, least)]:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda d, room=room: (room + 3 * own - unused, 2**40))
        assert generated._chosen(load_target(f"{EXAMPLE}:GPT2", **given).module, generated.PLANS) == generated.PLANS[chosen]
