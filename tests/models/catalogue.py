"""Models that people train, small, with random weights: `catalogue.py:NAME` is a target, `catalogue.py:NAME_inputs` its inputs.

These are the models that the table in docs/models.md lists; `more.py` has others.
"""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from builders import Catalogue, image, language_inputs, narrow, padded_mask, text, tokens

_catalogue = Catalogue(globals())
NAMES = _catalogue.names


# ------------------------------------------------------------------------------------------- torchvision


for _name in "resnet50 regnet_x_400mf densenet121 mobilenet_v3_small efficientnet_b0 vgg11_bn shufflenet_v2_x0_5".split():
    _catalogue.torchvision(_name)
_catalogue.torchvision("swin_t")
_catalogue.torchvision("convnext_tiny")
_catalogue.torchvision("googlenet", 96, init_weights=False)
_catalogue.torchvision("inception_v3", 299, init_weights=False)


def _vit_b_16():
    import torchvision_cpu  # noqa: F401
    from torchvision.models import VisionTransformer

    return VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=5, dropout=0.1)


def _deeplab():
    import torchvision_cpu  # noqa: F401
    from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

    return deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, aux_loss=True)


_catalogue.add("vit_b_16", _vit_b_16, image(32), "torchvision")
_catalogue.add("deeplabv3_mobilenet", _deeplab, image(64), "torchvision")


# -------------------------------------------------------------------------------------------------- timm


_catalogue.timm("mixer_s32", 224, "mixer_s32_224")
_catalogue.timm("resmlp_12", 224, "resmlp_12_224")
_catalogue.timm("nfnet_f0", 64)
_catalogue.timm("maxvit_nano", 256, "maxvit_nano_rw_256")
_catalogue.timm("pvt_v2_b0", 64)


# ------------------------------------------------------------------------------------------ transformers


_catalogue.transformers("gpt2", "GPT2LMHeadModel", language_inputs, **text, n_positions=32, n_embd=32, n_layer=2, n_head=2)
_catalogue.transformers(
    "bert",
    "BertForSequenceClassification",
    lambda: {
        "input_ids": tokens(2, 16),
        "attention_mask": padded_mask(),
        "labels": torch.tensor([0, 1]),
    },
    vocab_size=99,
    **narrow,
)
_catalogue.transformers("llama", "LlamaForCausalLM", language_inputs, **text, **narrow, num_key_value_heads=2)
_catalogue.transformers("qwen3", "Qwen3ForCausalLM", language_inputs, **text, **narrow, num_key_value_heads=2, head_dim=8)
_catalogue.transformers(
    "mixtral", "MixtralForCausalLM", language_inputs, **text, **narrow, num_key_value_heads=2, num_local_experts=4
)
_catalogue.transformers(
    "t5",
    "T5ForConditionalGeneration",
    language_inputs,
    **text,
    d_model=32,
    d_kv=8,
    d_ff=64,
    num_layers=2,
    num_heads=4,
    decoder_start_token_id=0,
)
_catalogue.transformers(
    "vit",
    "ViTForImageClassification",
    lambda: {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])},
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    image_size=32,
    patch_size=8,
    hidden_dropout_prob=0.1,
)
_catalogue.transformers(
    "segformer",
    "SegformerForSemanticSegmentation",
    lambda: {"pixel_values": torch.randn(2, 3, 64, 64), "labels": tokens(2, 64, 64, high=3)},
    num_encoder_blocks=4,
    depths=[1, 1, 1, 1],
    hidden_sizes=[8, 16, 16, 32],
    decoder_hidden_size=16,
    num_attention_heads=[1, 1, 2, 2],
    num_labels=3,
)
_catalogue.transformers(
    "whisper",
    "WhisperForConditionalGeneration",
    lambda: {"input_features": torch.randn(2, 8, 32), "labels": tokens(2, 16)},
    **text,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_source_positions=16,
    max_target_positions=32,
    num_mel_bins=8,
    decoder_start_token_id=1,
    dropout=0.1,
)
_catalogue.transformers(
    "mamba",
    "MambaForCausalLM",
    lambda: {"input_ids": tokens(2, 8), "labels": tokens(2, 8)},
    vocab_size=99,
    hidden_size=16,
    num_hidden_layers=2,
    state_size=4,
    use_cache=False,
)


# ------------------------------------------------------------------------------------------------- torch


class UNet(nn.Module):
    """Three levels, long skips, batch norm, in-place activations."""

    def __init__(self, width=8):
        super().__init__()
        self.down = nn.ModuleList([self.double(3, width), self.double(width, 2 * width), self.double(2 * width, 4 * width)])
        self.bottom = self.double(4 * width, 8 * width)
        self.up = nn.ModuleList([nn.ConvTranspose2d(k * width, k * width // 2, 2, 2) for k in (8, 4, 2)])
        self.merge = nn.ModuleList([self.double(k * width, k * width // 2) for k in (8, 4, 2)])
        self.out = nn.Conv2d(width, 2, 1)

    @staticmethod
    def double(before, after):
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        skips = []
        for level in self.down:
            x = level(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), skips.pop()], 1))
        return self.out(x)


class Spectral(nn.Module):
    """A Fourier layer: complex weights, fft, slices of a spectrum."""

    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, dtype=torch.cfloat) / width)

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        out = torch.zeros_like(spectrum)
        out[:, :, : self.modes] = torch.einsum("bix,iox->box", spectrum[:, :, : self.modes], self.weight)
        return torch.fft.irfft(out, n=x.shape[-1])


class FNO(nn.Module):
    def __init__(self, width=16, modes=8, layers=3):
        super().__init__()
        self.lift = nn.Conv1d(1, width, 1)
        self.spectral = nn.ModuleList([Spectral(width, modes) for _ in range(layers)])
        self.local = nn.ModuleList([nn.Conv1d(width, width, 1) for _ in range(layers)])
        self.project = nn.Conv1d(width, 1, 1)

    def forward(self, x):
        x = self.lift(x)
        for spectral, local in zip(self.spectral, self.local, strict=True):
            x = F.gelu(spectral(x) + local(x))
        return self.project(x)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(99, 16)
        self.lstm = nn.LSTM(16, 32, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.out = nn.Linear(64, 4)

    def forward(self, x):
        return self.out(self.lstm(self.embedding(x))[0].mean(1))


class Padded(nn.Module):
    """nn.TransformerEncoder with a padding mask."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.out = nn.Linear(32, 7)

    def forward(self, x, padding):
        return self.out(self.encoder(x, src_key_padding_mask=padding))


def generator():
    """DCGAN's, small."""
    return nn.Sequential(
        nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(True),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(True),
        nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False),
        nn.Tanh(),
    )


def discriminator():
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(16, 32, 4, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(32, 1, 4, 1, 0, bias=False),
        nn.Sigmoid(),
    )


_catalogue.add("unet", UNet, image(32))
_catalogue.add("fno", FNO, lambda: (torch.randn(2, 1, 64),))
_catalogue.add("lstm", Classifier, lambda: (tokens(3, 9),))
_catalogue.add(
    "padded_encoder", Padded, lambda: (torch.randn(2, 9, 32), torch.arange(9).expand(2, 9) > torch.tensor([[6], [8]]))
)
_catalogue.add(
    "transformer",
    lambda: nn.Transformer(32, 4, 2, 2, 64, batch_first=True),
    lambda: (torch.randn(2, 9, 32), torch.randn(2, 7, 32)),
)
_catalogue.add("dcgan_generator", generator, lambda: (torch.randn(2, 16, 1, 1),))
_catalogue.add("dcgan_discriminator", discriminator, lambda: (torch.randn(2, 3, 16, 16, requires_grad=True),))
