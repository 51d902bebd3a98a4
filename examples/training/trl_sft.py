"""Fine-tunes a small Llama on lines of code by trl's SFTTrainer, as it comes: bfloat16, padding, evaluation, saving.

With remat-codegen there are two lines more: take `# remat: ` away from them. What is planned is the model within the model: trl
computes logits and loss by itself, in pieces. The file is made at the first step, and kept.
"""

import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

# remat: from remat_codegen.integrations import at_first_step

SPECIAL = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}


def texts() -> list[str]:
    """The functions and classes of the models in the folder above."""
    files = sorted(Path(__file__).resolve().parent.parent.glob("*.py"))
    found = [part.strip() for file in files for part in file.read_text(encoding="utf-8").split("\n\n")]
    return [text for text in found if 20 < len(text) < 600]


def tokenizer_of(lines: list[str]) -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(lines, trainers.WordLevelTrainer(vocab_size=300, special_tokens=[*SPECIAL.values()]))
    return PreTrainedTokenizerFast(tokenizer_object=words, **SPECIAL)


def main() -> None:
    lines = texts()
    tokenizer = tokenizer_of(lines)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 3, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), attention_dropout=0.1, **sizes))
    # remat: at_first_step(model.base_model, "60%", "llama_remat.py")
    data = Dataset.from_dict({"text": lines}).train_test_split(16, seed=0)
    folder = tempfile.mkdtemp()
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=folder,
            max_length=40,
            max_steps=200,
            learning_rate=1e-3,
            per_device_train_batch_size=4,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=100,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=data["train"],
        eval_dataset=data["test"],
        processing_class=tokenizer,
    )
    trainer.train()
    for entry in trainer.state.log_history:
        names = ("step", "loss", "grad_norm", "mean_token_accuracy", "eval_loss")
        print(", ".join(f"{name} {entry[name]!r}" for name in names if name in entry))
    trainer.save_model(folder)
    again = LlamaForCausalLM.from_pretrained(folder).eval()
    prompt = tokenizer("def forward", return_tensors="pt", add_special_tokens=False)["input_ids"]
    print(tokenizer.decode(again.generate(prompt, max_new_tokens=16, do_sample=False, pad_token_id=tokenizer.pad_token_id)[0]))


if __name__ == "__main__":
    main()
