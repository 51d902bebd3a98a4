"""The catalogue's models at a width that people train, few layers deep where depth is free to choose. What can drop does."""

from __future__ import annotations

import catalogue
import torch
from builders import Catalogue, image, require, text, tokens  # noqa: F401 - for the tests
from torch import nn

_catalogue = Catalogue(globals())
NAMES = _catalogue.names


def _language(batch: int, length: int, high: int = 5000):
    return lambda: {"input_ids": tokens(batch, length, high=high), "labels": tokens(batch, length, high=high)}


_language_model = {**text, "vocab_size": 5000}
_decoder = {"num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 4, "attention_dropout": 0.1}

_catalogue.torchvision("resnet50", 224)
_catalogue.torchvision("densenet121", 224)
_catalogue.torchvision("efficientnet_b0", 224)
_catalogue.torchvision("regnet_x_400mf", 224)
_catalogue.torchvision("mobilenet_v3_small", 224)
_catalogue.torchvision("vgg11_bn", 224)
_catalogue.torchvision("shufflenet_v2_x0_5", 224)
_catalogue.torchvision("swin_t", 224)
_catalogue.torchvision("convnext_tiny", 224)
_catalogue.torchvision("vit_b_16", 224, dropout=0.1, attention_dropout=0.1)
_catalogue.torchvision("googlenet", 224, init_weights=False)
_catalogue.torchvision("inception_v3", 299, init_weights=False)
_catalogue.timm("vit_base", 224, "vit_base_patch16_224", depth=2, proj_drop_rate=0.1, attn_drop_rate=0.1, drop_path_rate=0.1)
_catalogue.timm("resmlp_12", 224, "resmlp_12_224", drop_path_rate=0.1)
_catalogue.timm("nfnet_f0", 192, drop_path_rate=0.1)
_catalogue.timm("maxvit_nano", 256, "maxvit_nano_rw_256", drop_path_rate=0.1)
_catalogue.timm("pvt_v2_b0", 224, drop_path_rate=0.1)
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
    **_decoder,
    hidden_size=1024,
    intermediate_size=2752,
)
_catalogue.transformers(
    "qwen3",
    "Qwen3ForCausalLM",
    _language(1, 128),
    **_language_model,
    **_decoder,
    hidden_size=1024,
    intermediate_size=3072,
    head_dim=64,
)
_catalogue.transformers(
    "mixtral",
    "MixtralForCausalLM",
    _language(1, 64),
    **_language_model,
    **_decoder,
    hidden_size=1024,
    intermediate_size=1792,
    num_local_experts=8,
)
_catalogue.transformers(
    "vit",
    "ViTForImageClassification",
    lambda: {"pixel_values": torch.randn(2, 3, 224, 224), "labels": torch.tensor([0, 1])},
    num_hidden_layers=2,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
)
_catalogue.transformers(
    "segformer",
    "SegformerForSemanticSegmentation",
    lambda: {"pixel_values": torch.randn(2, 3, 224, 224), "labels": tokens(2, 224, 224, high=3)},
    num_labels=3,
    hidden_dropout_prob=0.1,
)
_catalogue.transformers(
    "mamba",
    "MambaForCausalLM",
    _language(1, 24),
    vocab_size=5000,
    hidden_size=768,
    num_hidden_layers=2,
    use_cache=False,
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


def padded_encoder():
    """One with a padding mask, at the width of the first transformer."""
    found = catalogue.Padded()
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, norm_first=True)
    found.encoder, found.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(512, 7)
    return found


def generator():
    """DCGAN's, for pictures of 64 x 64."""
    layers = [nn.ConvTranspose2d(100, 512, 4, 1, 0, bias=False), nn.BatchNorm2d(512), nn.ReLU(True)]
    for width in (512, 256, 128):
        layers += [nn.ConvTranspose2d(width, width // 2, 4, 2, 1, bias=False), nn.BatchNorm2d(width // 2), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())


def discriminator():
    """DCGAN's, for pictures of 64 x 64."""
    layers = [nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
    for width in (64, 128, 256):
        layers += [nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2, inplace=True)]
    return nn.Sequential(*layers, nn.Conv2d(512, 1, 4, 1, 0, bias=False), nn.Sigmoid())


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
_catalogue.add("deeplabv3_mobilenet", catalogue.deeplabv3_mobilenet, image(224), "torchvision")
_catalogue.add(
    "transformer",
    lambda: nn.Transformer(512, 8, 2, 2, 2048, batch_first=True),
    lambda: (torch.randn(2, 64, 512), torch.randn(2, 48, 512)),
)
_catalogue.add(
    "padded_encoder",
    padded_encoder,
    lambda: (torch.randn(2, 64, 512), torch.arange(64).expand(2, 64) > torch.tensor([[40], [63]])),
)
_catalogue.add("unet", lambda: catalogue.UNet(64), image(128))
_catalogue.add("fno", lambda: catalogue.FNO(64, 16, 4), lambda: (torch.randn(8, 1, 1024),))
_catalogue.add("dcgan_generator", generator, lambda: (torch.randn(16, 100, 1, 1),))
_catalogue.add("dcgan_discriminator", discriminator, lambda: (torch.randn(16, 3, 64, 64, requires_grad=True),))
