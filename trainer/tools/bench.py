"""`trainer bench`: the same training in several ways, side by side in one table.

    python -m trainer bench --data ./data --model resnet18 --epochs 2
    python -m trainer bench --techniques --data ./data --model resnet18 --epochs 2
    python -m trainer bench --scaling 1,2,4,8 --data ./data --model resnet18 --epochs 2

The default rows are DP, DDP, DP+AMP and DDP+AMP. DP is one process on one device, as
nn.DataParallel on one device is; examples/four_modes runs nn.DataParallel on all of them. With
--techniques each row adds one technique to the row before it; with --scaling each has another
number of ranks. All rows have the same global batch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import TrainerError, UsageError
from ..flags import Parser, parse
from .plot import records
from .spawn import TRAINER

BATCH_FLAGS = (
    *("--batch-size", "--batch_size", "-b", "--batch-per-rank", "--batch_per_rank"),
    *("--global-batch", "--global_batch", "--global-batch-size", "--global_batch_size"),
)


@dataclass(frozen=True)
class Row:
    """One way to train: its name, its number of ranks and the flags that make it."""

    name: str
    ranks: int
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    name: str
    ranks: int
    seconds_per_epoch: float
    images_per_second: float
    top1: float


def main(argv: Sequence[str]) -> int:
    """Prints the table, or JSON. Flags that are not bench's own are passed to every training."""
    given, common = make_parser().parse_known_args(list(argv))
    rows = technique_rows(given.ranks) if given.techniques else mode_rows(given.ranks)
    if given.scaling:
        rows = scaling_rows(given.scaling)
    common += ["--global-batch", str(global_batch(common, max(row.ranks for row in rows)))]
    results = [run(row, common) for row in rows]
    if given.json:
        print(json.dumps({"version": 1, "rows": [asdict(result) for result in results]}, indent=2))
    else:
        print(table(results))
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="trainer bench",
        description="Train the same several ways; all other flags are the trainer's.",
        allow_abbrev=False,
    )
    parser.add_argument("--ranks", type=int, default=2, help="of the DDP rows (default 2)")
    parser.add_argument("--techniques", action="store_true", help="one technique at a time")
    parser.add_argument("--scaling", metavar="N,N", help="the same with N ranks each")
    parser.add_argument("--json", action="store_true", help="the table as JSON")
    return parser


def global_batch(common: list[str], ranks: int) -> int:
    """The global batch that these flags of the trainer mean for `ranks` ranks. Takes the batch
    flags out of `common`."""
    config, _ = parse(common, os.environ)
    for name in BATCH_FLAGS:
        while name in common:
            where = common.index(name)
            del common[where : where + 2]
    return config.global_batch or (config.batch_size or 128) * ranks


def mode_rows(ranks: int) -> list[Row]:
    plain, mixed = ("--amp", "off"), ("--amp", "bf16")
    return [
        Row("DP", 1, plain),
        Row("DDP", ranks, plain),
        Row("DP+AMP", 1, mixed),
        Row("DDP+AMP", ranks, mixed),
    ]


def scaling_rows(text: str) -> list[Row]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--scaling {text}: expected numbers of ranks, such as 1,2,4") from None
    return [Row(f"{count} rank(s)", count, ()) for count in counts]


def technique_rows(ranks: int) -> list[Row]:
    off = ("--amp", "off", "--no-channels-last", "--no-compile")
    mixed = ("--amp", "bf16", "--no-channels-last", "--no-compile")
    nhwc = ("--amp", "bf16", "--channels-last", "--no-compile")
    compiled = ("--amp", "bf16", "--channels-last", "--compile")
    return [
        Row("fp32", ranks, off),
        Row("+ bf16", ranks, mixed),
        Row("+ channels_last", ranks, nhwc),
        Row("+ compile", ranks, compiled),
    ]


def run(row: Row, common: Sequence[str]) -> Result:
    """One training, in its own folder. Raises TrainerError if it fails."""
    with tempfile.TemporaryDirectory(prefix="trainer-bench-") as out:
        command = [sys.executable, "-m", TRAINER, *common, *row.flags, "--out", out]
        command += ["--save-every", "0", "--export-every", "0"]
        if row.ranks > 1:
            command += ["--spawn", str(row.ranks)]
        print(f"{row.name} ...", file=sys.stderr, flush=True)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no output"]
            raise TrainerError(f"{row.name}: exit code {done.returncode}: {said[-1]}")
        return measured(row, records(Path(out) / "metrics.jsonl"))


def measured(row: Row, found: Sequence[dict[str, Any]]) -> Result:
    """From a run's metrics. The speed is the median interval's, so that a slow start does not count."""
    speeds = [record["img_s"] for record in found if record["kind"] == "train"]
    evaluations = [record["top1"] for record in found if record["kind"] == "eval"]
    start = next(record for record in found if record["kind"] == "start")
    images = start["global_batch"] * start["steps_per_epoch"]
    speed = statistics.median(speeds)
    return Result(row.name, row.ranks, images / speed, speed, evaluations[-1])


def table(results: Sequence[Result]) -> str:
    head = f"{'mode':<18}{'ranks':>6}{'s/epoch':>10}{'images/s':>11}{'x':>7}{'top-1':>9}"
    first = results[0].images_per_second
    lines = [
        f"{r.name:<18}{r.ranks:>6}{r.seconds_per_epoch:>10.2f}{r.images_per_second:>11.0f}"
        f"{r.images_per_second / first:>7.2f}{r.top1:>8.2%}"
        for r in results
    ]
    return "\n".join([head, *lines])
