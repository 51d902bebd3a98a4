"""DistributedDataParallel over two gloo ranks: the same gradients as the original's on both, with tied weights."""

from __future__ import annotations

import contextlib
import copy
import os
import socket
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import zoo
from emitted import droppable, emit, load, rebuilding, zoo_model
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")


def grads(model):
    return {n.removeprefix("module."): p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def steps(model, idx, **options):
    """Two accumulated steps without synchronisation, then one with it; counts the hooks of the last."""
    parallel = DistributedDataParallel(model, **options)
    fired: Counter[str] = Counter()
    with parallel.no_sync():
        torch.manual_seed(dist.get_rank())
        parallel(idx).square().mean().backward()
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: fired.update([name]))
    torch.manual_seed(dist.get_rank() + 10)
    parallel(idx.flip(0)).square().mean().backward()
    return grads(parallel), fired


def rank(number: int, port: int, folder: str, original, **options) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=number, world_size=2)
    with contextlib.ExitStack() as at_the_end:
        at_the_end.callback(dist.destroy_process_group)
        idx = torch.randint(0, 500, (2, 64), generator=torch.Generator().manual_seed(number))
        module = load(Path(folder, "source.txt").read_text(), Path(folder), f"generated_on_{number}")
        expected, fired = steps(copy.deepcopy(original), idx, **options)
        found, fired_here = steps(module.rematerialize(copy.deepcopy(original)), idx, **options)
        assert fired == fired_here and set(fired.values()) == {1}
        assert expected.keys() == found.keys()
        for name, gradient in expected.items():
            assert gradient.equal(found[name]), name
        dist.barrier()
        Path(folder, f"exact_on_{number}").touch()


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}], ids=str)
def test_two_ranks(options, tmp_path):
    module, args, kwargs, model = zoo_model("gpt2")
    schedule = rebuilding(model.graph, set(droppable(model.graph)))
    text = emit(module, args, kwargs, model, schedule, Path(zoo.__file__).read_text())
    (tmp_path / "source.txt").write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    workers = [context.Process(target=rank, args=(number, port, str(tmp_path), module), kwargs=options) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    # not exit codes: now and then gloo's own threads abort a process that is ending
    assert all((tmp_path / f"exact_on_{number}").exists() for number in range(2)), [worker.exitcode for worker in workers]
