"""Trains low-rank adapters (PEFT's LoRA) of a small Llama whose own weights stay as they are, with a smaller last batch; saves
the adapters, loads them, merges them.

With remat-codegen there are two lines more: take `# remat: ` away from them. The file is made at the first step, and kept.
"""

import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

# remat: from remat_codegen.integrations import at_first_step

SIZES = {"hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 3, "num_attention_heads": 2}


def rows(count: int) -> torch.Tensor:
    """Numbers that count up from anywhere."""
    return (torch.randint(64, (count, 1), generator=torch.Generator().manual_seed(1)) + torch.arange(24)) % 64


def base() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, attention_dropout=0.1, **SIZES))


def main() -> None:
    config = LoraConfig(r=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"])
    model = get_peft_model(base(), config).train()
    # remat: model = at_first_step(model, "80%", "lora_remat.py")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    data = DataLoader(rows(39), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(2))
    for epoch in range(40):
        for number, ids in enumerate(data):
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"step {epoch * len(data) + number}: loss {loss.item()!r}")
    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)
    again = PeftModel.from_pretrained(base(), folder).merge_and_unload().eval()
    print(again.generate(rows(1)[:, :8], max_new_tokens=8, do_sample=False, pad_token_id=0)[0].tolist())


if __name__ == "__main__":
    main()
