"""Trains a small vision transformer on pictures of stripes by Lightning: casts to bfloat16, accumulated gradients, clipping,
validation with another batch size, a smaller last batch, and a checkpoint to go on from.

With remat-codegen there are two lines more: take `# remat: ` away from them. The file is made at the first step, and kept.
"""

import tempfile

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# remat: from remat_codegen.integrations import at_first_step


class Stripes(nn.Module):
    """Says in which of four directions the stripes of a picture go."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=4)
        self.position = nn.Parameter(0.02 * torch.randn(1, 16, width))
        layers = [nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.1, batch_first=True) for _ in range(3)]
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(width, 4)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = self.patches(pictures).flatten(2).transpose(1, 2) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class Training(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Stripes()
        # remat: self.model = at_first_step(self.model, "60%", "stripes_remat.py")

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        print(f"step {self.trainer.global_step}.{number}: loss {loss.item()!r}")
        return loss

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        print(f"validation {F.cross_entropy(self.model(batch[0]), batch[1]).item()!r}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def pictures(count: int, size: int, seed: int) -> DataLoader:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    kinds = torch.randint(4, (count,), generator=generator)
    phases = torch.rand(count, 1, 1, generator=generator) * 6
    stripes = torch.stack([x, y, x + y, x - y])[kinds].add(phases).sin()
    noise = torch.randn(stripes.shape, generator=generator)
    data = TensorDataset((stripes + noise)[:, None], kinds)
    return DataLoader(data, size, shuffle=seed == 0, generator=torch.Generator().manual_seed(seed))


def main() -> None:
    lightning.seed_everything(0, verbose=False)
    module, folder = Training(), tempfile.mkdtemp()
    common = {"accelerator": "cpu", "precision": "bf16-mixed", "accumulate_grad_batches": 2, "gradient_clip_val": 1.0}
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder}
    data = {"train_dataloaders": pictures(61, 6, 0), "val_dataloaders": pictures(27, 9, 1)}  # 11 steps, the last one with 1
    for epochs, checkpoint in ((10, None), (20, f"{folder}/half.ckpt")):
        trainer = lightning.Trainer(max_epochs=epochs, check_val_every_n_epoch=5, **common, **quiet)
        trainer.fit(module, **data, ckpt_path=checkpoint, weights_only=False if checkpoint else None)
        trainer.save_checkpoint(f"{folder}/half.ckpt")


if __name__ == "__main__":
    main()
