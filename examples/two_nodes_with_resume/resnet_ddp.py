"""ResNet-18 on CIFAR-10 with DistributedDataParallel, with resume.

The classic two-node script, plus what it lacked: a new order each epoch, a test set without
augmentation, evaluation by all ranks outside the DDP wrapper, and a checkpoint that holds the
optimizer and the epoch. Only rank 0 writes it, replaces the old one atomically, and sends it to
nodes that have none.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.data.augment import cropped, flipped, pad
from trainer.data.cifar import find, load
from trainer.data.resident import mean_std
from trainer.model import build_model


def main() -> None:
    args = parse()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    train(args, device)  # a function of its own: DDP must be gone before its process group
    dist.barrier()
    dist.destroy_process_group()


def train(args: argparse.Namespace, device: torch.device) -> None:
    torch.manual_seed(args.random_seed)
    folder = find(args.data)
    if folder is None:
        raise SystemExit(f"{args.data}: no cifar-10-batches-py there")
    images = load(folder)
    mean, std = (part.to(device) for part in mean_std(images))

    def prepared(x: torch.Tensor) -> torch.Tensor:
        return ((x.to(device).float() - mean) / std).permute(0, 3, 1, 2).contiguous()

    model = build_model(args.model, num_classes=10).to(device)
    net = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(
        net.parameters(), lr=args.learning_rate, momentum=0.9, weight_decay=5e-4
    )
    file = args.model_dir / args.model_filename
    first = restore(file, model, optimizer, device) if args.resume else 0
    padded = pad(images.train_x)
    for epoch in range(first, args.num_epochs):
        generator = torch.Generator().manual_seed(args.random_seed * 100_003 + epoch)
        order = torch.randperm(len(padded), generator=generator)
        mine = order[dist.get_rank() :: dist.get_world_size()]
        mine = mine[: len(padded) // dist.get_world_size()]  # the same number on every rank
        model.train()
        for part in mine.split(args.batch_size):
            crops = cropped(padded, part, seed=args.random_seed, epoch=epoch)
            x = prepared(flipped(crops, part, ["flip"], seed=args.random_seed, epoch=epoch))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), images.train_y[part].to(device))
            loss.backward()
            optimizer.step()
        right = evaluate(model, prepared, images.test_x, images.test_y, device)
        if dist.get_rank() == 0:
            save(file, model, optimizer, epoch + 1)
            print(f"epoch {epoch + 1}: accuracy {right / len(images.test_y):.4f}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("/data"))
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--num_epochs", type=int, default=30)
    parser.add_argument("--batch_size", type=int, default=256, help="of one process")
    parser.add_argument("--learning_rate", type=float, default=0.1)
    parser.add_argument("--random_seed", type=int, default=0)
    folder = os.environ.get("DDPCTL_CHECKPOINT_DIR", "saved_models")
    parser.add_argument("--model_dir", type=Path, default=Path(folder))
    parser.add_argument("--model_filename", default="resnet_distributed.pth")
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


def evaluate(model, prepared, x, y, device) -> int:  # type: ignore[no-untyped-def]
    """Return how many predictions are right. Each image counts once, on one rank, without padding."""
    for buffer in model.buffers():  # each rank has its own batch statistics; use rank 0's
        dist.broadcast(buffer, 0)
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=device)
    with torch.no_grad():
        for part in torch.arange(dist.get_rank(), len(y), dist.get_world_size()).split(500):
            right += (model(prepared(x[part])).argmax(1) == y[part].to(device)).sum()
    dist.all_reduce(right)
    return int(right)


def save(file: Path, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    with part.open("wb") as out:
        torch.save(state, out)
        out.flush()
        os.fsync(out.fileno())
    part.replace(file)


def restore(
    file: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> int:
    """Return the epoch to continue with, or 0 without a checkpoint. Rank 0 reads the checkpoint and
    sends it to the others."""
    state = [None]
    if dist.get_rank() == 0 and file.exists():
        state = [torch.load(file, map_location="cpu", weights_only=True)]
    dist.broadcast_object_list(state, src=0, device=device)
    if state[0] is None:
        return 0
    model.load_state_dict(state[0]["model"])
    optimizer.load_state_dict(state[0]["optimizer"])
    if dist.get_rank() == 0:
        print(f"going on after epoch {state[0]['epoch']}", flush=True)
    return int(state[0]["epoch"])


if __name__ == "__main__":
    main()
