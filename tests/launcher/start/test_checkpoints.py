"""Which checkpoint an attempt resumes from, and that the hosts that lack it receive it whole."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tracemalloc
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from builders import attempt_record, run_record

from launcher.errors import CommandFailed, CommandTimeout
from launcher.hosts import Host
from launcher.runs.record import AttemptRecord, NodeRecord
from launcher.ssh.host_connection import HostConnection
from launcher.ssh.stream import Completed
from launcher.start import checkpoints, plain_files
from launcher.start.checkpoints import (
    Checkpoints,
    File,
    ResumePoint,
    checkpoint_folders,
    choose,
    distribute_checkpoint,
    with_content,
)
from launcher.start.plain_files import copy_files, listed_files
from launcher.terminal.console import Console


def host(name: str, rank: int | None, **has: object) -> Checkpoints:
    return Checkpoints(HostConnection(Host(name)), "/run", rank, **{"same_rank": True, **has})  # type: ignore[arg-type]


def chosen(*hosts: Checkpoints) -> tuple[str, str, dict[str, list[str]]]:
    """The source, what it is, and the paths for each host that lacks some."""
    choice = choose(hosts)
    assert choice
    missing = {target.connection.name: list(paths) for target, paths in choice.missing}
    return choice.source.connection.name, choice.what, missing


def step(number: int) -> str:
    return f"ckpt/step-{number:08d}"


def test_the_newest_complete_checkpoint_counts_and_its_ranks_share_it_themselves() -> None:
    hosts = [host("a", 0, newest=step(10)), host("b", 1, newest=step(20)), host("c", 2)]
    assert chosen(*hosts) == ("b", "step-00000020", {})


def test_one_that_only_a_host_outside_has_is_given_to_the_first_node() -> None:
    hosts = [host("new", 0), host("b", 1, newest=step(10)), host("left", None, newest=step(20))]
    assert chosen(*hosts) == ("left", "step-00000020", {"new": ["ckpt/step-00000020"]})


def test_a_long_run_has_more_than_eight_digits() -> None:
    hosts = [host("a", 0, newest=step(99999999)), host("b", 1, newest=step(100000000))]
    assert chosen(*hosts)[1] == "step-100000000"


OLD, NEW = File(100, 5), File(200, 5)


def test_a_foreign_scripts_files_go_to_the_nodes_that_lack_them() -> None:
    source, _, missing = chosen(host("a", 0, files={"last.pt": NEW}), host("b", 1), host("c", 2))
    assert (source, missing) == ("a", {"b": ["last.pt"], "c": ["last.pt"]})


def test_a_node_in_its_own_place_keeps_the_shard_that_it_wrote() -> None:
    assert chosen(host("a", 0, files={"shard": NEW}), host("b", 1, files={"shard": OLD}))[2] == {}


def test_older_files_of_a_host_are_replaced_by_those_of_the_newest_checkpoint() -> None:
    stale = host("back", 0, files={"last.pt": OLD, "other": OLD}, same_rank=False)
    missing = chosen(stale, host("b", 1, files={"last.pt": NEW}))[2]
    assert missing == {"back": ["last.pt"]}


def test_without_any_checkpoint_there_is_nothing_to_give() -> None:
    assert choose([host("a", 0), host("b", None)]) is None


def ranks(number: int, *hosts: str, **fields: Any) -> AttemptRecord:
    nodes = [NodeRecord(rank, name, "/run") for rank, name in enumerate(hosts)]
    return attempt_record(attempt=number, nodes=nodes, **fields)


@pytest.mark.parametrize(
    ("attempts", "same"),
    [
        ([ranks(1, "a", "b", started="then"), ranks(2, "b", "a", started="then")], True),
        ([ranks(1, "a", "b", started="then"), ranks(2, "b", "a")], False),
        ([ranks(1, "b", "a", started="then"), ranks(2, "a", "b")], True),
        # of another machine's attempts, the hosts report the nodes of the newest, but not its start
        ([ranks(1, started="then", master_addr=""), ranks(2, "b", "a", master_addr="")], True),
    ],
    ids=["started", "did not start", "did not start elsewhere", "of another machine"],
)
def test_only_an_attempt_that_started_tells_whose_files_a_host_has(
    attempts: list[AttemptRecord], same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "one_per_home", list)  # would ask the hosts
    hosts = [HostConnection(Host(name)) for name in ("b", "a")]
    folders = checkpoint_folders(hosts, [], run_record(*attempts))
    assert [folder.same_rank for folder in folders] == [same, same]


# --- real folders ---------------------------------------------------------------------------------


def keeper(folder: Path, rank: int | None, same_rank: bool = True) -> Checkpoints:
    return Checkpoints(HostConnection(Host("local")), str(folder), rank, same_rank)


def send(source: Checkpoints, target: Checkpoints, paths: Collection[str], aside: str) -> None:
    """Copy files. If `paths` is a mapping, its values are the targets of links."""
    links = paths if isinstance(paths, Mapping) else dict.fromkeys(paths, "")
    copy_files(source, target, links, copies=target.copied, aside=aside, uid="")


def write_step(folder: Path, number: int, content: bytes) -> Path:
    path = folder / "checkpoints" / "ckpt" / f"step-{number:08d}"
    path.mkdir(parents=True)
    (path / "state.pt").write_bytes(content)
    (path / "MANIFEST").write_text(f"{hashlib.sha256(content).hexdigest()}  state.pt\n")
    return path


def test_a_damaged_checkpoint_is_skipped_for_the_complete_one_before_it(tmp_path: Path) -> None:
    write_step(tmp_path, 1, b"oldest")
    write_step(tmp_path, 2, b"older")
    (write_step(tmp_path, 3, b"newest") / "state.pt").write_bytes(b"newesT")
    held = with_content(keeper(tmp_path, 0))
    assert held.newest == "ckpt/step-00000002"
    assert held.damaged == ("ckpt/step-00000003",)


@pytest.mark.parametrize("path", ["/dev/zero", "../../../big", "sub/../../../../big"])
def test_a_checkpoint_that_lists_files_outside_its_folder_is_damaged(
    path: str, tmp_path: Path
) -> None:
    """It may be a copy from a lying host; a device has no end."""
    write_step(tmp_path, 2, b"older")
    content = b"\0"
    made = write_step(tmp_path, 3, content)
    (made / "sub").mkdir()
    (tmp_path / "big").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    (made / "MANIFEST").write_text(f"{digest}  state.pt\n{digest}  {path}\n")
    began = monotonic()
    held = with_content(Checkpoints(Hurried(Host("local")), str(tmp_path), 0, same_rank=True))
    assert (held.newest, held.damaged) == ("ckpt/step-00000002", ("ckpt/step-00000003",))
    assert monotonic() - began < 10


class Hurried(HostConnection):
    def script(self, text: str, *args: str, **how: Any) -> Completed:
        return super().script(text, *args, **{**how, "timeout": 10.0})


def test_a_checkpoint_may_have_folders(tmp_path: Path) -> None:
    made = write_step(tmp_path, 1, b"x")
    (made / "sub").mkdir()
    (made / "sub" / "a..b").write_bytes(b"x")
    with (made / "MANIFEST").open("a") as manifest:
        manifest.write(f"{hashlib.sha256(b'x').hexdigest()} *sub/a..b\n")
    assert with_content(keeper(tmp_path, 0)).newest == "ckpt/step-00000001"


def test_another_user_cannot_choose_where_hashes_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They see new files in /tmp, and may make links with names that can be guessed from those."""
    write_step(tmp_path, 1, b"state")
    mine = tmp_path / "mine"
    mine.write_text("notes")
    mktemp = tmp_path / "tools" / "mktemp"
    mktemp.parent.mkdir()
    mktemp.write_text(
        f'#!/bin/sh\nmade=$(/usr/bin/mktemp)\nln -s {mine} "$made.hashes"\necho "$made"\n'
    )
    mktemp.chmod(0o755)
    monkeypatch.setenv("PATH", f"{mktemp.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert len(listed_files(keeper(tmp_path, 0), "checkpoints", ["ckpt"])) == 2
    assert mine.read_text() == "notes"


@pytest.fixture
def slow_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose `sha256sum` is this script, and on which 5 seconds are short."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sleep", "sha256sum"):
        (tools / name).write_text("#!/bin/sh\nexec /bin/sleep 0.05\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(plain_files, "END_TIMEOUT", 1.0)
    return tools / "sha256sum"


@pytest.mark.parametrize("look", [with_content, lambda f: listed_files(f, "checkpoints", ["ckpt"])])
def test_a_disk_that_hangs_while_it_is_hashed_is_given_up_after_a_minute(
    slow_hashes: Path, tmp_path: Path, look: Callable[[Checkpoints], object]
) -> None:
    write_step(tmp_path, 1, b"state")
    slow_hashes.write_text("#!/bin/sh\nexec /bin/sleep 20\n")
    with pytest.raises(CommandTimeout, match="local: `sh` made no progress for 1s; check whether"):
        look(keeper(tmp_path, 0))


def test_a_disk_that_is_read_slowly_has_its_time(slow_hashes: Path, tmp_path: Path) -> None:
    write_step(tmp_path, 1, bytes(30))
    read_on = "for _ in $(seq 30); do dd bs=1 count=1 <&4; /bin/sleep 0.1; done >/dev/null 2>&1"
    path = f"{tmp_path}/checkpoints/{step(1)}/state.pt"
    slow_hashes.write_text(f'#!/bin/sh\nexec 4< {path}\n{read_on}\nexec /usr/bin/sha256sum "$@"\n')
    assert with_content(keeper(tmp_path, 0)).newest == step(1)
    listed = listed_files(keeper(tmp_path, 0), "checkpoints", ["ckpt"])
    assert [file.path for file in listed] == [f"{step(1)}/MANIFEST", f"{step(1)}/state.pt"]


def test_no_process_outlives_the_hashing(slow_hashes: Path, tmp_path: Path) -> None:
    write_step(tmp_path, 1, bytes(30))
    slow_hashes.write_text('#!/bin/sh\n/bin/sleep 0.5\nexec /usr/bin/sha256sum "$@"\n')
    pause = slow_hashes.with_name("sleep")
    pause.write_text(f"#!/bin/sh\nexec /bin/sleep 600.{os.getpid()}\n")
    assert with_content(keeper(tmp_path, 0)).newest == step(1)
    deadline = monotonic() + 5
    while (
        subprocess.run(
            ["pgrep", "-f", f"sleep 600.{os.getpid()}"], stdout=subprocess.DEVNULL
        ).returncode
        == 0
    ):
        assert monotonic() < deadline
        sleep(0.05)


def test_a_host_that_never_had_the_run_holds_nothing(tmp_path: Path) -> None:
    assert with_content(keeper(tmp_path / "none", 0)).files == {}


def test_given_files_arrive_with_their_names_and_times_and_the_old_ones_are_kept(
    tmp_path: Path,
) -> None:
    a, b = keeper(tmp_path / "a", 0), keeper(tmp_path / "b", 1, same_rank=False)
    mine = tmp_path / "a" / "checkpoints"
    for folder in ("deep folder", "-p"):
        (mine / folder).mkdir(parents=True)
    names = ["last.pt", "deep folder/a b\n$(x).pt", "-n", "-p/-n"]
    for name in names:
        (mine / name).write_bytes(os.urandom(300_000))
        os.utime(mine / name, (1_000_000_000, 1_000_000_000))
    (mine / ".half written").write_bytes(b"x")
    theirs = tmp_path / "b" / "checkpoints"
    theirs.mkdir(parents=True)
    (theirs / "last.pt").write_bytes(b"stale")
    (theirs / "deep folder").mkdir()
    for name in ["last.pt", "deep folder/a b\n$(x).pt"]:
        (theirs / name).write_bytes(b"stale")
        os.utime(theirs / name, (900_000_000, 900_000_000))
    choice = choose([with_content(a), with_content(b)])
    assert isinstance(choice, ResumePoint)
    [(target, paths)] = choice.missing
    assert sorted(paths) == sorted(names)
    send(choice.source, target, paths, ".before-attempt-2")
    for name in names:
        assert (theirs / name).read_bytes() == (mine / name).read_bytes()
        assert (theirs / name).stat().st_mtime == 1_000_000_000
    for name in ["last.pt", "deep folder/a b\n$(x).pt"]:
        assert (theirs / ".before-attempt-2" / name).read_bytes() == b"stale"
    assert sorted(path.name for path in theirs.glob(".*")) == [".before-attempt-2"]
    assert with_content(b).files == with_content(a).files


def test_a_copy_that_nobody_has_changed_is_replaced_at_the_next_resume_and_an_own_file_is_kept(
    tmp_path: Path,
) -> None:
    a, b = keeper(tmp_path / "a", 0), keeper(tmp_path / "b", 1)
    mine, theirs = tmp_path / "a" / "checkpoints", tmp_path / "b" / "checkpoints"

    def save(folder: Path, time: int, *names: str) -> None:
        for name in names:
            (folder / name).write_bytes(os.fsencode(f"{name} {time}"))
            os.utime(folder / name, (time, time))

    def resume() -> None:
        if choice := choose([with_content(a), with_content(b)]):
            for target, paths in choice.missing:
                send(choice.source, target, paths, ".before")

    (mine / "deep").mkdir(parents=True)
    theirs.mkdir(parents=True)
    odd = ["deep/a\nb.pt", os.fsdecode(b"\xe9.pt")]
    for time, link in (100, "best.pt"), (200, "deep/a b.pt"):
        save(mine, time, "best.pt", "shard.pt", "deep/a b.pt", *odd)
        (mine / "last").unlink(missing_ok=True)
        (mine / "last").symlink_to(link)
        resume()
        save(theirs, time + 1, "shard.pt")  # over the copy, as a rank of that node does
    assert contents(theirs) == {
        "best.pt": b"best.pt 200",
        "last": b"deep/a b.pt 200",
        "deep/a b.pt": b"deep/a b.pt 200",
        "shard.pt": b"shard.pt 201",
        **{name: os.fsencode(f"{name} 200") for name in odd},
    }
    assert (theirs / "last").readlink() == Path("deep/a b.pt")


def test_the_user_that_the_job_sets_may_save_beside_the_copies(tmp_path: Path) -> None:
    a, b = keeper(tmp_path / "a", 0), keeper(tmp_path / "b", 1)
    for name in ("a", "b"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
    (tmp_path / "a" / "checkpoints" / "deep").mkdir()
    (tmp_path / "a" / "checkpoints" / "deep" / "last.pt").write_bytes(b"weights")
    uid, path = str(os.getuid() + 1), "deep/last.pt"
    copy_files(a, b, {path: ""}, copies=set(), aside=".before", uid=uid)
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "b" / "checkpoints").rglob("*")]
    assert sorted(modes) == [0o666, 0o777]


def test_a_node_that_is_back_at_its_rank_keeps_only_what_it_has_written_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "one_per_home", list)
    monkeypatch.setattr(checkpoints, "fixed_uid", lambda _: "")
    attempts: list[AttemptRecord] = []

    def start(*hosts: str) -> None:
        """Start the next attempt on these hosts, in rank order."""
        connections = [HostConnection(Host("local")) for _ in hosts]
        for connection, name in zip(connections, hosts, strict=True):
            connection.name = name
        if attempts:
            record = run_record(*attempts)
            distribute_checkpoint(connections, [], record, None, Console())  # type: ignore[arg-type]
        nodes = [NodeRecord(rank, name, str(tmp_path / name)) for rank, name in enumerate(hosts)]
        attempts.append(attempt_record(attempt=len(attempts) + 1, nodes=nodes, started="then"))

    def save(host: str, name: str, time: int) -> None:
        path = tmp_path / host / "checkpoints" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{host} {time}")
        os.utime(path, (time, time))

    def saved(host: str, name: str) -> str:
        return (tmp_path / host / "checkpoints" / name).read_text()

    start("b", "a")
    start("a", "b")
    save("a", "last.pt", 100)  # as rank 0
    start("b", "a")
    assert saved("b", "last.pt") == "a 100"
    save("b", "last.pt", 200)
    for host in ("a", "b"):
        save(host, "shard.pt", 200)
    start("b", "a")
    assert [saved("a", name) for name in ("last.pt", "shard.pt")] == ["b 200", "a 200"]


def test_a_checkpoint_that_cannot_be_copied_completely_changes_nothing(tmp_path: Path) -> None:
    a, b = keeper(tmp_path / "a", None), keeper(tmp_path / "b", 0)
    write_step(tmp_path / "a", 5, b"content")
    choice = choose([with_content(b), with_content(a)])
    assert isinstance(choice, ResumePoint)
    [(target, paths)] = choice.missing
    (tmp_path / "b").write_text("a file where the folder should be")
    with pytest.raises(CommandFailed, match=r"^local: "):
        send(choice.source, target, paths, ".before")
    assert (tmp_path / "b").read_text() == "a file where the folder should be"


def test_a_tar_that_does_not_end_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = keeper(tmp_path / "a", None), keeper(tmp_path / "b", 0)
    write_step(tmp_path / "a", 5, b"content")
    choice = choose([with_content(b), with_content(a)])
    assert isinstance(choice, ResumePoint)
    [(target, paths)] = choice.missing
    monkeypatch.setattr(plain_files, "RECEIVE", "cat >/dev/null; exec sleep 1000")
    monkeypatch.setattr(plain_files, "END_TIMEOUT", 0.5)
    with pytest.raises(CommandFailed, match=r"^local: .*did not finish"):
        send(choice.source, target, paths, ".before")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Checkpoints, Checkpoints]:
    """A source whose `last.pt` the target lacks, and the target."""
    a, b = keeper(tmp_path / "a", 0), keeper(tmp_path / "b", 1, same_rank=False)
    for name in ("a", "b"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
    (tmp_path / "a" / "checkpoints" / "last.pt").write_bytes(b"weights")
    return a, b


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("path", "text", "copied"),
    [
        ("last.ckpt", "epoch=3.ckpt", "epoch=3.ckpt"),  # as Lightning makes it
        ("a b/last", "/checkpoints/last.pt", "../last.pt"),
        ("deep/er/newest", "../../deep/x\ny", "../x\ny"),
        ("last", "RUN/checkpoints/ckpt", "ckpt"),
        ("last", "./-rf", "-rf"),
        ("out", "../output/model.pt", None),
        ("up", "../../other/checkpoints/x", None),
        ("whole", "/checkpoints", "."),
        ("passwd", "/etc/passwd", None),
        (".hidden", "x", None),
    ],
)
def test_a_link_to_another_checkpoint_arrives_as_a_relative_link_and_no_other_link_does(
    tmp_path: Path, path: str, text: str, copied: str | None
) -> None:
    run_dir = tmp_path / "runs" / "r1"
    a, b = keeper(run_dir, 0), keeper(tmp_path / "b", 1, same_rank=False)
    link = run_dir / "checkpoints" / path
    link.parent.mkdir(parents=True)
    link.symlink_to(text.replace("RUN", str(run_dir)))
    (run_dir / "checkpoints" / "weights").write_bytes(b"w")
    choice = choose([with_content(a), with_content(b)])
    assert choice
    [(target, paths)] = choice.missing
    send(choice.source, target, paths, ".before")
    arrived = tmp_path / "b" / "checkpoints"
    assert contents(arrived)["weights"] == b"w"
    links = {
        str(p.relative_to(arrived)): str(p.readlink()) for p in arrived.rglob("*") if p.is_symlink()
    }
    assert links == ({path: copied} if copied else {})
    again = choose([with_content(a), with_content(b)])
    assert again and again.missing == []


def test_a_link_of_the_source_in_a_step_is_neither_listed_nor_sent(
    pair: tuple[Checkpoints, Checkpoints], tmp_path: Path
) -> None:
    mine = tmp_path / "a" / "checkpoints"
    (mine / "step").mkdir()
    (mine / "step" / "link").symlink_to("/etc")
    (mine / "step" / "weights").write_bytes(b"w")
    send(*pair, ["last.pt", "step"], ".before")
    theirs = tmp_path / "b" / "checkpoints"
    assert not any(path.is_symlink() for path in theirs.rglob("*"))
    assert contents(theirs) == {"last.pt": b"weights", "step/weights": b"w"}


TAR_OF_A_LINK = "cd $(mktemp -d); ln -s /etc last.pt; tar -cf - last.pt"


@pytest.mark.parametrize(
    "lie",
    [
        TAR_OF_A_LINK,
        "printf longer-than-listed",
        "printf short",
        "cat /dev/zero",
        "printf WEIGHTS",
    ],
)
def test_a_source_that_sends_something_else_than_it_listed_changes_nothing(
    pair: tuple[Checkpoints, Checkpoints],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lie: str,
) -> None:
    monkeypatch.setattr(plain_files, "SEND", f"cat >/dev/null; {lie}")
    with pytest.raises(CommandFailed, match=r"^local: "):
        send(*pair, ["last.pt"], ".before")
    assert list((tmp_path / "b" / "checkpoints").iterdir()) == []


class Listing(HostConnection):
    """A host that lists these files, whatever it has."""

    def __init__(self, *paths: bytes) -> None:
        super().__init__(Host("local"))
        digest = hashlib.sha256(b"x").hexdigest().encode()
        rows = [b"1 5.0 ./%b" % path for path in paths], [digest + b"  ./" + p for p in paths]
        self.listed = b"\0".join([*rows[0], b"", *rows[1], b""])

    def script(self, text: str, *args: str, **how: Any) -> Completed:
        return Completed(0, self.listed, b"")


def test_files_that_nobody_asked_for_and_odd_paths_are_not_taken() -> None:
    folder = Checkpoints(
        Listing(b"a", b"a\n", b"other", b"step/../../x", b"step//x", b"/etc/x", b"step/in", b"step"),
        "/r", 0, same_rank=True,
    )  # fmt: skip
    taken = listed_files(folder, "checkpoints", ["a", "step"])
    assert [file.path for file in taken] == ["a", "step", "step/in"]


def test_a_path_of_many_folders_is_refused_without_filling_the_memory() -> None:
    """That of each of its parents, together, would take 400 MB."""
    deep = b"a/" * 20_000 + b"f"
    folder = Checkpoints(Listing(deep), "/r", 0, same_rank=True)
    tracemalloc.start()
    try:
        assert listed_files(folder, "checkpoints", ["a"]) == ()
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    node = Reporting(f"1.5 3 {deep.decode()}", f"> {deep.decode()}//last.pt")
    assert with_content(Checkpoints(node, "/run", 0, same_rank=True)).files == {}


@pytest.mark.parametrize("path", ["cache/.ssh/authorized_keys", "cache/deep/er/file", "cache"])
def test_nothing_is_written_through_a_link_of_the_target(
    pair: tuple[Checkpoints, Checkpoints], tmp_path: Path, path: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    theirs = tmp_path / "b" / "checkpoints"
    (theirs / "cache").symlink_to(home)
    file = tmp_path / "a" / "checkpoints" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"ssh-ed25519 AAAA attacker")
    if path == "cache":  # the link itself is replaced and kept
        send(*pair, [path], ".before")
        assert (theirs / ".before" / "cache").is_symlink()
        assert (theirs / "cache").read_bytes() == b"ssh-ed25519 AAAA attacker"
    else:
        with pytest.raises(CommandFailed, match="link"):
            send(*pair, [path], ".before")
    assert list(home.iterdir()) == []


def test_no_link_is_made_below_a_link(
    pair: tuple[Checkpoints, Checkpoints], tmp_path: Path
) -> None:
    """Its text would be relative to another folder, so it could lead out of the checkpoints."""
    home = tmp_path / "home"
    home.mkdir()
    theirs = tmp_path / "b" / "checkpoints"
    (theirs / "cache").symlink_to(home)
    for paths in ({"cache/x": "../y"}, {"p": "z", "p/t": "../../w"}):
        with pytest.raises(CommandFailed, match="link"):
            send(*pair, paths, ".before")
    assert list(home.iterdir()) == []
    assert sorted(path.name for path in theirs.iterdir()) == ["cache", "p"]


def test_a_link_replaces_a_file_which_is_kept(
    pair: tuple[Checkpoints, Checkpoints], tmp_path: Path
) -> None:
    theirs = tmp_path / "b" / "checkpoints"
    (theirs / "last.ckpt").write_bytes(b"stale")
    (theirs / "latest").mkdir()
    send(*pair, {"last.pt": "", "last.ckpt": "last.pt", "latest": "ckpt"}, ".before")
    assert (theirs / "last.ckpt").read_bytes() == b"weights"
    assert (theirs / "latest").readlink() == Path("ckpt")
    assert (theirs / ".before" / "last.ckpt").read_bytes() == b"stale"
    assert (theirs / ".before" / "latest").is_dir()


class Reporting(HostConnection):
    """A host that reports these rows as its checkpoints."""

    def __init__(self, *rows: str) -> None:
        super().__init__(Host("local"))
        self.rows = rows
        self.timeouts: list[float] = []

    def script(self, text: str, *args: str, **how: Any) -> Completed:
        self.timeouts.append(how["timeout"])
        return Completed(0, "".join(f"{row}\0" for row in self.rows).encode(), b"")


@pytest.mark.parametrize(("size", "seconds"), [(0, 900), (4 * 10**10, 2900), (10**15 - 1, 7200)])
def test_a_large_checkpoint_may_take_long_to_hash_but_not_as_long_as_a_host_likes(
    size: int, seconds: float
) -> None:
    node = Reporting(f"1.5 {size} big", f"{size} 1.5 ./big")
    folder = Checkpoints(node, "/run", 0, same_rank=True)
    with_content(folder)
    listed_files(folder, "checkpoints", ["big"])
    assert node.timeouts == [900, seconds, 900, seconds]


@pytest.mark.parametrize(("newest", "hashes"), [(3, False), (4, False), (5, True)])
def test_a_host_that_the_run_has_left_hashes_its_steps_only_if_it_has_a_newer_one(
    monkeypatch: pytest.MonkeyPatch, newest: int, hashes: bool
) -> None:
    """Its disk may hang, which is why the run has left it. Here, it is another account on one host."""
    monkeypatch.setattr(checkpoints, "one_per_home", list)  # would ask the hosts
    node = Reporting(f"1.5 3 {step(4)}/MANIFEST", f"whole {step(4)}")
    left = Reporting(f"1.5 3 {step(newest)}/MANIFEST", f"whole {step(newest)}")
    record, console, said = run_record(ranks(1, "local", started="then")), Console(), list[str]()
    copied = []
    monkeypatch.setattr(console, "say", said.append)
    monkeypatch.setattr(checkpoints, "copy_files", lambda *args, **_: copied.append(args[:2]))
    monkeypatch.setattr(checkpoints, "fixed_uid", lambda _: "")
    distribute_checkpoint([node], [left], record, None, console)  # type: ignore[arg-type]
    assert len(left.timeouts) == 1 + hashes
    assert said == [f"resuming from step-{max(newest, 4):08d} on local"]
    assert [(a.connection, b.connection) for a, b in copied] == ([(left, node)] if hashes else [])


def test_paths_outside_the_folder_and_odd_rows_of_a_host_are_skipped() -> None:
    node = Reporting(
        "whole ../../.ssh/authorized_keys",
        "whole ckpt/step-1\n",
        "whole 0 ckpt/step-00000001",
        "damaged ckpt/step-x\x1b[2J",
        "1.5 3 ../escape",
        "1.5 3 /etc/passwd",
        "1.5 3 a/../../b",
        "1.5 3 a///etc/passwd",  # place_files.sh would make it a link
        "soon 3 file",
        "0 0 ../escape//checkpoints/last.pt",
        "0 0 /etc/cron.d/x///checkpoints/last.pt",
        "0 0 a/../../b//checkpoints/last.pt",
        "0 0 up//../../../etc",
        "0 0 passwd///etc/passwd",
        "0 0 //last.pt",
        "0 0 empty//",
        "nan -3 file",
        "",
        "1700000000.5 3 last.pt",
    )
    found = with_content(Checkpoints(node, "/run", 0, same_rank=True))
    assert (found.newest, found.damaged) == ("", ())
    assert found.files == {"last.pt": File(1700000000, 3)}
