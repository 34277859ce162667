"""Export this node's metrics to Prometheus, in a file for node_exporter's textfile collector."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import time

from .events import Usage
from .journal import Journal, publish
from .spec import Spec

STALE = 600.0  # seconds; an older file is from a dead supervisor, as a live one writes every 10 s
TAIL = 65536  # bytes read from the end of metrics.jsonl
TRAIN = {"step": "step", "epoch": "epoch", "loss": "loss", "lr": "lr", "img_s": "images_per_second"}


class MetricsFile:
    """The metrics file, if the job sets a folder for it. It is deleted when the node ends."""

    def __init__(self, spec: Spec, journal: Journal) -> None:
        self._spec, self._journal = spec, journal
        self._began = time.time()
        name = "ddpctl-%s-%d.prom" % (spec.run_id, spec.node_rank)
        self._path = os.path.join(spec.metrics_dir, name) if spec.metrics_dir else None
        if spec.metrics_dir:
            for path in glob.glob(os.path.join(glob.escape(spec.metrics_dir), "ddpctl-*.prom")):
                with contextlib.suppress(OSError):  # another user's file, or already deleted
                    if time.time() - os.stat(path).st_mtime > STALE:
                        os.unlink(path)

    def write(self, usage: Usage, log_age: float) -> None:
        if self._path is None:
            return
        values = {
            "ranks_running": float(len(usage.ranks)),
            "attempt_started_timestamp_seconds": self._began,
            "last_output_timestamp_seconds": time.time() - log_age,
            "cpu_cores_busy": usage.cores,
            **{"train_" + name: value for name, value in self._training().items()},
        }
        lines = [self._line(name, value) for name, value in values.items()]
        for number, gpu in enumerate(usage.gpus):
            lines.append(self._line("gpu_utilization_ratio", gpu.use / 100, gpu=number))
            lines.append(self._line("gpu_memory_used_bytes", gpu.used << 20, gpu=number))
            lines.append(self._line("gpu_memory_bytes", gpu.total << 20, gpu=number))
        try:
            publish(self._path, "".join(sorted(lines)))
        except OSError as error:
            self._journal.say("cannot write metrics to %s: %s" % (self._path, error.strerror))
            self._path = None

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            if self._path:
                os.unlink(self._path)

    def _line(self, name: str, value: float, **labels: int) -> str:
        spec = self._spec
        ours = {"run_id": spec.run_id, "attempt": spec.attempt, "node_rank": spec.node_rank}
        labels_shown = ('%s="%s"' % label for label in {**ours, **labels}.items())
        return "ddpctl_%s{%s} %r\n" % (name, ",".join(labels_shown), float(value))

    def _training(self) -> dict[str, float]:
        """Return the trainer's newest numbers by name; {} on a node whose trainer writes none."""
        path, lines = os.path.join(self._spec.output_dir, "metrics.jsonl"), [b""]
        with contextlib.suppress(OSError), open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read().split(b"\n")
        for line in reversed(lines):
            with contextlib.suppress(Exception):  # an incomplete line, or one from another script
                entry = json.loads(line)
                if entry["kind"] == "train":
                    return {TRAIN[key]: float(entry[key]) for key in TRAIN if key in entry}
        return {}
