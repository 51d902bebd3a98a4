"""Trains a small GPT-2 on the text of the files beside this one, as nanoGPT does: autocast, accumulated gradients, clipping,
evaluation with another batch size, samples, checkpoints to resume from; on one device, or on several by torchrun.

With remat-codegen one line changes, the import of the model:

    remat-codegen examples/gpt2.py:GPT2 --init "layers=3, width=64, heads=4, vocabulary=128, context=32" \
        --inputs "int64[6,32]<128" --autocast bfloat16 --budget 50% -o examples/gpt2_remat.py

    python examples/train_gpt2.py --steps 200
    torchrun --nproc-per-node 2 examples/train_gpt2.py --steps 200
"""

import argparse
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpt2 import GPT2  # with remat-codegen: from gpt2_remat import GPT2
from torch.nn.parallel import DistributedDataParallel

CONTEXT, BATCH, EVAL_BATCH, ACCUMULATE = 32, 6, 10, 2
RATE, WARMUP, CLIP = 1e-3, 20, 1.0


def characters() -> torch.Tensor:
    files = [Path(__file__).with_name(f"{name}.py") for name in ("gpt2", "llama", "resnet", "unet", "vit")]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    return torch.tensor([min(ord(c), 127) for c in text])


def batches(data: torch.Tensor, size: int, seed: int, rank: int, ranks: int):
    """Windows of the text in another order in every epoch, the last batch of which is a smaller one."""
    starts = torch.arange(0, len(data) - CONTEXT - 1, CONTEXT)
    for epoch in range(10**9):
        order = torch.randperm(len(starts), generator=torch.Generator().manual_seed(seed + epoch))[rank::ranks]
        for chosen in starts[order].split(size):
            windows = torch.stack([data[s : s + CONTEXT + 1] for s in chosen])
            yield windows[:, :-1], windows[:, 1:]


def loss_of(model, idx, targets):
    with torch.autocast(idx.device.type, torch.bfloat16):
        logits = model(idx)
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluated(model, data, device) -> float:
    model.eval()
    found = batches(data, EVAL_BATCH, 1, 0, 1)
    losses = [loss_of(model, *(t.to(device) for t in next(found))).item() for _ in range(3)]
    model.train()
    return sum(losses) / len(losses)


@torch.no_grad()
def sampled(model, device, count: int = 60) -> str:
    """Text that goes on from `def `, character by character."""
    model.eval()
    idx = torch.tensor([[ord(c) for c in "def "]], device=device)
    for _ in range(count):
        probabilities = model(idx[:, -CONTEXT:])[:, -1].softmax(-1)
        idx = torch.cat([idx, torch.multinomial(probabilities, 1)], 1)
    model.train()
    return "".join(map(chr, idx[0].tolist()))


def rate(step: int, steps: int) -> float:
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    return RATE * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP)))


def train(steps: int, until: int, checkpoint: Path | None, resume: bool) -> None:
    several = "RANK" in os.environ  # by torchrun
    if several:
        dist.init_process_group()
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if several else (0, 1)
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(1337)
    model = GPT2(layers=3, width=64, heads=4, vocabulary=128, context=CONTEXT).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    data, first = characters(), 0
    training = batches(data[: len(data) * 9 // 10], BATCH, 0, rank, ranks)
    torch.manual_seed(rank)
    if resume and checkpoint is not None:
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"])
        first = saved["step"]
        for _ in range(first * ACCUMULATE):
            next(training)
    parallel = DistributedDataParallel(model) if several else model
    for step in range(first, min(steps, until)):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        total = 0.0
        for micro in range(ACCUMULATE):
            idx, targets = next(training)
            if several:
                parallel.require_backward_grad_sync = micro == ACCUMULATE - 1
            loss = loss_of(parallel, idx.to(device), targets.to(device)) / ACCUMULATE
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0:
            print(f"step {step}: loss {total!r}, norm {norm.item()!r}")
            if step % 25 == 24:
                print(f"step {step}: evaluation {evaluated(model, data[len(data) * 9 // 10 :], device)!r}")
    if rank == 0:
        if checkpoint is not None and not resume:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": min(steps, until)}
            torch.save({**state, "random": torch.get_rng_state()}, checkpoint)
        print(repr(sampled(model, device)))
    if several:
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Trains a small GPT-2 on the text of the examples.")
    parser.add_argument("--steps", type=int, default=200, help="of the whole training, by which the rate falls")
    parser.add_argument("--until", type=int, default=10**9, help="the step before which to stop")
    parser.add_argument("--checkpoint", type=Path, help="where to save at the end, or what to resume from")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    given = parser.parse_args()
    train(given.steps, given.until, given.checkpoint, given.resume)
