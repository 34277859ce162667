"""Every command, with one evil host among honest ones: that host's error is one line, the exit code is as
documented, the honest hosts' part is complete, and the command ends soon, without a traceback and without
filling the memory.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from evil_answers import DOCKER, SCRIPTS
from evil_host import EvilCluster
from fakes import messages

from launcher.outcomes import Exit

pytestmark = pytest.mark.slow

LONGEST = 20.0  # seconds; most take less than one on an idle machine
MOST_MEMORY = 200_000  # kB that a command may add
MOST_LINES = 3  # about one host: a notice, its error, what to do next
Honest = Callable[[EvilCluster, str, str], bool]


def runs_are_listed(cluster: EvilCluster, out: str, err: str) -> bool:
    return cluster.run_id in out


def nodes_are_gone(cluster: EvilCluster, out: str, err: str) -> bool:
    return not any(host.nodes for host in cluster.good)


def folders_are_gone(cluster: EvilCluster, out: str, err: str) -> bool:
    return not any((host.home / ".ddpctl").exists() for host in cluster.good)


def lines_are_shown(cluster: EvilCluster, out: str, err: str) -> bool:
    return all(f"line of {host.name}" in out for host in cluster.good)


def commands_have_run(cluster: EvilCluster, out: str, err: str) -> bool:
    return all(host.count("exec") for host in cluster.good)


def hosts_were_asked(cluster: EvilCluster, out: str, err: str) -> bool:
    return all(host.asked for host in cluster.good)


def files_are_here(cluster: EvilCluster, out: str, err: str) -> bool:
    [logs] = cluster.folder.glob("fetched/logs/node-2.log")
    names = [path.name for path in cluster.folder.rglob("fetched/**/*.txt")]
    return sorted(names) == ["good1.txt", "good2.txt"] and "line of good2" in logs.read_text()


def the_page_is_written(cluster: EvilCluster, out: str, err: str) -> bool:
    return "<html" in Path("page.html").read_text()


@dataclass(frozen=True)
class Command:
    line: str
    honest: Honest
    codes: tuple[int, ...] = (Exit.UNREACHABLE, Exit.DONE)


UNCONFIRMED = (Exit.UNCONFIRMED, Exit.DONE)
REFUSED = (Exit.PREFLIGHT, Exit.UNREACHABLE, Exit.FAILED)
COMMANDS = [
    Command("ps --all --nodes", runs_are_listed),
    Command("kill {run}", nodes_are_gone, UNCONFIRMED),
    Command("kill {hosts} -y", nodes_are_gone, UNCONFIRMED),
    Command("kill --all {hosts} -y", nodes_are_gone, UNCONFIRMED),
    Command("kill --strays {hosts} -y", hosts_were_asked, UNCONFIRMED),
    Command("clean {hosts} --kill -y", folders_are_gone, (*UNCONFIRMED, Exit.UNREACHABLE)),
    Command("check {hosts}", hosts_were_asked, (Exit.DONE, *REFUSED)),
    Command("logs {run}", lines_are_shown),
    Command("fetch {run} --to fetched", files_are_here, (Exit.DONE, Exit.FAILED, Exit.UNREACHABLE)),
    Command("report {run} -o page.html", the_page_is_written),
    Command("exec {run} --all -- true", commands_have_run, (*range(1, 7), Exit.DONE)),
    Command("stacks {run}", hosts_were_asked, (Exit.DONE, Exit.FAILED, Exit.UNREACHABLE)),
    Command("push code.yaml --workdir", hosts_were_asked, (Exit.DONE, Exit.PUSH, Exit.UNREACHABLE)),
    Command("push {hosts} --prune -y", hosts_were_asked, (Exit.DONE, Exit.PUSH, Exit.UNREACHABLE)),
    Command("launch code.yaml --detach", hosts_were_asked, (Exit.DONE, *REFUSED, Exit.PUSH)),
    Command("resume {run} --detach", hosts_were_asked, (Exit.USAGE, *REFUSED, Exit.PUSH)),
    Command("sanity {hosts}", hosts_were_asked, (*REFUSED, Exit.PUSH)),
]  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EvilCluster:
    cluster = EvilCluster(tmp_path / "cluster", monkeypatch)
    document = json.loads(Path(cluster.hosts_file).read_text())
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    document["job"]["workdir"] = str(tmp_path / "code")
    Path("code.yaml").write_text(json.dumps(document))
    return cluster


def peak_memory(*, reset: bool = False) -> int:
    """The most memory that this process has had since the last reset, in kB."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak)


def mistake(cluster: EvilCluster, command: Command) -> str:
    """What is wrong about the command's answer; "" if nothing is."""
    line = command.line.format(hosts=cluster.hosts_file, run=cluster.run_id)
    for host in cluster.good:
        host.asked.clear()
    memory, began = peak_memory(reset=True), time.monotonic()
    code, out, err = cluster.ddpctl(*line.split())
    if time.monotonic() - began > LONGEST:
        return f"took {time.monotonic() - began:.0f} s"
    if (added := peak_memory() - memory) > MOST_MEMORY:
        return f"took {added} kB of memory"
    if "internal error" in err or "Traceback" in err or code not in command.codes:
        return f"exit {code}: {err}"
    if len([each for each in messages(err) if "evil" in each]) > MOST_LINES:
        return f"many lines: {err}"
    return "" if command.honest(cluster, out, err) else f"the honest part is missing: {out}{err}"


# The commands share their readers: two of them meet every kind, the others what broke commands before.
THOROUGH = ("ps --all", "fetch")
KINDS = {
    "scripts": (SCRIPTS, ("noise", "deep event", "endless", "silent")),
    "docker": (DOCKER, ("a list of nothing", "odd labels", "deep", "a gzip bomb", "silent")),
}


@pytest.mark.parametrize("side", KINDS)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.line)
def test_one_host_s_nonsense_is_one_host_s_error(
    cluster: EvilCluster, side: str, command: Command
) -> None:
    """side: what is nonsense, what the host's commands print or what its engine answers."""
    mistakes = {}
    every, some = KINDS[side]
    for kind in every if command.line.startswith(THOROUGH) else some:
        cluster.launch_run()
        cluster.evil.turn(**{"scripts": "nothing", "docker": "honest", side: kind})
        if found := mistake(cluster, command):
            mistakes[kind] = found[:600]
    assert not mistakes, "\n".join(f"{kind}: {found}" for kind, found in mistakes.items())
