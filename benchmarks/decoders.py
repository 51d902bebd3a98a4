"""Language models of transformers in four layers of a width of 256, each for 4 texts of 128 tokens: targets by name. Those of
tests/models have two layers of a width of 32, where a generator's state and what variables hold count as much as activations.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "models"))

import builders

_catalogue = builders.Catalogue(globals())
NAMES = _catalogue.names

_common = {
    **builders.text,
    "vocab_size": 999,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "max_position_embeddings": 256,
}


def _texts() -> dict[str, torch.Tensor]:
    return {"input_ids": builders.tokens(4, 128, high=999), "labels": builders.tokens(4, 128, high=999)}


def _add(name: str, model: str, **config: object) -> None:
    _catalogue.transformers(name, model, _texts, **{**_common, **config})


_add("llama", "LlamaForCausalLM", num_key_value_heads=2)
_add("gemma", "GemmaForCausalLM", num_key_value_heads=1, head_dim=32)
_add("cohere", "CohereForCausalLM", num_key_value_heads=2)
_add("nemotron", "NemotronForCausalLM", num_key_value_heads=2)
_add("phi3", "Phi3ForCausalLM", num_key_value_heads=2)
_add("stablelm", "StableLmForCausalLM", num_key_value_heads=2)
_add("granite", "GraniteForCausalLM", num_key_value_heads=2)
_add("mamba2", "Mamba2ForCausalLM", num_heads=8, head_dim=64, state_size=16, n_groups=1, expand=2, chunk_size=32)
_add("olmoe", "OlmoeForCausalLM", num_key_value_heads=2, num_experts=8, num_experts_per_tok=2)
_add("gpt_oss", "GptOssForCausalLM", num_key_value_heads=2, head_dim=32, num_local_experts=8, num_experts_per_tok=2)
_add(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    num_key_value_heads=2,
    moe_intermediate_size=256,
    shared_expert_intermediate_size=256,
    num_experts=8,
    num_experts_per_tok=2,
)
_add(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    moe_intermediate_size=128,
    n_routed_experts=8,
    num_experts_per_tok=2,
    n_group=2,
    topk_group=1,
    first_k_dense_replace=1,
    kv_lora_rank=64,
    q_lora_rank=64,
    qk_rope_head_dim=32,
    qk_nope_head_dim=32,
    v_head_dim=32,
)
