"""A Lightning module, run by ddpctl unchanged: the Trainer finds torchrun's environment by itself.

A small network learns which of two numbers is larger. The image needs `lightning`.
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning
except ImportError as error:
    raise SystemExit(f"{error}; run `pip install lightning` in the image") from None


class Larger(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        inputs, labels = batch
        logits = self.network(inputs)
        accuracy = (logits.argmax(1) == labels).float().mean()
        self.log("accuracy", accuracy, on_step=False, on_epoch=True, sync_dist=True)
        return nn.functional.cross_entropy(logits, labels)

    def on_train_epoch_end(self) -> None:
        accuracy = self.trainer.callback_metrics["accuracy"]
        self.print(f"epoch {self.current_epoch + 1}: accuracy {accuracy:.3f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    folder = os.environ.get("DDPCTL_CHECKPOINT_DIR", "checkpoints")

    pairs = torch.rand(2048, 2, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(pairs, (pairs[:, 0] > pairs[:, 1]).long())
    saved = lightning.pytorch.callbacks.ModelCheckpoint(folder, filename="newest", save_last="link")
    trainer = lightning.Trainer(
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy="ddp",
        max_epochs=given.epochs,
        callbacks=[saved],
        logger=False,
        enable_progress_bar=False,
    )
    batches = DataLoader(data, batch_size=32, shuffle=True)
    trainer.fit(Larger(), batches, ckpt_path="last" if given.resume else None)


if __name__ == "__main__":
    main()
