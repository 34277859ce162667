"""What one script lists of ~/.ddpctl, on this machine with a home folder of the test."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from launcher.errors import CommandFailed
from launcher.hosts import Host
from launcher.ssh.host_connection import HostConnection
from launcher.stop import inventory
from launcher.stop.inventory import (
    Inventory,
    OpenAttempt,
    parse_inventory,
    sizes_of,
    take_inventory,
)
from launcher.stop.prune_pushed import MIN_AGE, unused_trees
from launcher.supervisor.events import Clock
from launcher.supervisor.journal import Journal

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
DIGEST = "0" * 64
HERE = HostConnection(Host("local"))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".ddpctl"
    folder.mkdir()
    return folder


def test_an_entry_that_takes_too_long_to_measure_is_omitted(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store / "quick").mkdir()
    (store / "slow").mkdir()
    (tmp_path / "du").write_text('#!/bin/sh\ncase $3 in slow) exec sleep 60; esac; echo "4\t$3"\n')
    (tmp_path / "du").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(inventory, "SIZES", inventory.SIZES.replace("timeout 400", "timeout 0.2"))
    monkeypatch.setattr(inventory, "TIMEOUT", 5.0)
    assert sizes_of(HERE, ["quick", "slow"]) == {"quick": 4096}


def test_an_empty_home_has_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    inventory = take_inventory(HERE, folder=True)
    assert inventory.folder == f"{tmp_path}/.ddpctl"
    assert (dict(inventory.ages), inventory.busy, inventory.open_attempts) == ({}, set(), [])


def test_entries_have_their_ages_and_sizes(store: Path) -> None:
    names = ["datasets", f"datasets/{DIGEST}", f"datasets/.{DIGEST}.a1", "runs", "runs/r1", ".odd"]
    for name in names:
        (store / name).mkdir()
    (store / "runs/r1/file").write_bytes(b"x" * 50_000)
    os.utime(store / "datasets" / DIGEST, (time.time() - 100,) * 2)
    ages = take_inventory(HERE, folder=True).ages
    assert sorted(ages) == sorted(names)
    assert 100 <= ages[f"datasets/{DIGEST}"] < 160 and ages["runs/r1"] < 60
    sizes = sizes_of(HERE, ["runs/r1", "nowhere", ".odd"])
    assert set(sizes) == {"runs/r1", ".odd"} and sizes["runs/r1"] >= 50_000
    assert dict(take_inventory(HERE, folder=False).ages) == {}


def test_a_draft_is_busy_while_its_push_may_be_running(store: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    drafts = {
        "here": (f"{os.getpid()} {BOOT} none", 0),
        "ended": (f"{ended.pid} {BOOT} none", 0),
        "elsewhere": (f"{ended.pid} other-boot none", 3600),
        "long-ago": (f"{ended.pid} other-boot none", 90_000),
    }
    for name, (holder, age) in drafts.items():
        draft = store / "workdirs" / f".{DIGEST}.{name}"
        draft.mkdir(parents=True)
        (draft / "holder").write_text(f"{holder}\n")
        os.utime(draft, (time.time() - age,) * 2)
    busy = take_inventory(HERE, folder=True).busy
    assert {name.rpartition(".")[2] for name in busy} == {"here", "elsewhere"}


def test_open_attempts_are_listed_with_their_data_code_and_packages(store: Path) -> None:
    attempts = {}
    for name in ("open", "ended", "dead", "odd"):
        attempts[name] = store / "runs" / name / "nodes" / "0" / "attempt-2"
        attempts[name].mkdir(parents=True)
        for file in ("journal", "ballast"):
            (attempts[name] / file).touch()
        (attempts[name] / "host").write_text("gpu9\n")
    document = {"dataset_digest": "a" * 64, "workdir_digest": "b" * 64, "image_digest": "c" * 64}
    (attempts["open"] / "run.json").write_text(json.dumps(document, indent=1))
    (attempts["ended"] / "ballast").unlink()
    os.utime(attempts["dead"] / "journal", (1, 1))
    (attempts["odd"] / "host").write_text("two\nopen lines\n")
    (attempts["odd"] / "run.json").write_text(json.dumps({"dataset_digest": "d" * 64}))
    found = take_inventory(HERE, folder=True).open_attempts
    assert sorted(found, key=lambda each: each.run_id) == [
        OpenAttempt("odd", "twoopen lines", frozenset({"d" * 64})),
        OpenAttempt("open", "gpu9", frozenset({"a" * 64, "b" * 64, "c" * 64})),
    ]


@pytest.mark.parametrize(("program", "fault"), [("grep", "exit 127"), ("sed", "kill -9 $$")])
def test_a_list_of_processes_without_a_program_that_it_needs_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, fault: str
) -> None:
    tool = tmp_path / program
    tool.write_text(f"#!/bin/sh\n{fault}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    environment = {**os.environ, "DDPCTL_RUN_ID": "r1"}
    with subprocess.Popen(["sleep", "60"], env=environment) as process:
        try:
            with pytest.raises(CommandFailed, match=program):
                take_inventory(HERE, folder=False, run_id="r1")
        finally:
            process.kill()


def test_an_attempt_stays_open_on_a_full_disk_until_it_ends(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "set_blocking", lambda *_: None)  # this process's own stdout
    folder = store / "runs" / "r1" / "nodes" / "0" / "attempt-1"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"dataset_digest": DIGEST}))
    journal = Journal(str(folder), "gpu9")
    monkeypatch.setattr(journal, "_append", lambda entries: entries)
    journal.write_event(Clock(1.0, 0.1))
    assert (folder / "ballast").stat().st_size == 0
    [attempt] = take_inventory(HERE, folder=True).open_attempts
    assert attempt.digests == {DIGEST}
    journal.close()
    assert take_inventory(HERE, folder=True).open_attempts == []


def test_without_a_hosts_clock_nothing_there_counts_as_old_enough_to_remove() -> None:
    inventory = parse_inventory(f"host soon h /h\nentry 5 datasets/{DIGEST}\n", "gpu1")
    assert (inventory.folder, unused_trees(inventory, set())) == ("", [])


def test_a_tree_is_unused_if_it_is_not_new_not_busy_and_nobody_keeps_it() -> None:
    tree, draft = f"datasets/{DIGEST}", f"datasets/.{DIGEST}.a1"

    def unused(age: int = MIN_AGE, busy: str = "", keep: str = "") -> list[str]:
        ages = {tree: age, draft: age, "runs/r1": age, "datasets": age}
        return unused_trees(Inventory("h", "h", "/h", [], ages, {busy}, []), {keep})

    assert unused() == [tree, draft]
    assert unused(age=MIN_AGE - 1) == []
    assert unused(busy=draft) == [tree]
    assert unused(keep=DIGEST) == [draft]
