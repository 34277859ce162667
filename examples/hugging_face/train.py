"""A Hugging Face Trainer script, run by ddpctl unchanged: Trainer reads torchrun's environment.

A tiny BERT learns from scratch, without a download, whether the first token occurs again.
The image needs `transformers` and `accelerate`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch.utils.data import Dataset

try:
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        Trainer,
        TrainingArguments,
    )
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise SystemExit(f"{error}; run `pip install transformers accelerate` in the image") from None


class Sentences(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(1, 64, (count, 16), generator=generator)
        again = torch.arange(count) % 2
        self.tokens[:, 8] = torch.where(again == 1, self.tokens[:, 0], self.tokens[:, 8])
        self.labels = (self.tokens[:, 1:] == self.tokens[:, :1]).any(1).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--sentences", type=int, default=8192)
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    config = BertConfig(
        vocab_size=64,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        num_labels=2,
    )
    settings = TrainingArguments(
        output_dir=os.environ.get("DDPCTL_CHECKPOINT_DIR", "checkpoints"),
        max_steps=given.steps,
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        logging_steps=max(1, given.steps // 10),
        save_steps=max(1, given.steps // 4),
        save_on_each_node=True,  # a restart in place copies no checkpoint from host to host
        report_to=[],
    )
    model = BertForSequenceClassification(config)
    trainer = Trainer(model=model, args=settings, train_dataset=Sentences(given.sentences))
    folder = settings.output_dir
    # a run may have failed before its first checkpoint
    newest = get_last_checkpoint(folder) if given.resume and Path(folder).is_dir() else None
    trainer.train(resume_from_checkpoint=newest)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        del trainer  # DDP must be gone before its process group
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
