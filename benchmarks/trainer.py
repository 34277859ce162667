"""Compare the trainer with the published recipes (seed_recipe.py): same images, processes and epochs.

    python -m benchmarks.trainer [--epochs 2] [--rounds 3] [--ranks 2]
    python -m benchmarks.trainer --alike       CPU time, compared with a plain loop of the same precision
    python -m benchmarks.trainer --scaling     speed and efficiency with 1, 2, 4 and 8 ranks
    python -m benchmarks.trainer --loader      share of a step spent waiting for decoded images

The recipes train in fp32 and the trainer in bf16, which explains most of the difference. Compared with
a plain loop in bf16 and channels_last, the bar is to be no slower, within noise, by CPU time. Other bars:
<= 3% of an epoch outside forward, backward and optimizer; saving a checkpoint pauses training for
<= 2% of an epoch. Runs alternate, so that a busy machine slows down both. Results go to RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.needs import need_modules
from benchmarks.results import write_section

need_modules("trainer", "torch", "numpy", "torchvision", "PIL")

import torch
from PIL import Image

from benchmarks.modes import records
from trainer.data.synthetic import Arrays
from trainer.errors import DataError
from trainer.tools.data_command import fashion_mnist, write_cifar10

HERE = Path(__file__).parent
EPOCH = 50_000  # images in an epoch of CIFAR-10
SHIM = HERE.parent / "tests" / "trainer" / "torchvision_on_cpu.py"


@dataclass(frozen=True)
class Stem:
    """A comparison, with enough steps that startup time does not dominate."""

    name: str
    images: int
    batch: int  # per rank; the published recipe for the ImageNet stem has 256
    lr: float = 0.1  # for both


STEMS = (Stem("cifar", 2560, 64), Stem("imagenet", 12800, 256, lr=0.05))
SKIPPED = 3  # first steps, in which memory is allocated
NOISE = 1.05  # times the CPU time of a plain loop: by how much runs of one program differ


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--gpu", action="store_true", help="measure the rows of `make gpu`")
    parser.add_argument("--alike", action="store_true", help="compare with a plain loop in bf16")
    parser.add_argument("--scaling", action="store_true", help="measure 1, 2, 4 and 8 ranks")
    parser.add_argument("--loader", action="store_true", help="measure the decoding of JPEGs")
    given = parser.parse_args()
    if given.gpu:
        return on_gpu()
    if given.alike:
        return alike(given.rounds)
    if given.scaling:
        return scaling()
    if given.loader:
        return loader()
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "sitecustomize.py").write_text(SHIM.read_text())
        os.environ["PYTHONPATH"] = scratch
        lines = [
            "| stem | images, batch a rank | recipe img/s, fp32 | trainer img/s, bf16 "
            "| ratio (min-max) | recipe top-1 | trainer top-1 |",
            "|---|---|---|---|---|---|---|",
        ]
        for stem in STEMS:
            lines.append(compare(stem, given, Path(scratch)))
        lines += ["", *shares(STEMS[0], given, Path(scratch))]
    text = "\n".join(lines)
    print(text)
    command = f"python -m benchmarks.trainer {' '.join(sys.argv[1:])}".rstrip()
    about = f"torch {torch.__version__}; {given.ranks} ranks, real images (Fashion-MNIST in "
    about += f"CIFAR-10's layout), {given.epochs} epochs, median of {given.rounds} alternating "
    about += "rounds. So few steps show speed; accuracies are there to see that both learn.\n\n"
    about += (
        "**Most of this difference is the precision's**: the recipes train in fp32 as published, "
    )
    about += "the trainer in bf16. The next section compares like with like.\n\n"
    write_section("trainer", command, about + text)
    return 0


def on_gpu() -> int:
    """Run the trainer's own benchmarks on this machine's GPUs: techniques, scaling, baseline speed."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        print("no GPU here, so there is nothing to measure")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        data = write_cifar10(real_images(), Path(scratch)).parent
        common = ["--data", str(data), "--model", "resnet18", "--global-batch", "512"]
        counts = [str(n) for n in (1, 2, 4, 8) if n <= count]
        tables = {
            "One technique at a time": ["--techniques", "--ranks", "1", "--epochs", "6"],
            "--preset fast": ["--scaling", str(count), "--preset", "fast", "--epochs", "10"],
        }
        if count > 1:
            tables["DP, DDP and AMP"] = ["--ranks", str(count), "--epochs", "6"]
            tables["Ranks"] = ["--scaling", ",".join(counts), "--epochs", "6"]
        text = f"{count} x {torch.cuda.get_device_name()}, torch {torch.__version__}; "
        text += "ResNet-18, Fashion-MNIST in CIFAR-10's layout, global batch 512.\n"
        for title, flags in tables.items():
            command = [sys.executable, "-m", "benchmarks.modes", *flags, *common]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            text += f"\n{title}:\n\n```\n{done.stdout.rstrip()}\n```\n"
    print(text)
    write_section("trainer on a GPU", "make gpu", text)
    return 0


def alike(rounds: int) -> int:
    """Measure the CPU time per image of one rank, of a plain loop and of the trainer in turn."""
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "sitecustomize.py").write_text(SHIM.read_text())
        os.environ |= {"PYTHONPATH": scratch, "CPU_TIMES": f"{scratch}/cpu.json"}
        photographs(Path(scratch) / "tree", {"train": 320, "val": 16})
        cases = {
            "CIFAR stem, 32 pixels, batch 32": (Stem("cifar", 640, 32), None),
            "ImageNet stem, JPEGs at 224 pixels, batch 16": (
                Stem("imagenet", 320, 16, lr=0.01),
                Path(scratch) / "tree",
            ),
        }
        lines = [
            "| training | plain loop, ms of CPU time per image | trainer | ratio (min-max) | bar |",
            "|---|---|---|---|---|",
        ]
        for name, (stem, tree) in cases.items():
            data = tree or subset(stem.images, Path(scratch))
            pairs = [cpu_times(stem, data, Path(scratch)) for _ in range(rounds)]
            ratios = [ours / plain for plain, ours in pairs]
            plain, ours = (statistics.median(values) for values in zip(*pairs, strict=True))
            lines.append(
                f"| {name} | {plain:.2f} | {ours:.2f} | {statistics.median(ratios):.2f} x "
                f"({min(ratios):.2f}-{max(ratios):.2f}) | {NOISE} x |"
            )
    text = f"torch {torch.__version__}; ResNet-18, bf16 autocast and channels_last, one rank; median of "
    text += (
        f"{rounds} alternating rounds of one epoch. Processes that load images are not counted, on "
    )
    text += "either side; the images of the CIFAR stem are made by the trainer itself.\n\n"
    text += "\n".join(lines)
    print(text)
    write_section("trainer and a plain loop", "python -m benchmarks.trainer --alike", text)
    return 0


def cpu_times(stem: Stem, data: Path, scratch: Path) -> tuple[float, float]:
    """Return the ms of CPU time per image of the plain loop and of the trainer, without first steps."""
    given = argparse.Namespace(ranks=1, epochs=1)
    flags = ("--mixed", "--workers", "2", "--skipped", str(SKIPPED))
    plain = seed_recipe(stem, data, given, scratch, *flags)["cpu_ms"]
    times = Path(os.environ["CPU_TIMES"])
    times.unlink(missing_ok=True)
    hook = ("--report-to", "benchmarks.modes:note_cpu_time", "--print-every", str(SKIPPED))
    train(stem, data, given, scratch, *hook, "--workers", "2", "--image-size", "224")
    lines = [json.loads(line) for line in times.read_text().splitlines()]
    (first, began), (last, ended) = lines[0], lines[-1]
    return plain, 1000 * (ended - began) / (last - first)


def scaling() -> int:
    """Run one training with 1, 2, 4 and 8 ranks of one thread each, at the same global batch."""
    with tempfile.TemporaryDirectory() as scratch:
        data = subset(10_000, Path(scratch))
        flags = ["--data", str(data), "--model", "resnet8", "--global-batch", "256"]
        flags += ["--epochs", "2", "--threads", "1", "--print-every", "4", "--lr", "0.2"]
        command = [sys.executable, "-m", "benchmarks.modes", "--scaling", "1,2,4,8", *flags]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    text = (
        f"{os.cpu_count()} CPU cores, so more ranks than that share them. ResNet-8, 10,000 images "
    )
    text += "of Fashion-MNIST, global batch 256, one thread per rank, two epochs; torch "
    text += f"{torch.__version__}.\n\n```\n{done.stdout.rstrip()}\n```"
    print(text)
    write_section("trainer scaling", "python -m benchmarks.trainer --scaling", text)
    return 0


def loader() -> int:
    """Measure ResNet-18 at 224 pixels, with two processes that decode JPEGs of ImageNet's usual size."""
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "sitecustomize.py").write_text(SHIM.read_text())
        os.environ["PYTHONPATH"] = scratch
        tree = Path(scratch) / "tree"
        size = photographs(tree, {"train": 480, "val": 16})
        flags = ["--data", str(tree), "--model", "resnet18", "--batch-size", "16", "--workers", "2"]
        flags += ["--epochs", "1", "--print-every", "1", "--out", str(Path(scratch) / "out")]
        torchrun(1, ["-m", "trainer", *flags, "--lr", "0.01"])
        found = [r for r in records(Path(scratch) / "out/metrics.jsonl") if r["kind"] == "train"]
    waited, stepped = (sum(record[key] for record in found) for key in ("data_ms", "step_ms"))
    text = (
        f"ResNet-18, batch 16, one epoch of {len(found)} steps; JPEGs of 500x375 pixels, {size} kB "
    )
    text += (
        f"each; {os.cpu_count()} CPU cores, on which training and two decoding processes run.\n\n"
    )
    text += f"- waiting for images: {waited / len(found):.1f} ms of a step of "
    text += f"{stepped / len(found):.0f} ms, {waited / stepped:.2%} (bar 5%)"
    print(text)
    write_section("trainer loader", "python -m benchmarks.trainer --loader", text)
    return 0


def photographs(tree: Path, counts: dict[str, int]) -> int:
    """Create an ImageFolder tree of images that are as slow to decode as photographs.

    Return the mean size of a file in kB.
    """
    generator, sizes = torch.Generator().manual_seed(0), []
    for split, count in counts.items():
        for number in range(count):
            folder = tree / split / f"class{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            picture = sum(
                torch.nn.functional.interpolate(
                    torch.randn(1, 3, edge, edge, generator=generator), (375, 500), mode="bilinear"
                )
                for edge in (4, 16, 64, 250)
            )
            pixels = (picture[0] * 30 + 128).clamp(0, 255).byte().permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(folder / f"{number}.jpg", quality=92)
            sizes.append((folder / f"{number}.jpg").stat().st_size)
    return sum(sizes) // len(sizes) // 1000


def real_images() -> Arrays:
    try:
        return fashion_mnist()
    except DataError as error:
        sys.exit(f"benchmarks.trainer: {error}")


def subset(images: int, folder: Path) -> Path:
    arrays = real_images()
    few = Arrays(
        arrays.train_x[:images],
        arrays.train_y[:images],
        arrays.test_x[: images // 5],
        arrays.test_y[: images // 5],
        10,
        "few",
    )
    write_cifar10(few, folder)
    return folder


def compare(stem: Stem, given: argparse.Namespace, scratch: Path) -> str:
    data = subset(stem.images, scratch)
    theirs, ours = [], []
    for _ in range(given.rounds):
        theirs.append(seed_recipe(stem, data, given, scratch))
        ours.append(trainer(stem, data, given, scratch))
    ratios = [
        b["images_per_second"] / a["images_per_second"] for a, b in zip(theirs, ours, strict=True)
    ]
    return (
        f"| {stem.name} | {stem.images}, {stem.batch} | {median(theirs, 'images_per_second'):.0f} "
        f"| {median(ours, 'images_per_second'):.0f} "
        f"| {statistics.median(ratios):.2f} x ({min(ratios):.2f}-{max(ratios):.2f}) "
        f"| {median(theirs, 'top1'):.1%} | {median(ours, 'top1'):.1%} |"
    )


def median(results: list[dict[str, float]], key: str) -> float:
    return statistics.median(result[key] for result in results)


def torchrun(ranks: int, command: list[str]) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks))}
    env["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), env.get("PYTHONPATH", "")])
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*line, "--nproc-per-node", str(ranks), *command],
        env=env,
        cwd=HERE.parent,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def seed_recipe(
    stem: Stem, data: Path, given: argparse.Namespace, scratch: Path, *more: str
) -> dict[str, float]:
    to = scratch / "recipe.json"
    flags = ["--data", str(data), "--stem", stem.name, "--to", str(to)]
    flags += ["--batch-size", str(stem.batch), "--lr", str(stem.lr)]
    flags += ["--epochs", str(given.epochs), *more]
    torchrun(given.ranks, ["-m", "benchmarks.seed_recipe", *flags])
    result: dict[str, float] = json.loads(to.read_text())
    return result


def trainer(stem: Stem, data: Path, given: argparse.Namespace, scratch: Path) -> dict[str, float]:
    found = train(stem, data, given, scratch)
    spans = [record for record in found if record["kind"] == "train"]
    steps = [b["step"] - a["step"] for a, b in zip([{"step": 0}, *spans], spans, strict=False)]
    seconds = sum(record["step_ms"] * n / 1000 for record, n in zip(spans, steps, strict=True))
    top1 = [record["top1"] for record in found if record["kind"] == "eval"][-1]
    return {"images_per_second": spans[-1]["samples"] / seconds, "top1": top1}


def train(
    stem: Stem, data: Path, given: argparse.Namespace, scratch: Path, *more: str
) -> list[dict[str, Any]]:
    out = scratch / "out"
    flags = ["--model", "resnet18", "--stem", stem.name, "--data", str(data), "--out", str(out)]
    flags += ["--batch-size", str(stem.batch), "--epochs", str(given.epochs), "--lr", str(stem.lr)]
    flags += ["--amp", "bf16", "--warmup-epochs", "0.2", "--resume", "none", *more]
    torchrun(given.ranks, ["-m", "trainer", *flags])
    return records(out / "metrics.jsonl")


def shares(stem: Stem, given: argparse.Namespace, scratch: Path) -> list[str]:
    """Measure the shares of an epoch outside forward, backward and optimizer, and in its checkpoint."""
    found = train(stem, subset(stem.images, scratch), given, scratch)
    spans = [record for record in found if record["kind"] == "train"]
    data_share = statistics.median(r["data_ms"] / r["step_ms"] for r in spans)
    speed = statistics.median(record["img_s"] for record in spans)
    saving = statistics.median(r["paused"] for r in found if r["kind"] == "checkpoint")
    share = saving / (EPOCH / speed)
    return [
        f"- making batches (crop, flip, normalize): {data_share:.2%} of a step (bar 3%)",
        f"- a checkpoint: {saving:.2f} s, {share:.2%} of an epoch of {EPOCH:,} images at this "
        "speed (bar 2%)",
    ]


if __name__ == "__main__":
    sys.exit(main())
