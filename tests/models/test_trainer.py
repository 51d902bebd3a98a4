"""Files of the second edition in transformers' Trainer, as its users have it: one line more, and all is as it was."""

from __future__ import annotations

import copy
import importlib
import sys
from pathlib import Path

import builders
import pytest
import torch
import torchvision_cpu  # noqa: F401 - transformers imports torchvision where it is installed

from remat_codegen.ask.request import Request
from remat_codegen.run import marked
from remat_codegen.show.results import Progress
from remat_codegen.verify.beside import load_generated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
assert builders  # the place where libraries are looked for

TARGETS = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

SMALL = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3, "num_attention_heads": 4}


def gpt2():  # as it comes: with its cache, and with dropout
    return GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=3, n_head=4))


def llama():
    return LlamaForCausalLM(LlamaConfig(vocab_size=256, num_key_value_heads=2, attention_dropout=0.1, **SMALL))


def inputs():
    ids = torch.randint(256, (4, 64), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids}
"""


class Texts(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        self.ids = torch.randint(256, (count, 64), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


@pytest.fixture
def targets(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    (tmp_path / "remat_trainer_targets.py").write_text(TARGETS)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("remat_trainer_targets")
    del sys.modules["remat_trainer_targets"]


def trained(model: torch.nn.Module, folder: Path) -> list[dict[str, float]]:
    """What the Trainer logs: 50 epochs of 4 steps, the last of them smaller, and evaluations; it saves the model."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=50,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=3,
        eval_strategy="steps",
        eval_steps=40,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Texts(14), eval_dataset=Texts(7))
    trainer.train()
    trainer.save_model(str(folder))
    told = ("loss", "grad_norm", "eval_loss")
    return [{name: entry[name] for name in told if name in entry} for entry in trainer.state.log_history]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_every_loss_is_the_originals(targets, name, tmp_path):
    output = tmp_path / f"{name}_remat.py"
    request = Request(f"remat_trainer_targets:{name}", "60%", output, inputs="remat_trainer_targets:inputs", edition=2)
    marked.generate(request, Progress(None))
    torch.manual_seed(0)
    original = getattr(targets, name)()
    model = load_generated(output).rematerialize(copy.deepcopy(original))
    kind, start = type(original), copy.deepcopy(original.lm_head.weight)
    wanted, found = trained(original, tmp_path / "original"), trained(model, tmp_path / "file")
    assert found == wanted and len(found) > 200 and found[0]["loss"] > found[-2].get("loss", 0.0)
    assert type(model) is kind and not torch.equal(start, model.lm_head.weight)
    again = kind.from_pretrained(tmp_path / "file")
    assert all(map(torch.equal, again.state_dict().values(), original.state_dict().values()))
    prompt = torch.tensor([[1, 2, 3]])
    written = [m.eval().generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0) for m in (original, model, again)]
    assert all(torch.equal(written[0], other) for other in written[1:])  # with the cache
