"""DP, DDP, DP+AMP and DDP+AMP on the same network, images and global batch: one table.

DP is nn.DataParallel in rank 0 (on a CPU, that process alone); DDP uses all of torchrun's ranks. In
all rows each device has its own batch-norm statistics, the images are shuffled and every test image
counts once. bf16 autocast takes the place of apex.
"""

from __future__ import annotations

import argparse
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from trainer.data.augment import cropped, flipped, pad
from trainer.data.cifar import find, load
from trainer.data.resident import mean_std
from trainer.data.synthetic import Arrays, synthetic
from trainer.model import build_model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("/data"), help="CIFAR-10 or CIFAR-100")
    parser.add_argument(
        "--synthetic", type=int, default=0, metavar="N", help="use N generated images"
    )
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=256, help="over all ranks")
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    # The other ranks wait here, off the GPUs and for as long as it takes, while rank 0 runs DP.
    waiting = dist.new_group(backend="gloo", timeout=timedelta(days=7))
    if args.batch_size % dist.get_world_size():
        raise SystemExit(
            f"--batch_size {args.batch_size} is not divisible by {dist.get_world_size()} ranks"
        )
    images = read(args)
    if len(images.train_y) < args.batch_size:
        raise SystemExit(
            f"--batch_size {args.batch_size}: there are only {len(images.train_y)} training images"
        )
    if dist.get_rank() == 0:
        print(f"{'mode':<10}{'s/epoch':>10}{'images/s':>12}{'top-1':>9}", flush=True)
    for name, distributed, mixed in (
        ("DP", False, False),
        ("DDP", True, False),
        ("DP+AMP", False, True),
        ("DDP+AMP", True, True),
    ):
        if distributed or dist.get_rank() == 0:
            seconds, top1 = train(args, images, device, distributed, mixed)
            if dist.get_rank() == 0:
                speed = len(images.train_y) / seconds
                print(f"{name:<10}{seconds:>10.2f}{speed:>12.0f}{top1:>9.2%}", flush=True)
        dist.barrier(waiting)
    dist.destroy_process_group()


def read(args: argparse.Namespace) -> Arrays:
    if args.synthetic:
        return synthetic(args.synthetic, args.synthetic // 4, 10, 32)
    folder = find(args.data)
    if folder is None:
        raise SystemExit(f"{args.data}: neither cifar-10-batches-py nor cifar-100-python there")
    return load(folder)


def train(
    args: argparse.Namespace, images: Arrays, device: torch.device, distributed: bool, mixed: bool
) -> tuple[float, float]:
    """Return the seconds per epoch and the accuracy on the test images."""
    torch.manual_seed(0)
    model = build_model(args.model, num_classes=images.num_classes).to(device)
    net: nn.Module = model
    if distributed:
        net = DistributedDataParallel(model)
    elif torch.cuda.device_count() > 1:
        net = DataParallel(model)
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    padded, y = pad(images.train_x).to(device), images.train_y.to(device)
    mean, std = (part.to(device) for part in mean_std(images))

    def prepared(x: torch.Tensor) -> torch.Tensor:
        return ((x.float() - mean) / std).permute(0, 3, 1, 2)

    def cast() -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=mixed)

    began = time.perf_counter()
    for epoch in range(args.epochs):
        model.train()
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(epoch)).to(device)
        whole = len(order) // args.batch_size * args.batch_size
        for batch in order[:whole].split(args.batch_size):
            part = batch[rank::ranks]
            crops = cropped(padded, part, seed=0, epoch=epoch)
            x = prepared(flipped(crops, part, ["flip"], seed=0, epoch=epoch))
            with cast():
                loss = nn.functional.cross_entropy(net(x), y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = (time.perf_counter() - began) / args.epochs
    model.eval()  # every rank counts by itself, without DDP, whose forward waits for the others
    right = 0
    with torch.no_grad(), cast():
        for x, labels in zip(images.test_x.split(500), images.test_y.split(500), strict=True):
            right += int((model(prepared(x.to(device))).argmax(1).cpu() == labels).sum())
    return seconds, right / len(images.test_y)


if __name__ == "__main__":
    main()
