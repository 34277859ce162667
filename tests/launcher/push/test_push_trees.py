"""Trees to real hosts over real SSH."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from push_machines import Machine, Machines

from launcher.errors import DdpctlError, HostUnreachable, PushFailed
from launcher.hosts import Cluster, Host, Job
from launcher.push.files import manifest, tar
from launcher.push.files.push_tree import BEGIN, PREPARE, RECEIVE, TreePush
from launcher.push.files.scan import scan
from launcher.push.push import PushResult, push
from launcher.push.push_progress import PushProgress
from launcher.push.push_report import HostsNotReady
from launcher.push.sender import INSPECT
from launcher.push.transfer.fanout import Fanout
from launcher.ssh import client
from launcher.ssh.host_connection import HostConnection, connected
from launcher.ssh.stream import Completed, Stream
from launcher.terminal.console import Console

Pushes = Callable[..., PushResult]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "class 1").mkdir(parents=True)
    for number in range(40):
        (folder / "class 1" / f"{number}.bin").write_bytes(os.urandom(3000))
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o700)
    (folder / "new\nline").write_text("x")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe")).write_text("not UTF-8")
    (folder / "-rf").write_text("a name like a flag")
    (folder / "link").symlink_to("class 1/0.bin")
    (folder / "empty").mkdir()
    return folder


def same(one: Path, other: Path) -> bool:
    return (
        subprocess.run(["diff", "-r", "--no-dereference", one, other], check=False).returncode == 0
    )


def test_a_tree_arrives_complete_and_is_not_sent_twice(
    machines: Machines, pushes: Pushes, data: Path
) -> None:
    hosts = machines(2)
    first = pushes(hosts, dataset=str(data))
    for machine in hosts:
        (tree,) = machine.trees("datasets")
        assert tree.name == first.report.dataset_digest
        assert same(tree, data)
        assert (tree / "run.sh").stat().st_mode & 0o777 == 0o755
        assert (tree / "class 1" / "0.bin").stat().st_mode & 0o777 == 0o644
        assert not machine.drafts("datasets")
    assert first.report.hosts[0].files_sent == 44
    again = pushes(hosts, dataset=str(data))
    assert again.report.sent_bytes == 0
    assert again.report.hosts[1].dataset == "present"
    assert again.report.dataset_digest == first.report.dataset_digest


def test_only_what_changed_travels_and_the_old_version_stays_as_it_was(
    machines: Machines, pushes: Pushes, data: Path, tmp_path: Path
) -> None:
    (machine,) = machines(1)
    first = pushes([machine], dataset=str(data))
    old = machine.home / ".ddpctl" / "datasets" / str(first.report.dataset_digest)
    subprocess.run(["cp", "-a", old, tmp_path / "copy"], check=True)
    (data / "class 1" / "0.bin").write_bytes(b"changed")
    (data / "class 1" / "1.bin").unlink()
    (data / "class 1" / "2.bin").chmod(0o755)
    (data / "-rf").unlink()
    second = pushes([machine], dataset=str(data))
    new = machine.home / ".ddpctl" / "datasets" / str(second.report.dataset_digest)
    assert same(new, data)
    assert same(old, tmp_path / "copy")
    assert not (old / "class 1" / "2.bin").stat().st_mode & 0o111
    assert second.report.hosts[0].files_sent == 2
    assert second.report.hosts[0].files_skipped == 40
    untouched = "class 1/3.bin"
    assert (new / untouched).stat().st_ino == (old / untouched).stat().st_ino


def test_another_machine_learns_from_the_host_what_it_has(
    machines: Machines, pushes: Pushes, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine,) = machines(1)
    pushes([machine], dataset=str(data))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    (data / "one more").write_text("x")
    assert pushes([machine], dataset=str(data)).report.hosts[0].files_sent == 1


def test_no_host_waits_for_another_to_say_what_it_has(data: Path) -> None:
    tree = scan(str(data), code_only=False)
    earlier = manifest.make(tree.manifest.entries[1:])
    answered = threading.Event()

    def silent(*_: object, **__: object) -> Completed:
        assert answered.wait(10)
        return Completed(1, b"", b"")

    def answers(*_: object, **__: object) -> Completed:
        answered.set()
        return Completed(0, zlib.compress(earlier.text), b"")

    def ask(script: Callable[..., Completed]) -> manifest.Delta | None:
        node: Any = SimpleNamespace(script=script)
        return push_._delta(node, earlier.digest)

    push_ = TreePush(tree, "dataset", Fanout({}, PushProgress([], Console(quiet=True))))
    with ThreadPoolExecutor() as pool:
        first, second = pool.submit(ask, silent), pool.submit(ask, answers)
        assert (first.result(), second.result()) == (None, tree.manifest.after(earlier))


def test_a_workdir_is_pushed_beside_the_dataset_without_ignored_files(
    machines: Machines, pushes: Pushes, data: Path
) -> None:
    (machine,) = machines(1)
    (data / ".gitignore").write_text("*.bin\n")
    done = pushes([machine], dataset=str(data), workdir=str(data))
    (code,) = machine.trees("workdirs")
    assert code.name == done.report.workdir_digest
    assert not list(code.glob("**/*.bin"))
    assert (code / "run.sh").exists()


def test_a_host_that_fails_is_named_and_the_others_have_the_tree(
    machines: Machines, pushes: Pushes, data: Path
) -> None:
    good, bad = machines(2)
    (bad.home / ".ddpctl").write_text("in the way")
    with pytest.raises(HostsNotReady) as caught:
        pushes([good, bad], dataset=str(data))
    assert str(caught.value).startswith(f"{bad.connection.name}: dataset: ")
    assert caught.value.exit_code == 5
    assert same(good.trees("datasets")[0], data)
    assert [host.error is None for host in caught.value.report.hosts] == [True, False]


def test_a_full_disk_is_one_line_and_publishes_nothing(
    machines: Machines, pushes: Pushes, data: Path, tmp_path: Path
) -> None:
    (machine,) = machines(1)
    small = machine.home / ".ddpctl"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("may not mount")
    try:
        with pytest.raises(
            HostsNotReady, match="free up space on that disk, then push again"
        ) as caught:
            pushes([machine], dataset=str(data))
        assert "\n" not in str(caught.value)
        assert not machine.trees("datasets")
        subprocess.run(["mount", "-o", "remount,size=10m", small], check=True)
        assert same(
            small / "datasets" / str(pushes([machine], dataset=str(data)).report.dataset_digest),
            data,
        )
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_file_that_changes_during_the_push_leaves_nothing_behind(
    machines: Machines, pushes: Pushes, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = machines(2)
    whole = tar.stream

    def late(*args, **kwargs):  # type: ignore[no-untyped-def]
        (data / "class 1" / "7.bin").write_bytes(os.urandom(3000))
        return whole(*args, **kwargs)

    monkeypatch.setattr(tar, "stream", late)
    with pytest.raises(HostsNotReady, match=r"7\.bin: changed during the push") as caught:
        pushes(hosts, dataset=str(data))
    assert "\n" not in str(caught.value)
    assert not any(machine.trees("datasets") + machine.drafts("datasets") for machine in hosts)


def half_a_push(machine: Machine, data: Path) -> tuple[Path, Stream, int]:
    """Send half of a tree's bytes to a draft. Return the draft, the open stream and the whole size."""
    tree = scan(str(data), code_only=False)
    names = ["datasets", tree.manifest.digest, "cut"]
    draft = machine.home / ".ddpctl" / "datasets" / f".{names[1]}.cut"
    (draft / "tree").mkdir(parents=True)
    stream = machine.connection.open(["sh", "-c", RECEIVE, "sh", *names, "none"])
    whole = b"".join(tar.stream(tree, tree.manifest.entries, {}))
    stream.write(whole[: len(whole) // 2])
    return draft, stream, len(whole)


def test_an_interrupted_push_is_continued(
    machines: Machines, pushes: Pushes, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher dies half-way: the stream stops and no one cleans up."""
    (machine,) = machines(1)
    _, stream, size = half_a_push(machine, data)
    stream.close_stdin()
    assert stream.wait(10) != 0
    done = pushes([machine], dataset=str(data))
    assert same(machine.trees("datasets")[0], data)
    assert not machine.drafts("datasets")
    assert 15 <= done.report.hosts[0].files_sent <= 30
    assert done.report.sent_bytes < 0.7 * size


def test_a_push_whose_tar_was_killed_is_continued_without_a_gap(
    machines: Machines, pushes: Pushes, data: Path
) -> None:
    """Until its end, GNU tar has an empty file in place of each link that leads up."""
    (machine,) = machines(1)
    for number in range(5):
        (data / "class 1" / f"up{number}").symlink_to("../run.sh")
    draft, stream, _ = half_a_push(machine, data)
    until(lambda: len([*(draft / "tree" / "class 1").glob("*.bin")]) > 15)
    shell = (draft / "holder").read_text().split()[0]
    os.kill(int(Path(f"/proc/{shell}/task/{shell}/children").read_text()), signal.SIGKILL)
    assert stream.wait(10) != 0
    pushes([machine], dataset=str(data))
    assert same(machine.trees("datasets")[0], data)


def others_draft(machine: Machine, data: Path) -> tuple[str, Path]:
    """Begin another push's draft of the dataset. Return the dataset's digest and the draft's folder."""
    digest = scan(str(data), code_only=False).manifest.digest
    draft = machine.home / ".ddpctl" / "datasets" / f".{digest}.other"
    (draft / "tree").mkdir(parents=True)
    return digest, draft


def test_a_draft_that_a_process_writes_to_is_left_alone(
    machines: Machines, pushes: Pushes, data: Path
) -> None:
    (machine,) = machines(1)
    digest, draft = others_draft(machine, data)
    stream = machine.connection.open(
        ["sh", "-c", RECEIVE, "sh", "datasets", digest, "other", "none"]
    )
    until(lambda: (draft / "holder").exists())
    pushes([machine], dataset=str(data))
    assert (draft / "tree").exists()
    stream.close_stdin()
    stream.wait(10)


@pytest.mark.parametrize(
    "where", ["/dev/sda1 100 40 60 40% /", "//nas/my 1 data 100 40 60 - /m 5% x"]
)
def test_the_free_space_is_known_also_if_the_disk_has_spaces_in_its_name(
    tmp_path: Path, where: str
) -> None:
    df = tmp_path / "df"
    df.write_text(f"#!/bin/sh\necho 'Filesystem 1024-blocks Used'\necho '{where}'\n")
    df.chmod(0o755)
    env = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    argv = ["sh", "-c", BEGIN, "sh", "datasets", "d", "t"]
    assert b"\nfree 60\n" in b"\n" + subprocess.run(argv, env=env, capture_output=True).stdout


def test_a_stream_that_ends_between_two_files_makes_no_tree(tmp_path: Path, data: Path) -> None:
    tree = scan(str(data), code_only=False)
    names = ["datasets", tree.manifest.digest, "cut"]

    def start(script: str, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        argv = ["sh", "-c", script, "sh", *names, "none"]
        home = {**os.environ, "HOME": str(tmp_path / "home")}
        return subprocess.run(argv, env=home, input=stdin, capture_output=True)

    assert start(BEGIN, b"").returncode == 0
    assert start(PREPARE, b"").returncode == 0
    folder = tmp_path / "home" / ".ddpctl" / "datasets"
    (folder / f".{names[1]}.cut" / "complete").touch()  # of an earlier stream
    whole = b"".join(tar.stream(tree, tree.manifest.entries, {"complete": b""}))
    cut = start(RECEIVE, whole[: -3 * 512])  # without the last file and the end of the archive
    assert (cut.returncode, cut.stderr) == (1, b"the stream ended early\n")
    assert not (folder / names[1]).exists()
    assert start(RECEIVE, whole).returncode == 0
    assert same(folder / names[1], data)
    assert [path.name for path in folder.iterdir()] == [names[1]]


def test_two_pushes_at_once_end_with_one_tree(
    machines: Machines, pushes: Pushes, data: Path
) -> None:
    (machine,) = machines(1)
    results: list[PushResult] = []
    threads = [
        threading.Thread(target=lambda: results.append(pushes([machine], dataset=str(data))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    (tree,) = machine.trees("datasets")
    assert same(tree, data)
    assert not machine.drafts("datasets")


def test_nothing_to_send_costs_one_round_trip(
    machines: Machines, pushes: Pushes, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine,) = machines(1)
    pushes([machine], dataset=str(data))
    asked = []
    run = machine.connection.run
    monkeypatch.setattr(machine.connection, "run", lambda *a, **k: asked.append(a) or run(*a, **k))
    pushes([machine], dataset=str(data))
    assert len(asked) == 1
    assert BEGIN not in asked[0][0]


def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_an_unreachable_host_does_not_stop_the_others(
    machines: Machines, pushes: Pushes, data: Path
) -> None:
    good, gone = machines(2)
    gone.server.stop()
    with pytest.raises(HostsNotReady) as caught:
        pushes([good, gone], dataset=str(data))
    assert caught.value.exit_code == 4
    assert list(caught.value.failures) == [gone.connection.name]
    assert same(good.trees("datasets")[0], data)


def test_other_users_of_a_host_cannot_enter_the_pushed_trees(
    machines: Machines, pushes: Pushes, data: Path
) -> None:
    (machine,) = machines(1)
    (data / "secret").write_text("x")
    (data / "secret").chmod(0o600)
    (machine.home / ".ddpctl").mkdir(mode=0o755)  # from an earlier version
    pushes([machine], workdir=str(data))
    assert (machine.home / ".ddpctl").stat().st_mode & 0o777 == 0o700


def test_hosts_that_share_a_home_get_the_tree_once(
    machines: Machines, pushes: Pushes, data: Path, tmp_path: Path
) -> None:
    hosts = machines(3, share=tmp_path / "nfs") + machines(1)
    done = pushes(hosts, dataset=str(data))
    for machine in hosts:
        (tree,) = machine.trees("datasets")
        assert same(tree, data)
        assert not machine.drafts("datasets")
        assert not list((machine.home / ".ddpctl").glob(".shared.*"))
    assert [host.files_sent for host in done.report.hosts] == [44, 0, 0, 44]
    assert [host.dataset for host in done.report.hosts] == ["sent"] * 4
    received = [host.received_bytes for host in done.report.hosts]
    assert received[0] == received[3] > 0
    assert received[1] == received[2] == 0


def test_a_host_whose_partner_in_a_shared_home_dies_gets_the_tree_itself(
    machines: Machines, pushes: Pushes, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = machines(2, share=tmp_path / "nfs")
    send = TreePush._push

    def die(
        self: TreePush, connections: Sequence[HostConnection]
    ) -> dict[HostConnection, DdpctlError]:
        if hosts[0].connection in connections:
            hosts[0].server.stop()
        return send(self, connections)

    monkeypatch.setattr(TreePush, "_push", die)
    monkeypatch.setattr("launcher.push.sender.PAUSES", (0.1,) * 3)
    with pytest.raises(HostsNotReady) as caught:
        pushes(hosts, dataset=str(data))
    assert list(caught.value.failures) == [hosts[0].connection.name]
    assert same(hosts[1].trees("datasets")[0], data)


def test_a_broken_pipe_on_this_machine_is_a_failed_push(
    machines: Machines, pushes: Pushes, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not a reader of stdout that has gone, which would end the command with success."""

    def broken(*_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("launcher.push.sender.TreePush", broken)
    with pytest.raises(PushFailed, match="the push failed"):
        pushes(machines(1), dataset=str(data))


def test_hosts_that_share_a_home_without_being_known_to_do_not_collide(
    machines: Machines, pushes: Pushes, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = "launcher.push.files.push_tree.find_shared_homes"
    monkeypatch.setattr(alone, lambda nodes: [[node] for node in nodes])
    hosts = machines(2, share=tmp_path / "nfs")
    pushes(hosts, dataset=str(data))
    (tree,) = hosts[0].trees("datasets")
    assert same(tree, data)
    assert not hosts[0].drafts("datasets")


def test_a_draft_that_copied_an_unknown_tree_is_made_anew(
    machines: Machines, pushes: Pushes, data: Path
) -> None:
    (machine,) = machines(1)
    _, draft = others_draft(machine, data)
    (draft / "tree" / "of another dataset").touch()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (draft / "holder").write_text(f"{2**22 + 1} {boot} {'d' * 64}\n")  # no pid is that large
    pushes([machine], dataset=str(data))
    assert same(machine.trees("datasets")[0], data)
    assert not machine.drafts("datasets")


def run_script(
    home: Path, script: str, program: str, text: str, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run a script of a push on a German host whose `program` is the shell script `text`."""
    draft = home / ".ddpctl" / "datasets" / f".{'d' * 64}.t" / "tree"
    draft.mkdir(parents=True)
    (home / "bin").mkdir()
    (home / "bin" / program).write_text(f"#!/bin/sh\n{text}\n")
    (home / "bin" / program).chmod(0o755)
    path = f"{home}/bin:{os.environ['PATH']}"
    env = {"HOME": str(home), "PATH": path, "LC_ALL": "de_DE.UTF-8"}
    words = ("datasets", "d" * 64, "t", "none")
    return subprocess.run(
        ["sh", "-c", script, "sh", *words], env=env, input=stdin, capture_output=True, check=False
    )


@pytest.mark.parametrize(
    ("script", "program"),
    [(INSPECT, "mkdir"), (BEGIN, "mkdir"), (PREPARE, "mkdir"), (RECEIVE, "tar")],
    ids=["inspect", "begin", "prepare", "receive"],
)
def test_errors_that_have_a_remedy_are_in_english_on_every_host(
    tmp_path: Path, script: str, program: str
) -> None:
    done = run_script(tmp_path, script, program, 'echo "$LC_ALL" >&2; exit 1')
    assert done.stderr.splitlines()[0] == b"C"


def test_a_tree_is_on_the_disk_before_it_counts_as_present(tmp_path: Path) -> None:
    files = [tar.small_file("tree/a", b"a"), tar.small_file("complete", b"")]
    stream = b"".join(tar.archive(files))
    done = run_script(tmp_path, RECEIVE, "sync", 'ls -A > "$HOME/at-sync"', stream)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "at-sync").read_text() == f".{'d' * 64}.t\n"
    assert (tmp_path / ".ddpctl" / "datasets" / ("d" * 64) / "a").read_bytes() == b"a"


def test_a_host_that_refuses_the_login_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools such as fail2ban count, and a token may have to be touched each time."""
    logins = []

    def refuse(host: Host, _: float) -> None:
        logins.append(host)
        raise HostUnreachable("permission denied", "authorize a key")

    monkeypatch.setattr(client, "connect", refuse)
    monkeypatch.setattr("launcher.push.push.image_here", lambda _: None)
    [host] = hosts = (Host("gpu1"),)
    with connected(hosts) as connections, pytest.raises(HostsNotReady, match="permission denied"):
        push(connections, Cluster(hosts, Job()), console=Console(quiet=True), parts={"image"})
    time.sleep(0.2)  # for threads that may still be running
    assert logins == [host]
