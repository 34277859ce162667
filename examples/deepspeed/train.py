"""A DeepSpeed ZeRO-2 loop, run by ddpctl unchanged: no `deepspeed` launcher, no hostfile on the nodes.

A small network learns which of two numbers is larger. The image needs `deepspeed`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

try:
    import deepspeed
except ImportError as error:
    raise SystemExit(f"{error}; run `pip install deepspeed` in the image") from None

SETTINGS = {
    "train_micro_batch_size_per_gpu": 32,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
    "checkpoint": {"use_node_local_storage": True},  # hosts do not share the folder
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    folder = os.environ.get("DDPCTL_CHECKPOINT_DIR", "checkpoints")

    deepspeed.init_distributed()
    pairs = torch.rand(2048, 2, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(pairs.bfloat16(), (pairs[:, 0] > pairs[:, 1]).long())
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    engine, _, batches, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), training_data=data, config=SETTINGS
    )
    first, newest = 0, [None]
    latest = Path(folder, "latest")  # DeepSpeed writes it on rank 0's host alone
    if given.resume and torch.distributed.get_rank() == 0 and latest.exists():
        newest = [latest.read_text()]
    torch.distributed.broadcast_object_list(newest)
    if newest[0]:  # a run may have failed before its first checkpoint
        _, kept = engine.load_checkpoint(folder, tag=newest[0])
        first = kept["epoch"]
    for epoch in range(first + 1, given.epochs + 1):
        for inputs, labels in batches:
            logits = engine(inputs.to(engine.device))
            loss = nn.functional.cross_entropy(logits.float(), labels.to(engine.device))
            engine.backward(loss)
            engine.step()
        if torch.distributed.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
        engine.save_checkpoint(folder, client_state={"epoch": epoch})


if __name__ == "__main__":
    main()
