"""Run the same training in several ways, and compare them in one table.

    python -m benchmarks.modes --data ./data --model resnet18 --epochs 2
    python -m benchmarks.modes --techniques --data ./data --model resnet18 --epochs 2
    python -m benchmarks.modes --scaling 1,2,4,8 --data ./data --model resnet18 --epochs 2

The default rows are DP, DDP, DP+AMP and DDP+AMP. DP is one process on one device, like
nn.DataParallel with one device; examples/four_modes runs nn.DataParallel on all devices. With
--techniques, each row adds one technique to the last one; with --scaling, each row has a different
number of ranks. All rows have the same global batch.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainer.config import Config
from trainer.errors import TrainerError, UsageError, print_error
from trainer.parse_flags import Parser, as_json, parse


@dataclass(frozen=True)
class Row:
    """One way to train: its name, its number of ranks and its flags."""

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
    """Print the table or JSON. Flags that this script does not know are passed to every training."""
    parser = Parser(
        prog="benchmarks.modes",
        description="Train in several ways and compare them; all other flags are the trainer's.",
    )
    parser.add_argument("--ranks", type=int, default=2, help="ranks in the DDP rows (default 2)")
    parser.add_argument("--techniques", action="store_true", help="add one technique at a time")
    parser.add_argument("--scaling", metavar="N,N", help="repeat with each number of ranks")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    given, common = parser.parse_known_args(list(argv))
    rows = technique_rows(given.ranks) if given.techniques else mode_rows(given.ranks)
    if given.scaling:
        rows = scaling_rows(given.scaling)
    config = with_global_batch(parse(common, os.environ)[0], max(row.ranks for row in rows))
    results = [run(row, config) for row in rows]
    if given.json:
        print(json.dumps({"version": 1, "rows": [asdict(result) for result in results]}, indent=2))
    else:
        print(table(results))
    return 0


def with_global_batch(config: Config, ranks: int) -> Config:
    """Return the same settings, with the global batch size that they amount to on `ranks` ranks."""
    batch = config.global_batch or (config.batch_size or 128) * ranks
    return replace(config, batch_size=None, global_batch=batch)


def mode_rows(ranks: int) -> list[Row]:
    plain, mixed = ("--amp", "off"), ("--amp", "bf16")
    without = [Row("DP", 1, plain), Row("DDP", ranks, plain)]
    return [*without, Row("DP+AMP", 1, mixed), Row("DDP+AMP", ranks, mixed)]


def scaling_rows(text: str) -> list[Row]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--scaling {text}: expected numbers of ranks, such as 1,2,4") from None
    return [Row(f"{count} rank(s)", count, ()) for count in counts]


def technique_rows(ranks: int) -> list[Row]:
    techniques = {
        "fp32": ("off", "--no-channels-last", "--no-compile"),
        "+ bf16": ("bf16", "--no-channels-last", "--no-compile"),
        "+ channels_last": ("bf16", "--channels-last", "--no-compile"),
        "+ compile": ("bf16", "--channels-last", "--compile"),
        "+ CUDA graphs": ("bf16", "--compile", "--compile-mode", "reduce-overhead"),
    }
    return [Row(name, ranks, ("--amp", *flags)) for name, flags in techniques.items()]


def run(row: Row, config: Config) -> Result:
    """Train once, in a new folder. Raises TrainerError if the training fails."""
    with tempfile.TemporaryDirectory(prefix="trainer-bench-") as out:
        settings = Path(out) / "bench.json"
        settings.write_text(as_json(config))
        command = [sys.executable, "-m", "trainer", "--config", str(settings), *row.flags]
        command += ["--out", out, "--checkpoint-dir", out, "--resume", "none"]
        command += ["--save-every", "0", "--export-every", "0"]
        if row.ranks > 1:
            command += ["--spawn", str(row.ranks)]
        print(f"{row.name} ...", file=sys.stderr, flush=True)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            printed = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no output"]
            raise TrainerError(f"{row.name}: exit code {done.returncode}: {printed[-1]}")
        return measured(row, records(Path(out) / "metrics.jsonl"))


def note_cpu_time(line: dict[str, Any]) -> None:
    """Record this process's CPU time with each progress line, for --report-to."""
    if line["kind"] == "train":
        with Path(os.environ["CPU_TIMES"]).open("a") as file:
            file.write(json.dumps([line["samples"], time.process_time()]) + "\n")


def records(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a metrics.jsonl."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def measured(row: Row, lines: Sequence[dict[str, Any]]) -> Result:
    """Return a run's speed: that of the median interval, so that a slow start does not count."""
    speeds = [line["img_s"] for line in lines if line["kind"] == "train"]
    evaluations = [line["top1"] for line in lines if line["kind"] == "eval"]
    start = next(line for line in lines if line["kind"] == "start")
    images = start["global_batch"] * start["steps_per_epoch"]
    speed = statistics.median(speeds)
    return Result(row.name, row.ranks, images / speed, speed, evaluations[-1])


def table(results: Sequence[Result]) -> str:
    """Return the table. x: the speed relative to the first row. efficiency: x per rank."""
    lines = [
        f"{'mode':<18}{'ranks':>6}{'s/epoch':>10}{'images/s':>11}{'x':>7}{'efficiency':>12}  top-1"
    ]
    first = results[0]
    for r in results:
        faster = r.images_per_second / first.images_per_second
        lines.append(
            f"{r.name:<18}{r.ranks:>6}{r.seconds_per_epoch:>10.2f}{r.images_per_second:>11.0f}"
            f"{faster:>7.2f}{faster * first.ranks / r.ranks:>12.0%}{r.top1:>8.2%}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except TrainerError as error:
        print_error(error)
        sys.exit(error.exit_code)
