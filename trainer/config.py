"""`Config`: all settings of a run, as one frozen value. The flags are made from its fields.

Each field defines the help text of its flag and the flag's other spellings (those of torchvision,
timm and older DDP tutorials). `--print-config` prints the value; every checkpoint and the first
line of metrics.jsonl contain it. The presets are at the end of this file.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .errors import UsageError

NEEDS_GPU = "--bn sync needs GPUs; use --bn local or frozen on a CPU"
AUGMENTATIONS = ("crop", "flip", "alternating-flip", "none")
GROUPS = {  # the first flag of each group, and the group's title in --help
    "model": "network",
    "data": "images",
    "augment": "augmentation",
    "batch_size": "batch",
    "loss": "optimizer",
    "epochs": "schedule",
    "preset": "run",
    "resume": "checkpoints and resume",
    "out": "output",
}


def flag(
    default: Any,
    text: str,
    *aliases: str,
    choices: tuple[str, ...] | None = None,
    bare: str | None = None,
    kind: type | None = None,
    noted: bool = True,
) -> Any:
    """Define a field of Config. `bare` is the value of the flag if it is given without one.
    Settings that are `noted` affect the results, so a resumed run warns if one has changed."""
    kind = kind or type(default)
    about = {"help": text, "aliases": aliases, "choices": choices, "bare": bare, "kind": kind}
    return field(default=default, metadata={**about, "noted": noted})


@dataclass(frozen=True)
class Config:
    # fmt: off
    model: str = flag("resnet18", "resnet8, resnet20, resnet18, resnet34, resnet50, resnet101, "
                      "resnet152, or package.module:function", "--arch", "--net", noted=False)
    stem: str = flag("auto", "first layers: cifar (3x3), imagenet (7x7), or auto (by image size)",
                     choices=("auto", "cifar", "imagenet"), noted=False)
    width: int | None = flag(None, "channels in the first stage", kind=int, noted=False)
    num_classes: int | None = flag(None, "number of classes (default: from the data)", kind=int,
                                   noted=False)
    weights: str = flag("", "weights to start from (a .pth file), for fine-tuning", noted=False)
    bn: str = flag("local", "batch-norm statistics: per rank (local), over all ranks (sync, needs "
                   "GPUs), or fixed (frozen)", choices=("local", "sync", "frozen"))
    channels_last: bool = flag(True, "NHWC memory layout")
    compile: bool = flag(False, "compile the network with torch.compile, inside DDP",
                         "--torchcompile")
    compile_mode: str = flag("default", "what torch.compile optimizes for",
                             choices=("default", "reduce-overhead", "max-autotune"))

    data: str = flag("", "a folder of images, synthetic, download, or package.module:function",
                     "--data-path", "--data-dir", "--data-url", noted=False)
    synthetic_train: int = flag(5000, "number of synthetic training images", "--dataset-size",
                                noted=False)
    synthetic_test: int = flag(1000, "number of synthetic test images", noted=False)
    synthetic_size: int = flag(32, "width of a synthetic image in pixels", noted=False)
    val_split: float = flag(0.0, "share of the training images held out to choose the best epoch "
                            "(0 to 0.5)", noted=False)
    image_size: int = flag(224, "width in pixels of images from an ImageFolder tree")
    train_size: str = flag("", "width of training images from a tree: fixed (176), or growing from "
                           "epoch to epoch (128:192); default: --image-size", "--train-crop-size")
    workers: int = flag(4, "processes per rank that load images of a tree or of your own dataset",
                        "-j", "--num-workers", noted=False)

    augment: str = flag("crop,flip", "none, or a comma-separated list of crop, flip, "
                        "alternating-flip and package.module:function")
    randaugment: int = flag(0, "RandAugment magnitude for image folders, 1 to 30, usually 9 "
                            "(0: off)", "--ra-magnitude")
    trivialaugment: bool = flag(False, "TrivialAugment for image folders")
    cutout: int = flag(0, "width in pixels of a square erased from each image (0: off)")
    random_erase: float = flag(0.0, "share of the images from which a random box is erased",
                               "--reprob")
    mixup: float = flag(0.0, "alpha of mixup (0: off); with --cutmix, each micro-batch gets one of the two",
                        "--mixup-alpha")
    cutmix: float = flag(0.0, "alpha of CutMix (0: off)", "--cutmix-alpha")

    batch_size: int | None = flag(None, "images per rank and optimizer step (default 128)", "-b",
                                  "--batch-per-rank", "--batchSize", kind=int, noted=False)
    global_batch: int | None = flag(None, "images per optimizer step across all ranks",
                                    "--global-batch-size", kind=int, noted=False)
    grad_accum_steps: int = flag(1, "micro-batches per rank and optimizer step",
                                 "--grad-accu-steps", noted=False)
    elastic: str = flag("exact", "when resuming on a different number of ranks: keep the "
                        "checkpoint's micro-batches (exact: same result), or use one per rank "
                        "(even: faster, but different batch-norm statistics)",
                        choices=("exact", "even"), noted=False)
    canonical_shards: int = flag(0, "cut each batch into this many shards, for bitwise equal weights "
                                 "at every world size that divides this number (0: off)",
                                 noted=False)
    drop_last: bool = flag(False, "drop the last, smaller batch of an epoch", noted=False)
    amp: str = flag("auto", "mixed precision; auto: bf16 on GPUs that support it, else off",
                    choices=("auto", "off", "bf16", "fp16"), bare="bf16")
    grad_exchange: str = flag("auto", "how ranks add up gradients; fp64: same sum on any number of "
                              "ranks; bf16: half the bytes; auto: fp64 on CPUs, fp32 on GPUs",
                              "--grad-compression", choices=("auto", "fp64", "fp32", "bf16"),
                              bare="bf16")

    loss: str = flag("cross-entropy", "cross-entropy, or package.module:function", "--criterion")
    opt: str = flag("sgd", "sgd, adam, adamw, or package.module:function such as torch.optim:RAdam",
                    noted=False)
    lr: float = flag(0.1, "peak learning rate", "--learning-rate")
    lr_scaling: str = flag("none", "how --lr grows with the global batch divided by --lr-base-size",
                           choices=("none", "linear", "sqrt"))
    lr_base_size: int = flag(256, "global batch that --lr is meant for")
    momentum: float = flag(0.9, "momentum of SGD")
    nesterov: bool = flag(True, "Nesterov momentum")
    weight_decay: float = flag(5e-4, "weight decay", "--wd")
    norm_weight_decay: float | None = flag(
        None, "weight decay of batch norms and biases (default: --weight-decay)", kind=float)
    label_smoothing: float = flag(0.0, "label smoothing, at least 0 and below 1", "--smoothing")
    clip_grad_norm: float = flag(0.0, "maximum gradient norm (0: no limit)", "--clip-grad")
    ema: float = flag(0.0, "decay of the moving average of the weights, which replaces them in "
                      "evaluations (0: off)", "--ema-decay")

    epochs: int = flag(10, "passes over the training images", "--num-epochs")
    max_steps: int = flag(0, "stop after this many steps (0: train for --epochs)")
    max_time: str = flag("", "save and stop after this time, as after a signal: 90s, 30m, 2h30m",
                         noted=False)
    schedule: str = flag("cosine", "learning rate over the run: cosine, multistep, triangular, "
                         "constant, or package.module:function", "--lr-scheduler", "--sched")
    warmup_epochs: float = flag(1.0, "epochs of linear warm-up", "--lr-warmup-epochs", "--warm")
    milestones: str = flag("60,120,160", "epochs at which multistep lowers the rate",
                           "--lr-milestones")
    gamma: float = flag(0.2, "factor by which multistep lowers the rate", "--lr-gamma")
    min_lr: float = flag(0.0, "learning rate at the end of the schedule", "--lr-min")

    preset: str = flag("", "a named set of defaults, which flags override", noted=False)
    seed: int = flag(0, "seed for the initial weights, sample order and augmentation",
                     "--random-seed", noted=False)
    deterministic: bool = flag(False, "use only deterministic algorithms",
                               "--use-deterministic-algorithms")
    device: str = flag("auto", "where to train", choices=("auto", "cpu", "cuda"), noted=False)
    spawn: int = flag(0, "start this many ranks on this machine, without torchrun", noted=False)
    threads: int = flag(0, "CPU threads per rank (0: torch's choice)", noted=False)
    timeout: float = flag(120.0, "seconds without a sign of life after which a rank counts as lost",
                          noted=False)
    check_every: int = flag(1000, "steps between checks that replicas are equal (0: off)",
                            noted=False)
    profile: str = flag("", "write a Chrome trace of these steps on each rank, counted from the "
                        "start or resume: 10:20", noted=False)

    resume: str = flag("", "auto, none, or a checkpoint folder (default: auto under ddpctl, after "
                       "a restart or with --test-only; otherwise none)",
                       bare="auto", noted=False)
    resume_override: bool = flag(False, "accept a checkpoint made with different data, batch size "
                                 "or seed", noted=False)
    checkpoint_dir: str = flag("", "folder for ckpt/step-* (default: the output folder)",
                               "--model-dir", noted=False)
    save_every: str = flag("60s", "how often to save, in epochs (5ep), steps (500st) or seconds "
                           "(60s); 0: only at the end", noted=False)
    keep: int = flag(3, "how many of the newest checkpoints to keep, at least 2",
                     "--checkpoint-hist", noted=False)
    export_every: int = flag(1, "epochs between epoch_N.pth files; only the newest is kept "
                             "(0: none)", "--save-epoch", noted=False)

    out: str = flag("", "output folder (default: ./output)", "--output-dir", "--output",
                    noted=False)
    eval_every: int = flag(1, "epochs between evaluations", "--val-interval", noted=False)
    eval_batch_size: int = flag(500, "images per rank and evaluation step", noted=False)
    test_only: bool = flag(False, "evaluate the checkpoint, write eval.json and exit", noted=False)
    tta: str = flag("none", "also report tta_top1, the accuracy when each image is evaluated "
                    "together with its mirror image",
                    choices=("none", "mirror"), noted=False)
    metric: str = flag("", "also evaluate package.module:function(logits, labels) over a whole split",
                       noted=False)
    print_every: int = flag(50, "steps between progress lines", "--print-freq",
                            "--print-interval", noted=False)
    report_to: str = flag("", "call package.module:function with each line of metrics.jsonl",
                          noted=False)
    # fmt: on

    def problems(self) -> Iterator[str]:
        """Yield a line for each problem that can be found without looking at the machine or the data."""
        for limit, holds, names in LIMITS:
            for name in names.split():
                if not holds(getattr(self, name)):
                    yield f"--{name.replace('_', '-')} {getattr(self, name)}: must {limit}"
        if self.canonical_shards and self.grad_accum_steps > 1:
            yield "--canonical-shards cuts the batch itself; leave out --grad-accum-steps"
        if self.canonical_shards and self.grad_exchange != "auto":
            yield "--canonical-shards adds gradients in its own way; leave out --grad-exchange"
        if self.canonical_shards and self.bn == "sync":
            yield (
                "--canonical-shards gives each shard its own batch-norm statistics; use --bn local "
                "or frozen"
            )
        if self.canonical_shards and self.amp == "fp16":
            yield "--canonical-shards with --amp fp16: use --amp bf16, which needs no loss scale"
        if self.bn == "sync" and self.device == "cpu":
            yield NEEDS_GPU
        if self.test_only and self.resume == "none":
            yield "--test-only with --resume none: there is nothing to evaluate"
        for name in ("milestones", "save_every", "profile", "max_time", "train_size", "augment"):
            try:
                getattr(self, f"parsed_{name}")
            except ValueError:
                yield f"--{name.replace('_', '-')} {getattr(self, name)!r}: see --help for the format"

    @property
    def parsed_milestones(self) -> list[int]:
        return [int(part) for part in self.milestones.split(",") if part.strip()]

    @property
    def parsed_save_every(self) -> tuple[int, str]:
        """The count and its unit, such as (5, "ep"), (500, "st") or (60, "s"). A count of 0 means only
        at the end."""
        match = re.fullmatch(r"(\d+)(ep|st|s)?", self.save_every.strip())
        if not match:
            raise ValueError(self.save_every)
        return int(match[1]), match[2] or "ep"

    @property
    def parsed_max_time(self) -> int:
        """The limit in seconds, or 0 for no limit."""
        match = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", self.max_time.strip())
        if not match:
            raise ValueError(self.max_time)
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds

    @property
    def parsed_profile(self) -> tuple[int, int] | None:
        """The first and the last step to profile, counted from 1, or None if --profile is not set."""
        if not self.profile:
            return None
        first, last = map(int, self.profile.split(":"))
        if not 1 <= first <= last:
            raise ValueError(self.profile)
        return first, last

    @property
    def parsed_train_size(self) -> tuple[int, int]:
        """The widths of training images in the first and in the last epoch."""
        first, _, last = (self.train_size or str(self.image_size)).partition(":")
        if min(int(first), int(last or first)) < 1:
            raise ValueError(self.train_size)
        return int(first), int(last or first)

    @property
    def parsed_augment(self) -> list[str]:
        """The names of the augmentations, in order."""
        names = [name.strip() for name in self.augment.split(",")]
        if not all(name in AUGMENTATIONS or is_function_name(name) for name in names):
            raise ValueError(self.augment)
        return names


LIMITS: list[tuple[str, Callable[[Any], bool], str]] = [
    (
        "be at least 1",
        lambda value: value is None or value >= 1,
        "width num_classes synthetic_train synthetic_test synthetic_size image_size batch_size "
        "global_batch grad_accum_steps lr_base_size epochs eval_every eval_batch_size print_every "
        "timeout",  # in seconds; signs of life are half a second apart
    ),
    (
        "not be negative",
        lambda value: value >= 0,
        "canonical_shards lr weight_decay clip_grad_norm max_steps warmup_epochs min_lr seed spawn "
        "threads check_every export_every workers randaugment cutout mixup cutmix",
    ),
    ("be at least 2, in case the newest checkpoint is damaged", lambda value: value >= 2, "keep"),
    ("be between 0 and 0.5", lambda value: 0 <= value <= 0.5, "val_split"),
    ("be between 0 and 1", lambda value: 0 <= value <= 1, "random_erase"),
    ("be at least 0 and below 1", lambda value: 0 <= value < 1, "label_smoothing momentum ema"),
    ("be at most 30", lambda value: value <= 30, "randaugment"),
]


def is_function_name(text: str) -> bool:
    """Return whether a flag names a user's function, as package.module:function."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text) is not None


def named_function(flag_name: str, text: str) -> Callable[..., Any]:
    """Return the function that a flag names. Raises UsageError if it cannot be imported."""
    module, _, name = text.partition(":")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"{flag_name} {text}: {error}; is the module's folder on PYTHONPATH?"
        ) from error
    return function


def preset(**settings: Any) -> dict[str, Any]:
    return settings


PRESETS: dict[str, dict[str, Any]] = {
    # Flags take precedence over a preset. Batches are global, so a preset means the same on any
    # number of ranks; the exception is modelarts, with 128 images per rank.
    # The first three fix published DDP recipes; each of the others has a target of our own.
    #
    # 16 GPUs x 256 images, SGD 0.1 without a schedule, torchvision's ResNet-18 with its ImageNet
    # stem. Fixed: small-image stem, warm-up and decay, enough weight decay to regularize.
    "leimao": preset(
        model="resnet18", stem="cifar", global_batch=4096, epochs=100, schedule="cosine",
        warmup_epochs=5.0, opt="sgd", lr=0.1, lr_scaling="linear", momentum=0.9, weight_decay=5e-4,
    ),
    # Adam 0.01 times the number of GPUs, 128 images each. Fixed: Adam's rate does not grow linearly
    # with the batch, and 0.001 is its usual size.
    "modelarts": preset(
        model="resnet18", batch_size=128, epochs=100, schedule="cosine", warmup_epochs=1.0,
        opt="adam", lr=0.001, lr_scaling="sqrt", lr_base_size=128, weight_decay=0.0,
    ),
    # SGD 0.1 / 0.9 / 1e-4, 256 images in total, 200 epochs, the rate times 0.2 at epochs 60, 120 and
    # 160. Fixed: one global batch for any number of ranks.
    "rentainhe": preset(
        model="resnet18", global_batch=256, epochs=200, schedule="multistep", warmup_epochs=1.0,
        milestones="60,120,160", gamma=0.2,
        opt="sgd", lr=0.1, momentum=0.9, nesterov=False, weight_decay=1e-4,
    ),
    # Target: 95.4% to 95.7% on CIFAR-10, the usual range of this network and recipe.
    "baseline": preset(
        model="resnet18", global_batch=128, epochs=200, schedule="cosine", warmup_epochs=1.0,
        opt="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4,
    ),
    # Target: at least 94.5% on CIFAR-10 in at most a third of the baseline's time. The accuracy is unknown.
    "fast": preset(
        model="resnet18", global_batch=512, epochs=35, schedule="triangular", warmup_epochs=5.0,
        opt="sgd", lr=0.4, momentum=0.9, weight_decay=5e-4, label_smoothing=0.1,
        amp="bf16", compile=True, compile_mode="reduce-overhead", drop_last=True,
    ),
    # Target: 96% on CIFAR-10 in 180 s on one H200, without test-time augmentation. It takes 137 s;
    # the accuracy has not been measured. docs/trainer.md has the arithmetic.
    "speed96": preset(
        model="resnet18", global_batch=512, epochs=160, schedule="cosine", warmup_epochs=5.0,
        opt="sgd", lr=0.4, momentum=0.9, weight_decay=5e-4, label_smoothing=0.1, cutout=16, ema=0.999,
        amp="bf16", compile=True, compile_mode="reduce-overhead", drop_last=True,
        eval_every=20, export_every=0, save_every="0",
    ),
    # Target: 76.5% to 77.5% on ImageNet, the usual range of this network and recipe. Not measured.
    "imagenet": preset(
        model="resnet50", stem="imagenet", image_size=224, global_batch=1024, epochs=90,
        schedule="cosine", warmup_epochs=5.0, opt="sgd", lr=0.1, lr_scaling="linear", momentum=0.9,
        weight_decay=5e-5, norm_weight_decay=0.0, label_smoothing=0.1, ema=0.9999,
        amp="bf16", compile=True, drop_last=True, workers=12,
    ),
}  # fmt: skip
