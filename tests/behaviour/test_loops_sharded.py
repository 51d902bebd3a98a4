"""FSDP2 over two gloo ranks, around blocks and then around the model, as people have it: the gradients of the model in one
process, and parameters that stay sharded."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from tied import PLAN, TOKENS, Tied, in_two

from remat_codegen.parts import adopt

GLOO = dist.is_available() and dist.is_gloo_available()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not GLOO, reason="needs gloo")]


def tied() -> Tied:
    torch.manual_seed(0)
    return Tied().train()


def batch(rank: int, step: int) -> torch.Tensor:
    return (TOKENS[: 4 - step] + rank) % 20  # a smaller one last


def alone(model: torch.nn.Module, step: int) -> list[torch.Tensor]:
    """The mean over the ranks of the gradients of a model that nothing is sharded of."""
    found = []
    for rank in (0, 1):
        model.zero_grad()
        model(batch(rank, step)).square().mean().backward()
        found.append([p.grad.clone() for p in model.parameters()])
    return [(a + b) / 2 for a, b in zip(*found, strict=True)]


def local_bytes(model: torch.nn.Module) -> int:
    return sum(p.to_local().nbytes for p in model.parameters())


def sharded(rank: int, reshard: bool | None) -> bool:
    from torch.distributed.fsdp import fully_shard

    model, net = adopt(tied(), PLAN), tied()
    original = copy.deepcopy(net)
    how = {} if reshard is None else {"reshard_after_forward": reshard}
    for block in model.h:
        fully_shard(block, **how)
    fully_shard(model, **how)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, original)]
    for step in (0, 1):
        wanted = alone(original, step)
        model.zero_grad()
        model(batch(rank, step)).square().mean().backward()
        found = [p.grad.full_tensor() for p in model.parameters()]
        if not all(map(torch.equal, found, wanted)):
            return False
        for parameter, gradient in zip(original.parameters(), wanted, strict=True):
            parameter.grad = gradient
        for optimizer in optimizers:
            optimizer.step()
    whole = sum(p.nbytes for p in original.parameters())
    return local_bytes(model) <= 0.6 * whole


def as_they_come(rank: int) -> bool:
    return sharded(rank, None)


def gathered_until_backward(rank: int) -> bool:
    return sharded(rank, False)


def gathered_again(rank: int) -> bool:
    return sharded(rank, True)


@pytest.mark.parametrize("run", [as_they_come, gathered_until_backward, gathered_again])
def test_two_processes(run):
    assert in_two(run) == [True, True]
