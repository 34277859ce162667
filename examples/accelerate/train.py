"""A Hugging Face accelerate loop, run by ddpctl unchanged: Accelerator reads torchrun's environment.

A small network learns which of two numbers is larger. The image needs `accelerate`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration
except ImportError as error:
    raise SystemExit(f"{error}; run `pip install accelerate` in the image") from None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    folder = Path(os.environ.get("DDPCTL_CHECKPOINT_DIR", "checkpoints"))

    pairs = torch.rand(2048, 2, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(pairs, (pairs[:, 0] > pairs[:, 1]).long())
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    # a restart in place copies no checkpoint from host to host
    everywhere = ProjectConfiguration(save_on_each_node=True)
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), project_config=everywhere)
    model, optimizer, batches = accelerator.prepare(
        model,
        torch.optim.Adam(model.parameters(), lr=0.01),
        DataLoader(data, batch_size=32, shuffle=True),
    )
    first = 0
    saved = {int(mark.parent.name[6:]): mark.parent for mark in folder.glob("epoch-*/complete")}
    if given.resume and saved:  # a run may have failed before its first checkpoint
        first = max(saved)
        accelerator.load_state(str(saved[first]))
    for epoch in range(first + 1, given.epochs + 1):
        right = torch.zeros((), device=accelerator.device)
        for inputs, labels in batches:
            logits = model(inputs)
            accelerator.backward(nn.functional.cross_entropy(logits, labels))
            optimizer.step()
            optimizer.zero_grad()
            right += (logits.argmax(1) == labels).sum()
        accuracy = accelerator.reduce(right).item() / len(data)
        if accelerator.is_main_process:
            print(f"epoch {epoch}: accuracy {accuracy:.3f}", flush=True)
        accelerator.save_state(str(folder / f"epoch-{epoch}"))
        accelerator.wait_for_everyone()
        if accelerator.is_local_main_process:
            (folder / f"epoch-{epoch}" / "complete").touch()
    model, optimizer = accelerator.free_memory(model, optimizer)
    accelerator.end_training()  # ends the process group, which must outlive DDP


if __name__ == "__main__":
    main()
