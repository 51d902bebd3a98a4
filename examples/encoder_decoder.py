"""An encoder-decoder transformer in plain PyTorch, as for translation: the decoder attends to what the encoder read."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """`x` asks, `memory` answers: the same sequence, or the encoder's."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x, memory, mask=None, causal=False):
        q, k, v = (self.heads_of(p) for p in (self.q_proj(x), self.k_proj(memory), self.v_proj(memory)))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.out_proj(y.transpose(1, 2).flatten(2))

    def heads_of(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.down(self.dropout(F.relu(self.up(x))))


class EncoderLayer(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feed = FeedForward(width, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        h = self.norm1(x)
        x = x + self.dropout(self.attention(h, h, mask))
        return x + self.dropout(self.feed(self.norm2(x)))


class DecoderLayer(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.cross = Attention(width, heads)
        self.feed = FeedForward(width, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, memory, mask):
        h = self.norm1(x)
        x = x + self.dropout(self.attention(h, h, causal=True))
        x = x + self.dropout(self.cross(self.norm2(x), memory, mask))
        return x + self.dropout(self.feed(self.norm3(x)))


class EncoderDecoder(nn.Module):
    """Source and target share one table of words, which is also the output layer."""

    def __init__(self, width=256, heads=4, layers=3, vocabulary=4000, longest=256, dropout=0.1):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(longest, width)
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.ModuleList([EncoderLayer(width, heads, dropout) for _ in range(layers)])
        self.decoder = nn.ModuleList([DecoderLayer(width, heads, dropout) for _ in range(layers)])
        self.memory_norm = nn.LayerNorm(width)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocabulary, bias=False)
        self.out.weight = self.words.weight

    def embed(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.words(tokens) + self.places(places))

    def forward(self, source, target):
        mask = (source != 0)[:, None, None, :]
        memory = self.embed(source)
        for layer in self.encoder:
            memory = layer(memory, mask)
        memory = self.memory_norm(memory)
        x = self.embed(target)
        for layer in self.decoder:
            x = layer(x, memory, mask)
        return self.out(self.norm(x))


def example_inputs():
    source = torch.randint(1, 4000, (4, 128))
    source[:, 100:] = 0
    return source, torch.randint(1, 4000, (4, 128))
