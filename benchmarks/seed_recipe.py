"""Train ResNet-18 as published DDP examples do, for comparison only.

Each image is a PIL picture that a DataLoader worker crops, flips, converts and normalizes: CIFAR-10's,
or those of an ImageFolder tree at 224 pixels. Eight workers per process, plain SGD, one optimizer step
per batch; the loss is read every step. Uses fp32, or with --mixed bf16 autocast and channels_last.
benchmarks/trainer.py starts it with torchrun. Writes {"images_per_second", "cpu_ms", "top1"} to --to;
cpu_ms is the CPU time of this process, without its workers, per image after the first steps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
for name in ("torchvision::nms", "torchvision::qnms"):
    with contextlib.suppress(RuntimeError):  # PyPI's torchvision lacks them with a CPU torch
        torch.library.define(name, BOXES)

from PIL import Image  # noqa: E402
from torchvision import datasets, models, transforms  # noqa: E402

from trainer.data.cifar import find, load  # noqa: E402

NORMALIZE = transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
AUGMENT = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
PART = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
MIDDLE = [transforms.Resize(256), transforms.CenterCrop(224)]


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, x: torch.Tensor, y: torch.Tensor, train: bool) -> None:
        self.x, self.y = x.numpy(), y.tolist()
        steps = [*(AUGMENT if train else []), transforms.ToTensor(), NORMALIZE]
        self.transform = transforms.Compose(steps)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.x[index])), self.y[index]


def load_images(data: Path) -> tuple[Dataset[Any], Dataset[Any]]:
    """Return training and test images."""
    if folder := find(data):
        arrays = load(folder)
        return Pictures(arrays.train_x, arrays.train_y, train=True), Pictures(
            arrays.test_x, arrays.test_y, train=False
        )
    train, test = (
        transforms.Compose([*steps, transforms.ToTensor(), NORMALIZE]) for steps in (PART, MIDDLE)
    )
    return datasets.ImageFolder(data / "train", train), datasets.ImageFolder(data / "val", test)


def network(stem: str) -> nn.Module:
    model: nn.Module = models.resnet18(num_classes=10)
    if stem == "cifar":
        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--stem", choices=("cifar", "imagenet"), default="cifar")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--mixed", action="store_true", help="use bf16 autocast and channels_last")
    parser.add_argument("--skipped", type=int, default=1, help="first steps that cpu_ms leaves out")
    parser.add_argument("--to", type=Path, required=True)
    given = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(0)
    layout = torch.channels_last if given.mixed else torch.contiguous_format
    train, test = load_images(given.data)
    sampler: DistributedSampler[tuple[torch.Tensor, int]] = DistributedSampler(train)
    loader = DataLoader(
        train, given.batch_size, sampler=sampler, num_workers=given.workers, pin_memory=False
    )
    model = DistributedDataParallel(network(given.stem).to(device, memory_format=layout))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr, momentum=0.9, weight_decay=1e-5)
    images, seconds, cpu = 0, 0.0, []
    for epoch in range(given.epochs):
        sampler.set_epoch(epoch)
        model.train()
        began = time.perf_counter()
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=given.mixed):
                loss = criterion(model(x.to(device, memory_format=layout)), y.to(device))
            loss.backward()
            optimizer.step()
            loss.item()
            images += len(y) * torch.distributed.get_world_size()
            cpu.append((len(y), time.process_time()))
        seconds += time.perf_counter() - began
    if torch.distributed.get_rank() == 0:
        top1 = accuracy(model.module, DataLoader(test, 500), device)
        measured = sum(count for count, _ in cpu[given.skipped :])
        spent = 1000 * (cpu[-1][1] - cpu[given.skipped - 1][1]) / measured
        result = {"images_per_second": images / seconds, "cpu_ms": spent, "top1": top1}
        given.to.write_text(json.dumps(result))
    torch.distributed.barrier()
    del model  # DDP must be gone before its process group
    torch.distributed.destroy_process_group()


def accuracy(
    model: nn.Module, loader: DataLoader[tuple[torch.Tensor, int]], device: torch.device
) -> float:
    model.eval()
    right = total = 0
    with torch.no_grad():
        for x, y in loader:
            right += int((model(x.to(device)).argmax(1).cpu() == y).sum())
            total += len(y)
    return right / total


if __name__ == "__main__":
    main()
