"""`ddpctl fetch`: a transfer that was cut off continues, and only verified files are kept."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from pathlib import Path

import pytest
from local_machine import Machine

from launcher.look.fetch import safe_path

SIZE = 400_000_000  # bytes; enough for a fetch to be met in the middle


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """With a run that has left a large file of its own."""
    made = Machine(tmp_path)
    made.ddpctl("launch", "hosts.yaml", "--no-check")
    with (output_of(made) / "big.bin").open("wb") as file:
        file.write(b"begins")
        file.truncate(SIZE)  # a hole takes no room and is read all the same
    return made


def output_of(machine: Machine) -> Path:
    """As on the host."""
    return machine.folder / "home" / ".ddpctl" / "runs" / machine.record()["run_id"] / "output"


def part_of(machine: Machine) -> Path | None:
    return next((machine.folder / "got" / "output").glob(".*.part"), None)


def test_a_fetch_that_was_killed_goes_on_where_it_was(machine: Machine) -> None:
    process = machine.start("fetch", "--to", "got")
    end = time.monotonic() + 100
    while not ((part := part_of(machine)) and part.stat().st_size):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    have = part.stat().st_size
    assert 0 < have < SIZE
    again = json.loads(machine.ddpctl("fetch", "--to", "got", "--json").stdout)
    assert (again["fetched"], again["bytes"], again["unseen"]) == (1, SIZE - have, [])
    assert (machine.folder / "got" / "output" / "big.bin").stat().st_size == SIZE
    assert part_of(machine) is None


def test_damaged_bytes_are_not_kept(machine: Machine) -> None:
    os.truncate(output_of(machine) / "big.bin", 1000)
    machine.ddpctl("fetch", "--to", "got")
    fetched = machine.folder / "got" / "output" / "big.bin"
    whole = fetched.read_bytes()
    digest = hashlib.sha256(whole).hexdigest()
    fetched.unlink()
    part = fetched.with_name(f".{digest[:24]}.part")
    part.write_bytes(b"not its beginning")
    failed = machine.ddpctl("fetch", "--to", "got", code=1)
    assert "big.bin changed while it was being fetched; fetch again" in failed.stderr
    assert not part.exists() and not fetched.exists()
    machine.ddpctl("fetch", "--to", "got")
    assert fetched.read_bytes() == whole


@pytest.mark.parametrize(
    ("path", "taken"),
    [
        (b"output/metrics.jsonl", True),
        (b"checkpoints/ckpt/step-1/a b", True),
        (b"../up", False),
        (b"/etc/passwd", False),
        (b"output/../../up", False),
        (b".git/hooks/pre-commit", False),
        (b"output", False),
        (b"nodes/0/attempt-1/flight-recorder/0-gloo-rank-1", True),
        (b"logs/node-0.log", False),
        (b"run.json", False),
    ],
)
def test_only_checkpoints_and_output_are_fetched(path: bytes, taken: bool) -> None:
    assert (safe_path(path) is not None) is taken
    assert safe_path(b"../" + path) is None


def test_a_destination_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.ddpctl("launch", "hosts.yaml", "--no-check")
    failed = machine.ddpctl("fetch", "--to", "/dev/null", code=2)
    assert "/dev/null" in failed.stderr and failed.stderr.count("\n") == 1
