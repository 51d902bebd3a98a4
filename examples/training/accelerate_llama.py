"""Trains a small Llama of transformers by accelerate: casts to bfloat16, accumulated gradients, clipping, a smaller last batch,
evaluation with another batch size, and a checkpoint to go on from.

With remat-codegen there are two lines more: take `# remat: ` away from them. The file is made at the first step, and kept.
"""

import tempfile

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

# remat: from remat_codegen.integrations import at_first_step

SIZES = {"hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 3, "num_attention_heads": 2}


def rows(count: int, seed: int) -> torch.Tensor:
    """Numbers that count up from anywhere, each by its own step."""
    generator = torch.Generator().manual_seed(seed)
    start, by = (torch.randint(64, (count, 1), generator=generator) for _ in range(2))
    return (start + by * torch.arange(24)) % 64


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, attention_dropout=0.1, **SIZES))
    # remat: model = at_first_step(model, "60%", "llama_remat.py")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    training = DataLoader(rows(39, 1), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(2))
    prepared, optimizer, training = accelerator.prepare(model, optimizer, training)
    folder, step = tempfile.mkdtemp(), 0
    for epoch in range(40):
        prepared.train()
        for ids in training:
            with accelerator.accumulate(prepared):
                loss = prepared(input_ids=ids, labels=ids).loss
                accelerator.backward(loss)
                norm = accelerator.clip_grad_norm_(prepared.parameters(), 1.0) if accelerator.sync_gradients else None
                optimizer.step()
                optimizer.zero_grad()
            print(f"step {step}: loss {loss.item()!r}" + ("" if norm is None else f", norm {norm.item()!r}"))
            step += 1
        if epoch % 10 == 9:
            prepared.eval()
            with torch.no_grad():
                print(f"evaluation {prepared(input_ids=rows(13, 3), labels=rows(13, 3)).loss.item()!r}")
        if epoch == 19:  # and go on from there
            accelerator.save_state(folder)
            accelerator.load_state(folder)
    accelerator.unwrap_model(prepared).save_pretrained(folder)
    again = LlamaForCausalLM.from_pretrained(folder).eval()
    print(again.generate(rows(1, 5)[:, :8], max_new_tokens=8, do_sample=False, pad_token_id=0)[0].tolist())


if __name__ == "__main__":
    main()
