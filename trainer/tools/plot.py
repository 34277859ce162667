"""`trainer plot OUTPUT`: draw loss, accuracy and throughput from a run's metrics.jsonl."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError, TrainerError
from ..flags import Parser


def main(argv: Sequence[str]) -> int:
    """Draw the picture and print its path. Raises TrainerError."""
    parser = Parser(prog="trainer plot", description="Draw a run's curves.", allow_abbrev=False)
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="the run's output folder")
    parser.add_argument("--to", type=Path, metavar="PNG", help="default: OUTPUT/curves.png")
    given = parser.parse_args(list(argv))
    target = given.to or given.output / "curves.png"
    draw(records(given.output / "metrics.jsonl"), target)
    print(target)
    return 0


def records(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, without an incomplete last one."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}: pass a run's output folder") from None
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise DataError(f"{path}:{number}: not JSON: the file is damaged") from None
    return found


def draw(found: list[dict[str, Any]], target: Path) -> None:
    """Three panels over steps. Raises DataError if there is nothing to draw yet."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise TrainerError("drawing needs matplotlib: pip install 'ddpctl[plot]'") from None
    train = [record for record in found if record["kind"] == "train"]
    tested = [record for record in found if record["kind"] == "eval"]
    if not train and not tested:
        raise DataError("metrics.jsonl has no train and no eval line yet: nothing to draw")
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    loss, accuracy, speed = figure.subplots(1, 3)
    loss.plot(*columns(train, "loss"), label="train", color="#7aa6c2")
    loss.plot(*columns(tested, "loss"), label="test", color="#b3446c", marker="o", markersize=3)
    loss.set(title="loss", xlabel="step", ylim=(0, None))
    loss.legend(frameon=False)
    accuracy.plot(*columns(tested, "top1", 100), color="#b3446c", marker="o", markersize=3)
    accuracy.set(title="top-1, %", xlabel="step", ylim=(0, 100))
    speed.plot(*columns(train, "img_s"), color="#4c8c4a")
    speed.set(title="images/s", xlabel="step", ylim=(0, None))
    for panel in (loss, accuracy, speed):
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, dpi=120)


def columns(
    found: list[dict[str, Any]], key: str, scale: float = 1.0
) -> tuple[list[int], list[float]]:
    rows = [record for record in found if record.get(key) is not None]
    return [record["step"] for record in rows], [record[key] * scale for record in rows]
