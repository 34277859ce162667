from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from push_machines import Machine, Machines, push_to

from launcher.errors import PushFailed
from launcher.hosts import Cluster, Job
from launcher.plan.plan import IMAGE_FILE
from launcher.push.files.push_tree import parse_trees
from launcher.push.files.scan import scan_file
from launcher.push.push import Part
from launcher.push.push_report import HostsNotReady
from launcher.stop import prune_pushed
from launcher.stop.inventory import parse_inventory
from launcher.stop.prune_pushed import PruneResult, prune_unused, unused_trees
from launcher.terminal.console import Console


@pytest.fixture(autouse=True)
def at_any_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune_pushed, "MIN_AGE", 0)


def versions(machine: Machine, data: Path, count: int) -> list[str]:
    """Push several versions of one dataset; return their digests."""
    data.mkdir(exist_ok=True)
    digests = []
    for number in range(count):
        (data / "file").write_text(str(number))
        digests.append(str(push_to([machine], dataset=str(data)).report.dataset_digest))
    return digests


def prune(machine: Machine, data: Path, confirm: Callable[[str, str], bool]) -> PruneResult:
    cluster = Cluster((machine.connection.host,), Job(engine="process", dataset=str(data)))
    return prune_unused([machine.connection], cluster, confirm, Console())


def test_what_this_hosts_file_or_an_open_attempt_uses_is_kept(
    machines: Machines, tmp_path: Path
) -> None:
    """Whichever host runs the attempt: it may share this home and be in no hosts file of ours."""
    (machine,) = machines(1)
    first, ended, dead, current = versions(machine, tmp_path / "data", 4)
    home = machine.home / ".ddpctl"

    def attempt(run: str, digest: str) -> Path:
        folder = home / "runs" / run / "nodes" / "0" / "attempt-1"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"dataset_digest": digest}))
        (folder / "journal").touch()
        (folder / "ballast").touch()
        return folder

    attempt("open", first)
    (attempt("ended", ended) / "ballast").unlink()
    os.utime(attempt("dead", dead) / "journal", (1, 1))
    done = prune(
        machine,
        tmp_path / "data",
        lambda text, total: ended in text and "2 folders, " in total,
    )
    assert re.fullmatch(r"deleted 2 folders, .+", done.summary())
    gone = {f"datasets/{ended}", f"datasets/{dead}"}
    assert {tree.name for tree in done.trees} == gone
    assert {path.name for path in machine.trees("datasets")} == {first, current}
    assert not (home / "manifests" / ended).exists()


def test_the_image_file_that_this_hosts_file_uses_is_kept(
    machines: Machines, tmp_path: Path
) -> None:
    (machine,) = machines(1)
    image = tmp_path / "mine.sif"
    digests = []
    for content in ("old", "new"):
        image.write_text(content)
        digests.append(scan_file(str(image), IMAGE_FILE).manifest.digest)
        (machine.home / ".ddpctl" / "images" / digests[-1]).mkdir(parents=True)
    cluster = Cluster((machine.connection.host,), Job(engine="apptainer", image=str(image)))
    done = prune_unused([machine.connection], cluster, lambda text, total: True, Console())
    assert {tree.name for tree in done.trees} == {f"images/{digests[0]}"}


def test_a_folder_here_that_cannot_be_read_is_one_line_and_nothing_is_removed(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(cluster: Cluster, parts: set[str]) -> None:
        raise OSError(5, "Input/output error", cluster.job.dataset)

    (machine,) = machines(1)
    versions(machine, tmp_path / "data", 2)
    monkeypatch.setattr(prune_pushed, "scan_job", broken)
    with pytest.raises(PushFailed, match=r"Input/output error.*nothing was deleted"):
        prune(machine, tmp_path / "data", lambda *_: True)
    assert len(machine.trees("datasets")) == 2


def test_nothing_is_removed_without_confirmation(machines: Machines, tmp_path: Path) -> None:
    (machine,) = machines(1)
    versions(machine, tmp_path / "data", 2)
    done = prune(machine, tmp_path / "data", lambda *_: False)
    assert len(done.trees) == 1
    assert not done.removed
    assert len(machine.trees("datasets")) == 2


def test_with_a_part_only_that_part_is_removed(machines: Machines, tmp_path: Path) -> None:
    """`push --prune --workdir` leaves datasets, which take long to push again."""
    (machine,) = machines(1)
    cluster = Cluster((machine.connection.host,), Job(engine="process"))
    [old] = versions(machine, tmp_path / "data", 1)

    def prune_only(*parts: Part) -> list[str]:
        connections, yes = [machine.connection], lambda *_: True
        done = prune_unused(connections, cluster, yes, Console(), parts={*parts})
        return [tree.name for tree in done.trees]

    assert prune_only("workdir", "image") == []
    assert prune_only("dataset") == [f"datasets/{old}"]


def test_an_abandoned_draft_is_removed_too(machines: Machines, tmp_path: Path) -> None:
    (machine,) = machines(1)
    versions(machine, tmp_path / "data", 1)
    draft = machine.home / ".ddpctl" / "datasets" / ".abc.1"
    draft.mkdir()
    done = prune(machine, tmp_path / "data", lambda *_: True)
    assert [tree.name for tree in done.trees] == ["datasets/.abc.1"]
    assert not draft.exists()


def test_the_command_prints_one_document(machines: Machines, tmp_path: Path) -> None:
    (machine,) = machines(1)
    data = tmp_path / "data"
    data.mkdir()
    (data / "file").write_text("x")
    host = machine.connection.host
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text(
        f"hosts: [{{host: {host.host}, port: {host.port}, identity_file: {host.identity_file}}}]\n"
        "job: {dataset: data}\n"
    )

    def ddpctl(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "launcher", "push", str(hosts), *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    done = ddpctl("--dataset", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["version"] == 1
    assert document["ok"]
    assert document["hosts"][0]["files_sent"] == 1
    assert document["sent_bytes"] == document["hosts"][0]["received_bytes"] > 0
    assert "1 host ready" in done.stderr
    assert json.loads(ddpctl("--prune", "--json", "-y").stdout)["unused"] == []
    with hosts.open("a") as file:
        file.write(f"spares: [{{host: {host.host}, port: 1}}]\n")
    done = ddpctl("--dataset", "--json")
    spare = json.loads(done.stdout)
    assert (done.returncode, spare["ok"], bool(spare["hosts"][1]["error"])) == (0, True, True)
    (data / "out").symlink_to("/etc/passwd")
    failed = ddpctl("--dataset", "--json")
    assert failed.returncode == 5
    assert failed.stderr.count("\n") == 1
    assert "is a link that leaves the folder" in failed.stderr


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_without_a_terminal_prune_refuses_unless_told_yes(
    machines: Machines, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    (machine,) = machines(1)
    versions(machine, tmp_path / "data", 2)
    host = machine.connection.host
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text(
        f"hosts: [{{host: {host.host}, port: {host.port}, identity_file: {host.identity_file}}}]\n"
        "job: {dataset: data}\n"
    )
    for tree in machine.trees("datasets"):
        os.utime(tree, (1, 1))
    argv = [sys.executable, "-m", "launcher", "push", str(hosts), "--prune", *flags]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pass -y" in done.stderr
    assert len(machine.trees("datasets")) == 2
    done = subprocess.run([*argv, "-y"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(machine.trees("datasets")) == 1


def test_nothing_is_removed_from_a_host_whose_engine_does_not_answer(
    machines: Machines, tmp_path: Path
) -> None:
    (good,) = machines(1)
    (blind,) = machines(1, DOCKER_HOST="unix:///nowhere/docker.sock")
    data = tmp_path / "data"
    versions(good, data, 2)
    versions(blind, data, 2)
    hosts = tuple(machine.connection.host for machine in (good, blind))
    cluster = Cluster(hosts, Job(engine="process", dataset=str(data)))
    with pytest.raises(HostsNotReady) as caught:
        prune_unused([good.connection, blind.connection], cluster, lambda *_: True, Console())
    assert list(caught.value.failures) == [blind.connection.name]
    assert "the Docker daemon is not running" in str(caught.value)
    assert len(good.trees("datasets")) == 1
    assert len(blind.trees("datasets")) == 2


def test_a_tree_that_another_host_with_the_same_home_uses_is_kept(
    machines: Machines, tmp_path: Path
) -> None:
    """The pid of the run means something on one of the two hosts only."""
    one, other = machines(2, share=tmp_path / "nfs")
    data = tmp_path / "data"
    versions(one, data, 2)
    cluster = Cluster(
        (one.connection.host, other.connection.host), Job(engine="process", dataset=str(data))
    )
    found: list[str] = []
    prune_unused(
        [one.connection, other.connection],
        cluster,
        lambda text, _: bool(found.append(text)),
        Console(),
    )
    assert found[0].count("datasets/") == 1  # one home, one line


def test_names_from_a_host_are_checked_before_they_are_used() -> None:
    digest = "0" * 64
    good = f"entry 1 datasets/{digest}\nentry 1 workdirs/.{digest}.abc-1\n"
    bad = "".join(
        f"entry {rest}\n"
        for rest in (
            "1 ../.ssh",
            "1 datasets/..",
            "1 /etc",
            "1 datasets/$(reboot)",
            "1 datasets/a b",
        )
    )
    inventory = parse_inventory(
        f"host 100 h /home/.ddpctl\n{good}{bad}entry many workdirs/x\n", "h"
    )
    assert unused_trees(inventory, set()) == [f"datasets/{digest}", f"workdirs/.{digest}.abc-1"]
    trees = parse_trees(f"earlier ../../x\nearlier {digest}\nresume ../x 3\nfree lots\nrubbish\n")
    assert trees.earlier == (digest,)
    assert trees.draft is None
    assert trees.free is None
