"""Trains a small GPT-2 on text by transformers' Trainer, with its default arguments: batches with padding, a smaller last one,
evaluation with another batch size, saving, loading, and generation with the cache.

With remat-codegen there are two lines more: take `# remat: ` away from them. The file is made at the first step, and kept.
"""

import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

# remat: from remat_codegen.integrations.transformers import RematCallback

PAD, CONTEXT = 0, 48


def lines() -> list[torch.Tensor]:
    """Lines of this file's neighbours, by characters."""
    files = sorted(Path(__file__).resolve().parent.parent.glob("*.py"))
    found = [line.strip() for file in files for line in file.read_text(encoding="utf-8").split("\n")]
    return [torch.tensor([min(ord(c), 127) for c in line[:CONTEXT]]) for line in found if len(line) > 12]


def padded(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """A batch: each row is as long as the longest."""
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": ids.masked_fill(ids == PAD, -100)}


def main() -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=128, n_positions=64, n_embd=32, n_layer=3, n_head=2, bos_token_id=None, eos_token_id=None)
    model, rows, folder = GPT2LMHeadModel(config), lines(), tempfile.mkdtemp()  # with dropout
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=folder,
            learning_rate=2e-3,
            num_train_epochs=8,  # of 26 steps
            per_device_eval_batch_size=5,
            eval_strategy="epoch",
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        data_collator=padded,
        train_dataset=rows[:203],
        eval_dataset=rows[203:230],
        # remat: callbacks=[RematCallback("60%", "gpt2_remat.py")],
    )
    trainer.train()
    for entry in trainer.state.log_history:
        print(", ".join(f"{name} {entry[name]!r}" for name in ("step", "loss", "grad_norm", "eval_loss") if name in entry))
    trainer.save_model(folder)
    again = GPT2LMHeadModel.from_pretrained(folder).eval()
    prompt = torch.tensor([[ord(c) for c in "self."]])
    written = [one.eval().generate(prompt, max_new_tokens=20, do_sample=False, pad_token_id=PAD) for one in (model, again)]
    print(*("".join(map(chr, ids[0].tolist())) for ids in written), sep="\n")


if __name__ == "__main__":
    main()
