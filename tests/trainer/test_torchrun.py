"""Under real torchrun, and alone: start, stop, crash and restart, from the command line."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_faults import tree_flags, tree_with_a_corrupt_file
from trainer_ranks import LEAKS, RANK_NAMES, TINY, Job, metrics, newest_state, same

from trainer.cli import main

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
TRAINER = ["-m", "trainer", *TINY]


def start(command: list[str], out: Path, *more: str) -> subprocess.Popen[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(LEAKS) and k not in RANK_NAMES}
    env |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*command, "--out", str(out), *more],
        env=env,
        cwd=out.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        text, _ = process.communicate(timeout=150)
    finally:
        process.kill()
    return process.returncode, text


def status(out: Path) -> dict[str, object]:
    return dict(json.loads((out / "status.json").read_text()))


def rank_pids(out: Path, process: subprocess.Popen[str], step: int, count: int = 2) -> list[int]:
    """Process ids in rank order from the start-up lines, once training has reached `step`."""
    deadline, text = time.monotonic() + 120, ""
    assert process.stdout
    while len(re.findall(r"pid (\d+)", text)) < count:
        line = process.stdout.readline()
        assert line and time.monotonic() < deadline, text
        text += line
    while last_step(out) < step:
        assert process.poll() is None and time.monotonic() < deadline, text
        time.sleep(0.01)
    return [int(pid) for _, pid in sorted(re.findall(r"rank (\d)/\d, .*pid (\d+)", text))]


def last_step(out: Path) -> int:
    return max((m["step"] for m in metrics(out) if m["kind"] == "train"), default=0)


def test_a_signal_to_torchrun_leaves_a_checkpoint_of_the_last_step(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start([*TORCHRUN, "2", *TRAINER], out, "--epochs", "500")
    rank_pids(out, process, 3)
    process.terminate()
    finish(process)
    assert status(out)["state"] == "preempted"
    assert (out / "ckpt" / f"step-{last_step(out):08d}").is_dir()


def test_a_killed_rank_and_torchruns_restart_resume_to_the_same_weights(tmp_path: Path) -> None:
    flags, out = ("--epochs", "8", "--save-every", "5st"), tmp_path / "run"
    process = start([*TORCHRUN, "2", "--max-restarts", "1", *TRAINER], out, *flags)
    os.kill(rank_pids(out, process, 12)[1], signal.SIGKILL)
    code, text = finish(process)
    assert code == 0, text
    assert "resumed from ckpt/step-" in text
    steps = [m["step"] for m in metrics(out) if m["kind"] == "train"]
    assert steps == list(range(1, 57))
    whole = Job(tmp_path / "whole", *flags, count=2).done()
    assert same(newest_state(out), newest_state(whole.out))
    assert status(out)["state"] == "completed"
    assert text.count("epoch 8  test: top-1") == 1
    # Rank 1 wrote nothing, and everything is where it should be.
    names = {path.name for path in out.iterdir()}
    assert names == {"ckpt", "metrics.jsonl", "status.json", "epoch_8.pth", "best.pth"}


def test_a_mistake_is_one_line_and_its_exit_code_is_passed_on(tmp_path: Path) -> None:
    command = [sys.executable, *TRAINER, "--spawn", "2", "--data", "/nowhere"]
    code, text = finish(start(command, tmp_path / "run"))
    assert code == 3, text
    lines = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "/nowhere" in lines[0], text
    assert status(tmp_path / "run")["state"] == "failed"


def test_torchrun_names_the_rank_that_failed(tmp_path: Path) -> None:
    """However slow the machine is: no rank waits for a time-out, which is longer than this test."""
    tree, bad = tree_with_a_corrupt_file(tmp_path, rank=1, world_size=2)
    flags = (*tree_flags(tree), "--timeout", "100000")
    code, text = finish(start([*TORCHRUN, "2", *TRAINER], tmp_path / "run", *flags))
    assert code == 1, text
    lines = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and str(bad) in lines[0], text
    cause = text.split("Root Cause")[1]
    assert re.search(r"rank +: 1 ", cause) and re.search(r"exitcode +: 3 ", cause)
    assert str(bad) in str(status(tmp_path / "run")["reason"])


def test_ranks_end_with_the_process_that_spawned_them(tmp_path: Path) -> None:
    process = start(
        [sys.executable, *TRAINER, "--spawn", "2"], tmp_path / "run", "--epochs", "5000"
    )
    ranks = rank_pids(tmp_path / "run", process, 2)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(ranks) == 2


def test_older_flags_count_nodes_and_start_the_ranks_of_this_one(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"tcp://127.0.0.1:{port}"
    nodes = []
    for node in ("0", "1"):
        flags = ("--init_method", url, "--rank", node, "--world_size", "2", "--spawn", "2")
        nodes.append(start([sys.executable, *TRAINER], tmp_path / "run", *flags))
    texts = []
    for process in nodes:
        code, text = finish(process)
        assert code == 0, text
        texts.append(text)
    who = r"^rank (\d)/4, node (\d)/2, local rank (\d)"
    assert sorted(re.findall(who, texts[0], re.M)) == [("0", "0", "0"), ("1", "0", "1")]
    assert sorted(re.findall(who, texts[1], re.M)) == [("2", "1", "0"), ("3", "1", "1")]


def test_spawn_under_torchrun_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    assert main(["--spawn", "2"]) == 2
    assert "--spawn with RANK in the environment" in capsys.readouterr().err


def test_alone_and_spawned_stop_with_75(tmp_path: Path) -> None:
    for more in ([], ["--spawn", "2"]):
        out = tmp_path / f"run{len(more)}"
        process = start([sys.executable, *TRAINER, *more], out, "--epochs", "500")
        deadline = time.monotonic() + 60
        while not any(m["kind"] == "train" for m in metrics(out)):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        code, text = finish(process)
        assert code == 75, text
        assert "SIGINT" in str(status(out)["reason"])


def test_help_and_mistakes_do_not_import_torch(tmp_path: Path) -> None:
    for argv in (["--help"], ["--bogus"], ["--print-config"]):
        code = "import sys; from trainer.cli import main\ntry: main(sys.argv[1:])\n"
        code += "except SystemExit: pass\nassert 'torch' not in sys.modules"
        done = subprocess.run(
            [sys.executable, "-c", code, *argv], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
