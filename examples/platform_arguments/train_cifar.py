"""A CIFAR-10 job with a cloud platform's argument names, run by torchrun.

The platform passed --init_method, --rank and --world_size; there, rank and size counted *nodes*, and
one process drove all GPUs of its node. Here, one process drives one GPU, ranks count processes, and
torchrun's environment provides them, so the script accepts and ignores these three. Adam's learning
rate grows with the square root of the number of ranks.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.data.cifar import find, load
from trainer.data.resident import mean_std
from trainer.data.synthetic import Arrays, synthetic
from trainer.model import build_model


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r}: true or false")
    return text.lower() == "true"


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--data_url", type=Path, default=Path("/data"))
    output = Path(os.environ.get("DDPCTL_OUTPUT_DIR", "output"))
    parser.add_argument("--output_dir", type=Path, default=output)
    parser.add_argument("--enable_gpu", type=boolean, default=torch.cuda.is_available())
    parser.add_argument("--custom_data", type=boolean, default=False, help="made, not read")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch_size", type=int, default=128, help="of one process")
    parser.add_argument("--lr", type=float, default=0.001, help="for one process")
    for unneeded in ("--init_method", "--rank", "--world_size"):
        parser.add_argument(unneeded, help="ignored: torchrun's environment provides it")
    args = parser.parse_args()

    if args.enable_gpu and not torch.cuda.is_available():
        parser.error("--enable_gpu true: there is no GPU here")
    gpu = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", gpu) if args.enable_gpu else torch.device("cpu")
    if args.enable_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if args.enable_gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    images = read(args)
    mean, std = mean_std(images)
    model = build_model(args.model, num_classes=images.num_classes).to(device)
    net = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(net.parameters(), lr=args.lr * math.sqrt(ranks))

    def batch(x: torch.Tensor, y: torch.Tensor, part: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pixels = (x[part].float() - mean) / std
        return pixels.permute(0, 3, 1, 2).to(device), y[part].to(device)

    for epoch in range(args.epochs):
        order = torch.randperm(len(images.train_y), generator=torch.Generator().manual_seed(epoch))
        share = len(order) // ranks
        model.train()
        summed, steps = 0.0, 0
        for part in order[rank * share : (rank + 1) * share].split(args.batch_size):
            x, y = batch(images.train_x, images.train_y, part)
            loss = nn.functional.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            summed, steps = summed + loss.item(), steps + 1
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
        model.eval()
        right = torch.zeros((), dtype=torch.int64, device=device)
        with torch.no_grad():
            for part in torch.arange(rank, len(images.test_y), ranks).split(500):
                x, y = batch(images.test_x, images.test_y, part)
                right += (model(x).argmax(1) == y).sum()
        dist.all_reduce(right)
        if rank == 0:
            print(f"train | epoch: {epoch} | loss: {summed / steps:.4f}", flush=True)
            top1 = int(right) / len(images.test_y)
            print(f"val | epoch: {epoch} | accuracy: {top1:.4f}", flush=True)
            args.output_dir.mkdir(parents=True, exist_ok=True)
            torch.save(model.state_dict(), args.output_dir / f"epoch_{epoch + 1}.pth")
    dist.barrier()
    del net  # DDP must be gone before its process group
    dist.destroy_process_group()


def read(args: argparse.Namespace) -> Arrays:
    """The platform's random images could not be learned; these can, and all ranks make the same ones."""
    if args.custom_data:
        return synthetic(5000, 1000, 10, 32)
    folder = find(args.data_url)
    if folder is None:
        raise SystemExit(f"--data_url {args.data_url}: no cifar-10-batches-py there")
    return load(folder)


if __name__ == "__main__":
    main()
