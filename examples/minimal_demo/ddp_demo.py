"""The smallest complete DDP script: a model, images, a sampler, a loop, and one rank that prints.

`python ddp_demo.py` runs one process; torchrun runs many. All ranks make the same learnable images.
The network returns logits, because cross_entropy contains the softmax: a second softmax before it
would stop all learning at a loss of 1.4612.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Model(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.fc = nn.Linear(30 * 30 * 16, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(torch.relu(self.conv(x)).flatten(1))
        return logits


def images(count: int, classes: int) -> TensorDataset:
    """Images of noise over one color per class."""
    generator = torch.Generator().manual_seed(0)
    colors = torch.randn(classes, 3, 1, 1, generator=generator)
    labels = torch.arange(count) % classes
    noise = torch.randn(count, 3, 32, 32, generator=generator)
    return TensorDataset(colors[labels] + 0.5 * noise, labels)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batchSize", type=int, default=64, help="of one process")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--dataset-size", type=int, default=1024)
    parser.add_argument("--num-classes", type=int, default=10)
    args = parser.parse_args()

    for name, alone in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": 0}.items():
        os.environ.setdefault(name, str(alone))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(0)
    dataset = images(args.dataset_size, args.num_classes)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batchSize, sampler=sampler)
    model = DistributedDataParallel(Model(args.num_classes).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {device}", flush=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}, step {step}, loss {loss.item():.4f}", flush=True)
    dist.barrier()
    del model  # DDP must be gone before its process group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
