"""transformers' Trainer, PEFT's LoRA and accelerate around models that a plan is made for: what they log is the original's."""

from __future__ import annotations

import copy
import inspect

import builders
import pytest
import torch
import torchvision_cpu  # noqa: F401 - transformers imports torchvision where it is installed
from test_trainer import TARGETS, Texts

import remat_codegen
from remat_codegen.integrations import at_first_step

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore")]
assert builders  # the place where libraries are looked for

QUICK = {"planner": "dtr"}
IDS = torch.randint(256, (4, 64), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def make():
    """A small Llama of transformers, as it comes, always with the same weights."""
    pytest.importorskip("transformers")
    names: dict = {}
    exec(TARGETS, names)

    def make():
        torch.manual_seed(0)
        return names["llama"]().train()

    return make


class Padded(Texts):
    """Texts of other lengths, which the Trainer's collator pads."""

    def __getitem__(self, index):
        length = 20 + 4 * (index % 9)
        row = {name: values[:length] for name, values in super().__getitem__(index).items()}
        mask = torch.ones(length, dtype=torch.int64)
        return {**row, "attention_mask": mask}


def padded(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    fill = {"input_ids": 0, "labels": -100, "attention_mask": 0}
    return {
        n: torch.stack([torch.nn.functional.pad(r[n], (0, longest - len(r[n])), value=v) for r in rows])
        for n, v in fill.items()
    }


def logged(model, folder, callbacks=(), **given):
    from transformers import Trainer, TrainingArguments

    arguments = {
        "output_dir": str(folder),
        "num_train_epochs": 3,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 3,
        "eval_strategy": "epoch",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
    }
    arguments = TrainingArguments(**{**arguments, **given})
    data = {"train_dataset": Padded(14), "eval_dataset": Padded(7), "data_collator": padded}
    trainer = Trainer(model=model, args=arguments, callbacks=[*callbacks], **data)
    trainer.train()
    trainer.save_model(str(folder))
    return [{n: e[n] for n in ("loss", "grad_norm", "eval_loss") if n in e} for e in trainer.state.log_history]


@pytest.mark.parametrize("given", [{}, {"bf16": True, "gradient_accumulation_steps": 2}], ids=["defaults", "bf16"])
def test_a_trainer_whose_callback_makes_the_file(make, tmp_path, given):
    from remat_codegen.integrations.transformers import RematCallback

    wanted = logged(make(), tmp_path / "original", **given)
    model, file = make(), tmp_path / "llama_remat.py"
    found = logged(model, tmp_path / "planned", [RematCallback("70%", file, **QUICK)], **given)
    assert found == wanted and len(found) > 6 and "PLAN = {\n" in file.read_text()
    again = type(model).from_pretrained(tmp_path / "planned")
    assert all(map(torch.equal, again.state_dict().values(), model.state_dict().values()))
    prompt = torch.tensor([[1, 2, 3]])
    written = [m.eval().generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0) for m in (model, again)]
    assert torch.equal(*written)


def test_a_trainer_that_goes_around_the_models_forward_is_told_of(make, tmp_path):
    """As those of trl: what they call is the model within the model."""
    from transformers import Trainer, TrainingArguments

    from remat_codegen.integrations.transformers import RematCallback

    class Around(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model.base_model(inputs["input_ids"]).last_hidden_state.square().mean()

    arguments = {"output_dir": str(tmp_path), "max_steps": 2, "report_to": [], "disable_tqdm": True, "use_cpu": True}
    arguments = TrainingArguments(**arguments, save_strategy="no")
    trainer = Around(model=make(), args=arguments, train_dataset=Texts(8), callbacks=[RematCallback("70%", **QUICK)])
    with pytest.warns(UserWarning, match=r"goes around the forward of its model.*at_first_step\(model.base_model") as found:
        trainer.train()
    assert len([w for w in found if "goes around" in str(w.message)]) == 1


def planned(model, budget="70%"):
    return remat_codegen.rematerialize(model, {"input_ids": IDS, "labels": IDS}, budget=budget, edition=2, **QUICK)


def test_a_planned_model_stays_what_it_is(make, tmp_path):
    original, model = make(), planned(make())
    assert isinstance(model, type(original)) and model.config.to_dict() == original.config.to_dict()
    assert inspect.signature(model.forward) == inspect.signature(original.forward)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    prompt = {"inputs": IDS[:2, :9], "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    written = [m.eval().generate(**prompt, return_dict_in_generate=True) for m in (original, model, again)]
    assert all(torch.equal(written[0].sequences, other.sequences) for other in written[1:])
    assert all(one.past_key_values.get_seq_length() == 16 for one in written)  # by the cache
    assert model.eval()(IDS).past_key_values is not None


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("how", ["before", "after", "around adapters"])
def test_gradient_checkpointing_is_left_out_of_a_planned_model(make, how, reentrant):
    """The plan takes its place: the step is exact, and layers run once."""
    adapters, ran = how == "around adapters", []
    original, model = make(), make()
    told = {"gradient_checkpointing_kwargs": {"use_reentrant": reentrant}}
    if how == "before":
        model.gradient_checkpointing_enable(**told)
        with pytest.warns(UserWarning, match="gradient checkpointing is left out"):
            model = planned(model)
    else:
        model = planned(model)
        original, model = (adapted(m) if adapters else m for m in (original, model))
        with pytest.warns(UserWarning, match="gradient checkpointing is left out"):
            model.gradient_checkpointing_enable(**told)
    assert not any(getattr(m, "gradient_checkpointing", False) for m in model.modules())
    same(gradients(model), gradients(original))
    layers = [m for name, m in model.named_modules() if name.rpartition(".")[2] == "self_attn"]
    for layer in layers:
        layer.register_forward_pre_hook(lambda module, args: ran.append(module))
    gradients(model)
    assert len(ran) == len(layers) == 3


def adapted(model):
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config)


def gradients(model, rows=4, length=64):
    model.zero_grad()
    torch.manual_seed(2)
    loss = model(input_ids=IDS[:rows, :length], labels=IDS[:rows, :length]).loss
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def same(found, wanted):
    assert len(found) == len(wanted) and all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("way", ["planned with its adapters", "adapters around a planned model"])
def test_lora(make, way, tmp_path):
    original, inputs = adapted(make()), {"input_ids": IDS, "labels": IDS}
    if way.startswith("adapters"):
        model = adapted(remat_codegen.rematerialize(make(), inputs, budget="70%", edition=2, **QUICK))
    else:
        model = remat_codegen.rematerialize(adapted(make()), inputs, budget="80%", edition=2, **QUICK)
    assert type(model) is type(original)
    for size in ((4, 64), (3, 64), (4, 33)):
        same(gradients(model, *size), gradients(original, *size))
    model.save_pretrained(tmp_path)
    assert (tmp_path / "adapter_config.json").exists()
    merged = [m.merge_and_unload().eval()(IDS).logits for m in (model, original)]
    assert torch.equal(*merged)


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("way", ["rematerialize", "at_first_step"])
def test_accelerate(make, way, precision):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    def losses(model):
        AcceleratorState._reset_state(True)
        accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        prepared, optimizer = accelerator.prepare(model, optimizer)
        torch.manual_seed(3)
        found = []
        for rows in (4, 4, 3, 4):
            with accelerator.accumulate(prepared):
                loss = prepared(input_ids=IDS[:rows], labels=IDS[:rows]).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            found.append(loss.item())
        assert accelerator.unwrap_model(prepared) is model
        return found

    if way == "rematerialize":
        planned = remat_codegen.rematerialize(make(), {"input_ids": IDS, "labels": IDS}, budget="70%", edition=2, **QUICK)
    else:
        planned = at_first_step(make(), "70%", **QUICK)
    assert losses(planned) == losses(copy.deepcopy(make()))
