"""Models that are tried less often than those of catalogue.py, in the same form."""

from __future__ import annotations

import torch
from builders import Catalogue, language_inputs, narrow, padded_mask, text, tokens

_catalogue = Catalogue(globals())
NAMES = _catalogue.names
REFUSED = {  # by name: what is said of a file of functions
    "deberta_v2": "depends on values, which no file of functions can follow",
    "wav2vec2_masked": "depend on values, which no file of functions can follow",
}


# ------------------------------------------------------------------------------------------- torchvision

_catalogue.torchvision("mnasnet0_5")
_catalogue.torchvision("squeezenet1_1")
_catalogue.torchvision("resnext50_32x4d")
_catalogue.torchvision("alexnet")
_catalogue.torchvision("efficientnet_v2_s")
_catalogue.torchvision("maxvit_t", 224)
_catalogue.torchvision("swin_v2_t")
_catalogue.torchvision("segmentation.fcn_resnet50", weights_backbone=None, aux_loss=True)
_catalogue.torchvision("segmentation.lraspp_mobilenet_v3_large", weights_backbone=None)
_catalogue.torchvision("video.r3d_18", inputs=lambda: (torch.randn(1, 3, 4, 32, 32),))
_catalogue.torchvision("video.mvit_v2_s", inputs=lambda: (torch.randn(1, 3, 16, 224, 224),))
_catalogue.torchvision("video.swin3d_t", inputs=lambda: (torch.randn(1, 3, 4, 64, 64),))


# -------------------------------------------------------------------------------------------------- timm

_catalogue.timm("convmixer", 64, "convmixer_768_32")
_catalogue.timm("coat", 64, "coat_tiny", img_size=64)
_catalogue.timm("coat_lite", 64, "coat_lite_tiny", img_size=64)
_catalogue.timm("xcit", 64, "xcit_nano_12_p16_224", img_size=64)
_catalogue.timm("levit", 224, "levit_128s")
_catalogue.timm("edgenext", 64, "edgenext_xx_small")
_catalogue.timm("vit_registers", 56, "vit_small_patch14_reg4_dinov2", img_size=56, depth=3, drop_path_rate=0.2)
_catalogue.timm("eva02", 56, "eva02_tiny_patch14_224", img_size=56, depth=3, drop_path_rate=0.1)
_catalogue.timm("beit", 64, "beit_base_patch16_224", img_size=64, depth=2, embed_dim=64, num_heads=4)
_catalogue.timm("ghostnet", 64, "ghostnet_050")
_catalogue.timm("res2net", 64, "res2net50_14w_8s")
_catalogue.timm("volo", 64, "volo_d1_224", img_size=64)
_catalogue.timm("mobilevit", 64, "mobilevit_xxs")
_catalogue.timm("poolformer", 64, "poolformer_s12", drop_path_rate=0.1)
_catalogue.timm("fastvit", 64, "fastvit_t8")
_catalogue.timm("repvgg", 64, "repvgg_a0")
_catalogue.timm("hrnet", 64, "hrnet_w18_small")
_catalogue.timm("gmlp", 224, "gmlp_s16_224")
_catalogue.timm("cspresnet", 64, "cspresnet50")
_catalogue.timm("regnety", 64, "regnety_002")
_catalogue.timm("twins", 64, "twins_pcpvt_small", img_size=64)
_catalogue.timm("swinv2_cr", 64, "swinv2_cr_tiny_224", img_size=64, window_size=2)
_catalogue.timm("resnest", 64, "resnest14d")
_catalogue.timm("crossvit", 240, "crossvit_tiny_240")
_catalogue.timm("davit", 64, "davit_tiny")
_catalogue.timm("halonet", 256, "halonet26t")
_catalogue.timm("lambda_resnet", 64, "lambda_resnet26t", img_size=64)
_catalogue.timm("efficientformer", 224, "efficientformer_l1")


# ------------------------------------------------------------------------------------------ transformers


def _classified(**more):
    return {"input_ids": tokens(2, 16), "attention_mask": padded_mask(), **more}


def _labelled():
    return _classified(labels=torch.tensor([0, 1]))


def _masked_language_inputs():
    """For a model whose library makes a mask where none is given, or leaves out one of ones, but not while it is traced."""
    return language_inputs() | {"attention_mask": padded_mask()}


def _pixels(size=32):
    return lambda: {"pixel_values": torch.randn(2, 3, size, size)}


_seq2seq = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 32,
    "decoder_start_token_id": 0,
}
_add = _catalogue.transformers
_add(
    "distilbert",
    "DistilBertForSequenceClassification",
    _labelled,
    vocab_size=99,
    dim=32,
    n_layers=2,
    n_heads=4,
    hidden_dim=64,
    max_position_embeddings=32,
)
_add("roberta", "RobertaForSequenceClassification", _labelled, vocab_size=99, pad_token_id=1, **narrow)
_add(
    "albert",
    "AlbertForSequenceClassification",
    _labelled,
    vocab_size=99,
    embedding_size=16,
    **narrow,
)
_add("electra", "ElectraForSequenceClassification", _labelled, vocab_size=99, embedding_size=16, **narrow)
_add(
    "deberta_v2",
    "DebertaV2ForSequenceClassification",
    _labelled,
    vocab_size=99,
    relative_attention=True,
    pos_att_type=["p2c", "c2p"],
    position_buckets=8,
    **narrow,
)
_add(
    "deberta_v2_encoder",
    "DebertaV2Model",
    _classified,
    vocab_size=99,
    relative_attention=True,
    pos_att_type=["p2c", "c2p"],
    position_buckets=8,
    **narrow,
)
_add("bert_masked", "BertForMaskedLM", lambda: _classified(labels=tokens(2, 16)), vocab_size=99, **narrow)
_add(
    "opt",
    "OPTForCausalLM",
    language_inputs,
    **text,
    hidden_size=32,
    ffn_dim=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=32,
    word_embed_proj_dim=32,
)
_add("gpt_neox", "GPTNeoXForCausalLM", language_inputs, **text, **narrow)
_add(
    "gpt_neo",
    "GPTNeoForCausalLM",
    language_inputs,
    **text,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    attention_types=[[["global", "local"], 1]],
    max_position_embeddings=32,
    window_size=4,
)
_add("gptj", "GPTJForCausalLM", language_inputs, **text, n_embd=32, n_layer=2, n_head=4, n_positions=32, rotary_dim=4)
_add("gemma", "GemmaForCausalLM", language_inputs, **text, **narrow, num_key_value_heads=1, head_dim=8)
_add("gemma2", "Gemma2ForCausalLM", language_inputs, **text, **narrow, num_key_value_heads=1, head_dim=8, sliding_window=4)
_add("gemma3", "Gemma3ForCausalLM", language_inputs, **text, **narrow, num_key_value_heads=1, head_dim=8, sliding_window=4)
_add("mistral", "MistralForCausalLM", language_inputs, **text, **narrow, num_key_value_heads=2, sliding_window=4)
_add("phi", "PhiForCausalLM", language_inputs, **text, **narrow)
_add("phi3", "Phi3ForCausalLM", language_inputs, **text, **narrow)
_add("falcon", "FalconForCausalLM", language_inputs, **text, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
_add(
    "falcon_alibi",
    "FalconForCausalLM",
    language_inputs,
    **text,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    alibi=True,
)
_add("bloom", "BloomForCausalLM", language_inputs, **text, hidden_size=32, n_layer=2, n_head=4, hidden_dropout=0.1)
_add("qwen2", "Qwen2ForCausalLM", language_inputs, **text, **narrow, num_key_value_heads=2)
_add("olmo2", "Olmo2ForCausalLM", language_inputs, **text, **narrow)
_add("llama_grouped", "LlamaForCausalLM", language_inputs, **text, **narrow, num_key_value_heads=2)
_catalogue.add("llama_bfloat16", lambda: globals()["llama_grouped"]().bfloat16(), _masked_language_inputs, "transformers")
_add(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    language_inputs,
    **text,
    **narrow,
    num_key_value_heads=2,
    num_experts=4,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=16,
    num_experts_per_tok=2,
)
_add(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    language_inputs,
    **text,
    **narrow,
    num_key_value_heads=4,
    n_routed_experts=4,
    n_group=2,
    topk_group=1,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    q_lora_rank=8,
    kv_lora_rank=8,
    qk_rope_head_dim=4,
    qk_nope_head_dim=4,
    v_head_dim=8,
    first_k_dense_replace=1,
)
_add(
    "mamba2",
    "Mamba2ForCausalLM",
    lambda: {"input_ids": tokens(2, 8), "labels": tokens(2, 8)},
    vocab_size=99,
    hidden_size=16,
    num_hidden_layers=2,
    state_size=4,
    num_heads=4,
    head_dim=8,
    n_groups=1,
    chunk_size=4,
    use_cache=False,
)
_add(
    "rwkv",
    "RwkvForCausalLM",
    lambda: {"input_ids": tokens(2, 8), "labels": tokens(2, 8)},
    vocab_size=99,
    hidden_size=16,
    num_hidden_layers=2,
    attention_hidden_size=16,
    use_cache=False,
)
_add("bart", "BartForConditionalGeneration", language_inputs, **text, **_seq2seq)
_add("marian", "MarianMTModel", language_inputs, **text, **_seq2seq)
_add("pegasus", "PegasusForConditionalGeneration", language_inputs, **text, **_seq2seq)
_add(
    "longt5",
    "LongT5ForConditionalGeneration",
    _masked_language_inputs,
    **text,
    d_model=32,
    d_kv=8,
    d_ff=64,
    num_layers=2,
    num_heads=4,
    decoder_start_token_id=0,
    local_radius=4,
)
_add(
    "vit_mae",
    "ViTMAEForPreTraining",
    _pixels(),
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    image_size=32,
    patch_size=8,
    decoder_hidden_size=16,
    decoder_num_hidden_layers=1,
    decoder_num_attention_heads=2,
    decoder_intermediate_size=32,
)
_add(
    "hf_swin",
    "SwinForImageClassification",
    _pixels(64),
    image_size=64,
    embed_dim=16,
    depths=[1, 1],
    num_heads=[2, 2],
    window_size=4,
)
_add("hf_convnext", "ConvNextForImageClassification", _pixels(64), hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1])
_add(
    "dinov2",
    "Dinov2ForImageClassification",
    _pixels(28),
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    image_size=28,
    patch_size=14,
    drop_path_rate=0.1,
)
_add(
    "beit_hf",
    "BeitForImageClassification",
    _pixels(),
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    image_size=32,
    patch_size=8,
)
_add(
    "resnet_hf",
    "ResNetForImageClassification",
    _pixels(),
    embedding_size=8,
    hidden_sizes=[8, 16],
    depths=[1, 1],
    layer_type="basic",
)
_add(
    "clip",
    "CLIPModel",
    lambda: {"input_ids": tokens(2, 8), "pixel_values": torch.randn(2, 3, 32, 32), "return_loss": True},
    text_config={
        "vocab_size": 99,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 16,
        "eos_token_id": 2,
    },
    vision_config={
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
    },
    projection_dim=16,
)
_audio = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 32,
    "conv_dim": (16, 16),
    "conv_kernel": (8, 4),
    "conv_stride": (4, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
_add(
    "wav2vec2",
    "Wav2Vec2ForCTC",
    lambda: {"input_values": torch.randn(2, 400)},
    **_audio,
    apply_spec_augment=False,
    layerdrop=0.0,
)
_add(
    "wav2vec2_masked",
    "Wav2Vec2ForCTC",
    lambda: {"input_values": torch.randn(2, 400), "labels": tokens(2, 5, high=31)},
    **_audio,
)
_add("hubert", "HubertForCTC", lambda: {"input_values": torch.randn(2, 400)}, **_audio, apply_spec_augment=False, layerdrop=0.0)
_add(
    "t5_encoder",
    "T5EncoderModel",
    lambda: {"input_ids": tokens(2, 16)},
    **text,
    d_model=32,
    d_kv=8,
    d_ff=64,
    num_layers=2,
    num_heads=4,
)
_add(
    "mobilevit_segmentation",
    "MobileViTForSemanticSegmentation",
    lambda: {"pixel_values": torch.randn(2, 3, 64, 64)},
    image_size=64,
    hidden_sizes=[8, 16, 24],
    neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32],
)
_add("xlnet", "XLNetForSequenceClassification", _labelled, vocab_size=99, d_model=32, n_layer=2, n_head=4, d_inner=64)
_add(
    "funnel",
    "FunnelForSequenceClassification",
    _labelled,
    vocab_size=99,
    block_sizes=[1, 1],
    d_model=32,
    n_head=4,
    d_head=8,
    d_inner=64,
)
_add(
    "perceiver",
    "PerceiverForSequenceClassification",
    lambda: {"inputs": tokens(2, 16), "labels": torch.tensor([0, 1])},
    vocab_size=99,
    num_latents=8,
    d_latents=32,
    d_model=16,
    num_blocks=1,
    num_self_attends_per_block=2,
    num_self_attention_heads=2,
    num_cross_attention_heads=2,
    max_position_embeddings=16,
)
_add(
    "time_series",
    "PatchTSTForPrediction",
    lambda: {"past_values": torch.randn(2, 32, 2), "future_values": torch.randn(2, 4, 2)},
    context_length=32,
    prediction_length=4,
    num_input_channels=2,
    patch_length=8,
    patch_stride=8,
    d_model=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    ffn_dim=32,
)
