"""Being woken when a file grows: by the kernel, not by looking."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gangs import Gang, until

from launcher.launch.supervisor_bundle import supervisor_file
from launcher.plan.supervisor_spec import BUNDLE
from launcher.supervisor.file_watch import Growth


@pytest.fixture
def growth() -> Iterator[Growth]:
    made = Growth()
    yield made
    os.close(made.fd)


def wakes(growth: Growth) -> bool:
    """inotify's events are there once the call that caused them has returned."""
    return bool(select.select([growth.fd], [], [], 0)[0])


def test_a_file_that_grows_wakes_once_until_armed_again(growth: Growth, tmp_path: Path) -> None:
    log = tmp_path / "stdout.log"
    log.touch()
    assert growth.arm([str(log)]) and not wakes(growth)
    with log.open("a", buffering=1) as file:
        file.write("a line\n")
        assert wakes(growth)
        growth.heard()
        file.write("another\n")
        assert not wakes(growth)
        assert growth.arm([str(log)])
        file.write("a third\n")
        assert wakes(growth)


def test_a_folder_wakes_when_something_is_made_in_it(growth: Growth, tmp_path: Path) -> None:
    growth.arm([str(tmp_path)])
    (tmp_path / "attempt_0").mkdir()
    assert wakes(growth)


def test_only_what_was_not_armed_calls_for_another_look(growth: Growth, tmp_path: Path) -> None:
    assert growth.arm([str(tmp_path)])
    assert not growth.arm([str(tmp_path)])


def test_a_path_that_is_not_there_arms_nothing(growth: Growth, tmp_path: Path) -> None:
    assert not growth.arm([str(tmp_path / "none")])
    assert not growth.armed


def test_a_supervisor_reads_what_its_ranks_say_when_they_say_it(tmp_path: Path) -> None:
    made = Gang(tmp_path)
    [node] = made.add(1, ["chatter"])
    bundle, spec = node.folder / BUNDLE, node.folder / "spec.json"
    bundle.write_bytes(supervisor_file())
    spec.write_text(json.dumps(node.spec))
    patient = "import sys, supervisor.main as s; s.QUIET_TICK = 3600; sys.exit(s.main())"
    env = {**os.environ, "PYTHONPATH": str(bundle), "DDPCTL_RUN_ID": node.spec["run_id"]}
    argv = [sys.executable, "-c", patient, str(spec)]
    node.process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL)
    try:
        until(lambda: node.lines(0).count(b"still here") > 3, 60)
    finally:
        made.close()
