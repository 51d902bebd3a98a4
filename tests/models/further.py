"""Models that were tried after those of more.py, in the same form."""

from __future__ import annotations

import torch
from builders import Catalogue, language_inputs, narrow, padded_mask, text, tokens

_catalogue = Catalogue(globals())
NAMES = _catalogue.names
REFUSED: dict[str, str] = {}
_add = _catalogue.transformers
_vision = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}


def _labelled():
    return {"input_ids": tokens(2, 16), "attention_mask": padded_mask(), "labels": torch.tensor([0, 1])}


def _pixels(size=32):
    return lambda: {"pixel_values": torch.randn(2, 3, size, size)}


_add("phimoe", "PhimoeForCausalLM", language_inputs, **text, **narrow, num_key_value_heads=2, num_local_experts=4)
_add(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    language_inputs,
    **text,
    **narrow,
    num_key_value_heads=2,
    head_dim=8,
    num_experts=4,
    moe_intermediate_size=16,
    num_experts_per_tok=2,
)
_add(
    "gpt_oss",
    "GptOssForCausalLM",
    language_inputs,
    **text,
    **narrow,
    num_key_value_heads=2,
    head_dim=8,
    num_local_experts=4,
    sliding_window=8,
)
_add("olmoe", "OlmoeForCausalLM", language_inputs, **text, **narrow, num_experts=4, num_experts_per_tok=2)
_add("granite", "GraniteForCausalLM", language_inputs, **text, **narrow, num_key_value_heads=2)
_add("cohere", "CohereForCausalLM", language_inputs, **text, **narrow, num_key_value_heads=2)
_add("stablelm", "StableLmForCausalLM", language_inputs, **text, **narrow, num_key_value_heads=2)
_add("nemotron", "NemotronForCausalLM", language_inputs, **text, **narrow, num_key_value_heads=2)
_add("glm4", "Glm4ForCausalLM", language_inputs, **text, **narrow, num_key_value_heads=2, head_dim=8)
_add(
    "jamba",
    "JambaForCausalLM",
    lambda: {"input_ids": tokens(2, 8), "labels": tokens(2, 8)},
    **text,
    **narrow,
    num_key_value_heads=2,
    num_experts=2,
    use_mamba_kernels=False,
    attn_layer_period=2,
    attn_layer_offset=1,
    expert_layer_period=2,
    expert_layer_offset=1,
    mamba_d_state=4,
)
_add(
    "xglm",
    "XGLMForCausalLM",
    language_inputs,
    **text,
    d_model=32,
    ffn_dim=64,
    num_layers=2,
    attention_heads=4,
    max_position_embeddings=32,
)
_add("ctrl", "CTRLLMHeadModel", language_inputs, **text, n_embd=32, dff=64, n_layer=2, n_head=4, n_positions=32)
_add("codegen", "CodeGenForCausalLM", language_inputs, **text, n_embd=32, n_layer=2, n_head=4, n_positions=32, rotary_dim=4)
_add("gpt_bigcode", "GPTBigCodeForCausalLM", language_inputs, **text, n_embd=32, n_layer=2, n_head=4, n_positions=32)
_add("mpnet", "MPNetForSequenceClassification", _labelled, vocab_size=99, **narrow)
_add("squeezebert", "SqueezeBertForSequenceClassification", _labelled, vocab_size=99, embedding_size=32, **narrow)
_add(
    "modernbert",
    "ModernBertForSequenceClassification",
    _labelled,
    vocab_size=99,
    pad_token_id=0,
    cls_token_id=1,
    sep_token_id=2,
    bos_token_id=1,
    eos_token_id=2,
    **narrow,
)
_add("convbert", "ConvBertForSequenceClassification", _labelled, vocab_size=99, embedding_size=16, **narrow)
_add(
    "fnet",
    "FNetForSequenceClassification",
    lambda: {"input_ids": tokens(2, 16), "labels": torch.tensor([0, 1])},
    vocab_size=99,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    max_position_embeddings=32,
)
_add(
    "bigbird",
    "BigBirdForSequenceClassification",
    lambda: {"input_ids": tokens(2, 64), "attention_mask": torch.ones(2, 64, dtype=torch.long), "labels": torch.tensor([0, 1])},
    vocab_size=99,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
    block_size=4,
    num_random_blocks=1,
)
_add(
    "led",
    "LEDForConditionalGeneration",
    language_inputs,
    **text,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_encoder_position_embeddings=32,
    max_decoder_position_embeddings=32,
    attention_window=4,
    decoder_start_token_id=0,
)
_add(
    "regnet_hf",
    "RegNetForImageClassification",
    _pixels(),
    embedding_size=8,
    hidden_sizes=[8, 16],
    depths=[1, 1],
    groups_width=4,
)
_add(
    "dpt",
    "DPTForSemanticSegmentation",
    lambda: {"pixel_values": torch.randn(2, 3, 32, 32), "labels": tokens(2, 32, 32, high=3)},
    **_vision,
    backbone_out_indices=[0, 1],
    num_labels=3,
    neck_hidden_sizes=[8, 16],
    fusion_hidden_size=16,
    reassemble_factors=[2, 1],
    is_hybrid=False,
    neck_ignore_stages=[],
)
_add(
    "siglip",
    "SiglipModel",
    lambda: {"input_ids": tokens(2, 8), "pixel_values": torch.randn(2, 3, 32, 32), "return_loss": True},
    text_config={
        "vocab_size": 99,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 8,
    },
    vision_config=_vision,
)
_add(
    "recurrent_gemma",  # a Function bounds the derivative of a square root
    "RecurrentGemmaForCausalLM",
    lambda: {**language_inputs(), "use_cache": False},
    **text,
    num_hidden_layers=3,
    hidden_size=32,
    intermediate_size=64,
    num_attention_heads=2,
    lru_width=32,
    attention_window_size=16,
    block_types=("recurrent", "recurrent", "attention"),
)


def _granite_speech():
    """Its attention chooses kernels."""
    import torchvision_cpu  # noqa: F401 - first
    from transformers.models.granite_speech import configuration_granite_speech, modeling_granite_speech

    sizes = {"input_dim": 20, "hidden_dim": 32, "feedforward_mult": 2, "num_heads": 2, "dim_head": 16, "output_dim": 10}
    rest = {"num_layers": 2, "context_size": 8, "max_pos_emb": 16, "dropout": 0.1, "conv_kernel_size": 3}
    config = configuration_granite_speech.GraniteSpeechEncoderConfig(**sizes, **rest, conv_expansion_factor=2)
    return modeling_granite_speech.GraniteSpeechCTCEncoder(config)


_catalogue.add("granite_speech", _granite_speech, lambda: (torch.randn(2, 19, 20),), "transformers")
