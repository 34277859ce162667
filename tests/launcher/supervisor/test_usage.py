"""What a node reports about itself while it runs: versions, CPU and GPU use, and Prometheus metrics."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
from supervisors import spec

from launcher.logs.event_reader import parsed_event
from launcher.supervisor import usage
from launcher.supervisor.events import GpuLoad, Phase, Usage
from launcher.supervisor.journal import Journal, publish
from launcher.supervisor.main import Supervisor
from launcher.supervisor.metrics_file import STALE, MetricsFile
from launcher.supervisor.usage import Sampler, environment, means

GPUS = (GpuLoad(97, 40960, 81920),)


def test_the_environment_has_versions_and_the_names_of_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cret")
    found = environment()
    assert re.fullmatch(r"3\.\d+\.\d+\S*", found.versions["python"])
    assert {"kernel", "torch"} <= set(found.versions)
    assert "MY_TOKEN" in found.variables and "s3cret" not in repr(found)


def sampled(
    monkeypatch: pytest.MonkeyPatch, path: Path, script: str, interval: float = 2.0
) -> Usage:
    program = path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(usage, "INTERVAL", interval)
    sampler = Sampler()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if sample := sampler.turn():
            return sample
    raise AssertionError("no sample")


def test_a_sample_has_the_busy_cores_and_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sample = sampled(monkeypatch, tmp_path, "echo 97, 40960, 81920, 1980")
    assert sample.gpus == (GpuLoad(97, 40960, 81920, 1980),) and 0 <= sample.cores < 1000


def test_a_minute_of_samples_has_means_of_each_gpu() -> None:
    samples = deque(
        [(GpuLoad(90 + n, 4, 8, 1000), GpuLoad(0, 4, 8, n)) for n in range(6)], maxlen=6
    )
    assert means(samples) == (GpuLoad(92, 4, 8, 1000), GpuLoad(0, 4, 8, 2))
    samples.append((GpuLoad(90, 4, 8),))  # the driver lists one GPU fewer
    assert means(samples) == ()
    assert means(deque([()] * 5, maxlen=6)) == ()


def test_a_slow_driver_has_the_whole_interval_to_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sample = sampled(monkeypatch, tmp_path, "sleep 2.2; echo 97, 40960, 81920", interval=4.0)
    assert sample.gpus == GPUS


def test_a_driver_that_hangs_costs_a_sample_its_gpus_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert sampled(monkeypatch, tmp_path, "exec sleep 60").gpus == ()


def test_while_a_hung_nvidia_smi_cannot_be_killed_no_other_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=1000.0)
    monkeypatch.setattr(usage, "time", clock)
    monkeypatch.setattr(usage, "descendants", lambda pid: [])
    started: list[SimpleNamespace] = []

    def start(_: Sampler) -> SimpleNamespace:
        hung = SimpleNamespace(returncode=None, kill=lambda: None)
        hung.poll = lambda: hung.returncode
        started.append(hung)
        return hung

    monkeypatch.setattr(Sampler, "_ask", start)
    sampler = Sampler()

    def samples() -> int:
        count = 0
        for _ in range(1000):
            clock.now += 0.1
            count += sampler.turn() is not None
        return count

    assert (samples(), len(started)) == (9, 1)
    started[0].returncode = -9
    assert (samples(), len(started)) == (9, 2)


def test_without_nvidia_smi_there_are_samples_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert sampled(monkeypatch, tmp_path, "exit 127").gpus == ()


def test_each_sample_is_left_for_ps_with_the_ranks_of_the_node(tmp_path: Path) -> None:
    rank = SimpleNamespace(rank=3)
    node = SimpleNamespace(
        spec=spec(dir=str(tmp_path)),
        sampler=SimpleNamespace(turn=lambda: Usage(1.5, GPUS)),
        round=SimpleNamespace(
            phase=Phase.RUNNING,
            ranks=SimpleNamespace(alive=lambda: [rank]),
            liveness=SimpleNamespace(log_age=lambda: 0.0),
        ),
        journal=SimpleNamespace(try_write_event=lambda usage: None),
        metrics=SimpleNamespace(write=lambda *_: None),
    )
    Supervisor.take_sample(node)  # type: ignore[arg-type]
    assert parsed_event((tmp_path / "usage.json").read_bytes()) == Usage(1.5, GPUS, (), (3,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "metrics").mkdir()
    return tmp_path / "metrics"


def metrics_file(folder: Path) -> MetricsFile:
    made = spec(
        run_id="run-1", attempt=2, dir=str(folder.parent), metrics_dir=str(folder),
        output_dir=str(folder.parent),
    )  # fmt: skip
    return MetricsFile(made, Journal(str(folder.parent), "gpu1"))


def test_prometheus_never_reads_a_partial_file(folder: Path) -> None:
    lines = (
        '{"kind": "train", "step": 7, "loss": 0.5, "img_s": 900}\n{"kind": "eval"}\n{"kind": "tr'
    )
    (folder.parent / "metrics.jsonl").write_text(lines)
    file = metrics_file(folder)
    file.write(Usage(1.5, GPUS, ranks=(0, 1, 2)), log_age=3.0)
    assert [path.name for path in folder.iterdir()] == ["ddpctl-run-1-0.prom"]
    text = (folder / "ddpctl-run-1-0.prom").read_text()
    labels = 'run_id="run-1",attempt="2",node_rank="0"'
    for line in (
        f"ddpctl_ranks_running{{{labels}}} 3.0",
        f"ddpctl_train_loss{{{labels}}} 0.5",
        f"ddpctl_train_images_per_second{{{labels}}} 900.0",
        f'ddpctl_gpu_utilization_ratio{{{labels},gpu="0"}} 0.97',
        f'ddpctl_gpu_memory_used_bytes{{{labels},gpu="0"}} {float(40960 << 20)}',
    ):
        assert f"{line}\n" in text
    sample = re.compile(r'ddpctl_[a-z_]+\{[a-z_]+="[^"\\]*"(,[a-z_]+="[^"\\]*")*\} [-0-9.e+]+')
    assert all(sample.fullmatch(line) for line in text.splitlines())
    file.remove()
    assert list(folder.iterdir()) == []


def test_a_killed_supervisors_file_goes_with_the_next_run_and_a_living_ones_stays(
    folder: Path,
) -> None:
    for name, age in (("ddpctl-old-0.prom", 2 * STALE), ("ddpctl-new-0.prom", 5.0)):
        (folder / name).write_text("")
        os.utime(folder / name, (0, time.time() - age))
    (folder / "other.prom").write_text("")
    os.utime(folder / "other.prom", (0, 0))
    metrics_file(folder)
    assert {path.name for path in folder.iterdir()} == {"ddpctl-new-0.prom", "other.prom"}


def test_a_folder_that_cannot_be_written_is_reported_once(folder: Path) -> None:
    file = metrics_file(folder)
    folder.rmdir()
    file.write(Usage(0.0), 0.0)
    file.write(Usage(0.0), 0.0)
    journal = (folder.parent / "journal").read_text()
    assert journal.count("cannot write metrics to ") == 1 and "No such file or directory" in journal


def test_metrics_are_not_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "profile"
    victim.write_text("mine")
    (tmp_path / ".r.prom.new").symlink_to(victim)
    publish(str(tmp_path / "r.prom"), "metrics")
    assert (victim.read_text(), (tmp_path / "r.prom").read_text()) == ("mine", "metrics")
    assert (tmp_path / "r.prom").stat().st_mode & 0o777 == 0o644
