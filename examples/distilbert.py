"""DistilBERT from transformers, with random weights: the generated module wraps an instance.

remat-codegen examples/distilbert.py:distilbert --budget 50%
"""

import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification


def distilbert(layers: int = 4, width: int = 256) -> DistilBertForSequenceClassification:
    config = DistilBertConfig(vocab_size=5000, dim=width, n_layers=layers, n_heads=4, hidden_dim=4 * width, num_labels=5)
    return DistilBertForSequenceClassification(config)


def example_inputs() -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.randint(5000, (8, 128)),
        "attention_mask": torch.ones(8, 128, dtype=torch.int64),
        "labels": torch.randint(5, (8,)),
    }
