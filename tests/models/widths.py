"""One model of each family at a real width, few layers deep; as in catalogue.py. All of them drop."""

from __future__ import annotations

import torch
from builders import Catalogue, require, text, tokens  # noqa: F401 - for the tests
from torch import nn

_catalogue = Catalogue(globals())
NAMES = _catalogue.names


def _language(batch: int, length: int, high: int = 5000):
    return lambda: {"input_ids": tokens(batch, length, high=high), "labels": tokens(batch, length, high=high)}


_language_model = {**text, "vocab_size": 5000}

_catalogue.torchvision("resnet50", 224)
_catalogue.torchvision("densenet121", 224)
_catalogue.torchvision("efficientnet_b0", 224)
_catalogue.timm("vit_base", 224, "vit_base_patch16_224", depth=2, proj_drop_rate=0.1, attn_drop_rate=0.1, drop_path_rate=0.1)
_catalogue.timm("swin", 224, "swin_tiny_patch4_window7_224", drop_path_rate=0.2)
_catalogue.timm("mixer", 224, "mixer_s32_224", drop_path_rate=0.2)
_catalogue.transformers("gpt2", "GPT2LMHeadModel", _language(2, 128), **_language_model, n_layer=2)
_catalogue.transformers(
    "bert", "BertForMaskedLM", _language(2, 128), vocab_size=5000, num_hidden_layers=2, max_position_embeddings=128
)
_catalogue.transformers(
    "llama",
    "LlamaForCausalLM",
    _language(1, 128),
    **_language_model,
    hidden_size=1024,
    intermediate_size=2752,
    num_hidden_layers=2,
    num_attention_heads=16,
    num_key_value_heads=4,
    attention_dropout=0.1,
)
_catalogue.transformers(
    "t5",
    "T5ForConditionalGeneration",
    _language(1, 96),
    **_language_model,
    d_model=768,
    d_kv=64,
    d_ff=3072,
    num_layers=2,
    num_heads=12,
    decoder_start_token_id=0,
)
_catalogue.transformers(
    "whisper",
    "WhisperForConditionalGeneration",
    lambda: {"input_features": torch.randn(1, 80, 256), "labels": tokens(1, 32, high=5000)},
    **_language_model,
    d_model=512,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=8,
    decoder_attention_heads=8,
    encoder_ffn_dim=2048,
    decoder_ffn_dim=2048,
    max_source_positions=128,
    max_target_positions=64,
    decoder_start_token_id=1,
    dropout=0.1,
    attention_dropout=0.1,
)


def encoder():
    """nn.TransformerEncoder at the width of BERT-base."""
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True), 2, enable_nested_tensor=False)


class Tagger(nn.Module):
    """An LSTM over words, a dropout between its layers and after them."""

    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(5000, 256), nn.LSTM(256, 512, 2, batch_first=True, dropout=0.3)
        layers = [nn.Sequential(nn.Dropout(0.5), nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(6)]
        self.head = nn.Sequential(*layers, nn.Linear(512, 20))

    def forward(self, words):
        return self.head(self.lstm(self.embedding(words))[0])


_catalogue.add("transformer_encoder", encoder, lambda: (torch.randn(2, 96, 768),))
_catalogue.add("lstm_tagger", Tagger, lambda: (tokens(4, 32, high=5000),))
