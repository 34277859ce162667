from __future__ import annotations

import hashlib
import io
import os
import signal
import tarfile
import threading
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import PushFailed, Several
from launcher.hosts import Host
from launcher.own_folders import cache_home, write_cache
from launcher.push.files import manifest, tar
from launcher.push.files.manifest import Entry
from launcher.push.files.open_file import open_file
from launcher.push.files.push_tree import fetched_manifest
from launcher.push.files.scan import Tree, scan
from launcher.ssh.host_connection import HostConnection


def test_the_digest_is_of_content_names_and_the_executable_bit(tmp_path: Path) -> None:
    def digest() -> str:
        return scan(str(tmp_path), code_only=False).manifest.digest

    file = tmp_path / "a"
    file.write_text("1")
    first = digest()
    os.utime(file, ns=(0, 0))
    file.chmod(0o600)
    assert digest() == first
    seen = {first}
    for change in (
        lambda: file.write_text("2"),
        lambda: file.chmod(0o700),
        lambda: file.rename(tmp_path / "b"),
        lambda: (tmp_path / "empty").mkdir(),
        lambda: (tmp_path / "link").symlink_to("b"),
    ):
        change()
        assert digest() not in seen
        seen.add(digest())


def test_a_rewrite_of_the_same_size_and_time_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("one")
    before = file.stat().st_mtime_ns
    first = scan(str(tmp_path), code_only=False).manifest.digest
    file.write_text("two")
    os.utime(file, ns=(before, before))
    assert scan(str(tmp_path), code_only=False).manifest.digest != first


def test_an_unchanged_old_file_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("one")
    monkeypatch.setattr("launcher.push.files.scan.RACY", -(10**12))
    first = scan(str(tmp_path), code_only=False).manifest.digest
    monkeypatch.setattr("launcher.push.files.scan.open_file", lambda path: pytest.fail("was read"))
    assert scan(str(tmp_path), code_only=False).manifest.digest == first


def test_ctrl_c_does_not_wait_until_all_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    read_to_the_end: list[bool] = []

    def hash_a_large_file(*_: object) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        read_to_the_end.append(not over.wait(10))

    (tmp_path / "a").write_text("a")
    monkeypatch.setattr("launcher.push.files.scan._sha256", hash_a_large_file)
    with pytest.raises(KeyboardInterrupt):
        scan(str(tmp_path), code_only=False)
    over.set()
    assert True not in read_to_the_end


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "sub/../../outside"])
def test_a_link_out_of_the_tree_is_refused_by_name(tmp_path: Path, target: str) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "odd\nname").symlink_to(target)
    with pytest.raises(Several, match=r"odd\\nname': is a link that leaves the folder") as caught:
        scan(str(tree), code_only=False)
    assert "\n" not in str(caught.value)


def test_a_link_out_of_the_tree_through_another_link_is_refused(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "d").mkdir(parents=True)
    (tree / "d" / "up").symlink_to("..")
    (tree / "inside").symlink_to("d/../d/up/d")
    scan(str(tree), code_only=False)
    for target in ("d/up/../outside", "d/up/../tree/d", "./d/up/../../outside"):
        (tree / "link").symlink_to(target)
        with pytest.raises(Several, match="link: is a link that leaves the folder"):
            scan(str(tree), code_only=False)
        (tree / "link").unlink()


_names = st.binary(min_size=1, max_size=8).filter(
    lambda b: not {0, 47} & set(b) and b not in (b".", b"..")
)
_files = st.dictionaries(_names, st.sampled_from([b"0", b"1", b"2"]), max_size=8)


@given(_files, _files)
def test_the_delta_turns_one_tree_into_the_other(
    old: dict[bytes, bytes], new: dict[bytes, bytes]
) -> None:
    def tree(files: dict[bytes, bytes]) -> manifest.Manifest:
        return manifest.make(Entry(path, "f", 1, content) for path, content in files.items())

    delta = tree(new).after(tree(old))
    assert manifest.parse(tree(new).text, tree(new).digest) == tree(new)
    copy = {path: content for path, content in old.items() if path not in delta.remove}
    kept = set(copy)
    copy |= {entry.path: entry.content for entry in delta.write}
    assert copy == new
    assert kept == {path for path in old if new.get(path) == old[path]}


def test_a_folder_that_becomes_a_file_is_removed_whole() -> None:
    old = manifest.make([Entry(b"a", "d"), Entry(b"a/b", "f", 1, b"x")])
    delta = manifest.make([Entry(b"a", "f", 1, b"x")]).after(old)
    assert set(delta.remove) == {b"a", b"a/b"}


def test_tarfile_reads_the_stream(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90) / ("e" * 90)
    deep.mkdir(parents=True)
    (deep / "long").write_bytes(b"x" * 700)
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o711)
    (tmp_path / "link").symlink_to("d" * 90 + "/" + "e" * 90)
    raw = os.fsencode(tmp_path) + b"/\xff\n"
    Path(os.fsdecode(raw)).write_text("odd")
    tree = scan(str(tmp_path), code_only=False)
    data = b"".join(tar.stream(tree, tree.manifest.entries, {"m": b"1"}))
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
        members = {member.name: member for member in archive}
        deep_name = "tree/" + "d" * 90 + "/" + "e" * 90 + "/long"
        assert archive.extractfile(deep_name).read() == b"x" * 700
        assert archive.extractfile("m").read() == b"1"
    assert members["tree/run.sh"].mode == 0o755
    assert members["tree/link"].linkname == "d" * 90 + "/" + "e" * 90
    assert members["tree/\udcff\n"].mode == 0o644


def test_the_size_of_an_archive_is_known_before_it_is_made(tmp_path: Path) -> None:
    for size in (0, 1, 512, 513):
        (tmp_path / str(size)).write_bytes(bytes(size))
    tree = scan(str(tmp_path), code_only=False)
    data = b"".join(tar.stream(tree, tree.manifest.entries, {"m": b"1"}))
    assert len(data) == tar.size_of([1, *(entry.size for entry in tree.manifest.entries)])


def test_a_file_that_changes_after_the_scan_ends_the_stream(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("one")
    tree = scan(str(tmp_path), code_only=False)
    for text in ("two", "on", "onee"):
        file.write_text(text)
        with pytest.raises(PushFailed, match="changed during the push"):
            list(tar.stream(tree, tree.manifest.entries, {}))


@pytest.mark.parametrize("writer", [False, True])
def test_a_file_that_becomes_a_pipe_holds_no_push(
    writer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder to which somebody else may write."""
    pipe = tmp_path / "a"

    def open_swapped(path: bytes) -> io.FileIO:
        pipe.unlink()
        os.mkfifo(pipe)
        held = os.open(pipe, os.O_RDWR) if writer else None
        try:
            return open_file(path)
        finally:
            if held is not None:
                os.close(held)

    pipe.write_text("one")
    tree = scan(str(tmp_path), code_only=False)
    monkeypatch.setattr("launcher.push.files.scan.open_file", open_swapped)
    monkeypatch.setattr("launcher.push.files.tar.open_file", open_swapped)
    with pytest.raises(PushFailed, match="no longer a file during the push"):
        list(tar.stream(tree, tree.manifest.entries, {}))
    pipe.unlink()
    pipe.write_text("two")
    with pytest.raises(Several, match="is no longer a file"):
        scan(str(tmp_path), code_only=False)


def test_a_log_in_the_workdir_may_grow_during_the_scan_and_the_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ddpctl launch 2>&1 | tee launch.log` in the workdir writes to it while the push reads it."""
    log = tmp_path / "launch.log"
    log.write_text("ddpctl: 2 warnings\n")

    def open_grown(path: bytes) -> io.FileIO:
        log.write_text(log.read_text() + "ddpctl: left out of the workdir\n")
        return open_file(path)

    monkeypatch.setattr("launcher.push.files.scan.open_file", open_grown)
    monkeypatch.setattr("launcher.push.files.tar.open_file", open_grown)
    tree = scan(str(tmp_path), code_only=True)
    data = b"".join(tar.stream(tree, tree.manifest.entries, {}))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.extractfile("tree/launch.log").read() == b"ddpctl: 2 warnings\n"
    log.write_text("ddpctl: 3 warnings\nddpctl: left out of the workdir\n")
    with pytest.raises(PushFailed, match="changed during the push"):
        list(tar.stream(tree, tree.manifest.entries, {}))


def test_a_disk_that_fails_during_the_push_is_this_machines_problem() -> None:
    tree = Tree(b"/proc/self", manifest.make([Entry(b"mem", "f", 9)]), {})  # cannot be read at 0
    with pytest.raises(PushFailed, match=r"^/proc/self/mem: Input/output error during the push"):
        list(tar.stream(tree, tree.manifest.entries, {}))


def test_ddpctls_own_folders_are_never_pushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home folder as workdir: its records and caches change while the push runs."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    for name in (".cache/ddpctl", ".local/state/ddpctl", ".ddpctl", ".config/other"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("x")
    files = {entry.path for entry in scan(str(tmp_path), code_only=True).manifest.entries}
    assert b".config/other/file" in files
    assert not {path for path in files if b"ddpctl" in path}


@pytest.mark.parametrize("path", [b"/etc/passwd", b"../up", b"a/../../b", b"", b"a//b", b"./a"])
def test_a_manifest_with_a_path_out_of_the_tree_is_no_manifest(path: bytes) -> None:
    made = manifest.make([Entry(path, "f", 1, b"x")])
    assert manifest.parse(made.text, made.digest) is None


@pytest.mark.parametrize("text", [b"f 1 x\0a", b"f one x\0a\0", b"q 1 x\0a\0", b"f\0a\0", b"x"])
def test_text_that_is_no_manifest_is_not_parsed(text: bytes) -> None:
    parsed = manifest.parse(text, hashlib.sha256(text).hexdigest())
    assert parsed is None or parsed.entries == ()


@pytest.mark.parametrize("damage", ["[]", "null", "5", '{"a": 5}', '{"a": []}', '{"a": [1, 2]}'])
def test_a_damaged_cache_of_hashes_is_ignored(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a").write_text("one")
    os.utime(folder / "a", (1, 1))
    first = scan(str(folder), code_only=False).manifest.digest
    caches = cache_home() / "trees"
    caches.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
    (caches / f"{name}.json").write_text(damage)
    assert scan(str(folder), code_only=False).manifest.digest == first


def test_hashes_are_kept_of_the_folders_that_were_pushed_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("launcher.push.files.scan.RACY", -(10**12))
    monkeypatch.setattr("launcher.push.files.scan.KEPT", 2)
    for name in "abac":
        (tmp_path / name).mkdir(exist_ok=True)
        if not (tmp_path / name / "file").exists():
            (tmp_path / name / "file").touch()
        for kept in tmp_path.glob("ddpctl/trees/*"):  # files of one clock tick have no order
            os.utime(kept, (0, kept.stat().st_mtime - 1))
        scan(str(tmp_path / name), code_only=False)
    names = {hashlib.sha256(os.fsencode(tmp_path / name)).hexdigest()[:32] for name in "ac"}
    assert {path.stem for path in tmp_path.glob("ddpctl/trees/*")} == names


def test_a_manifest_from_a_host_is_used_unless_it_is_damaged_or_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = manifest.make([Entry(b"a", "f", 5, b"0" * 64)])
    there = tmp_path / ".ddpctl" / "manifests" / made.digest
    there.parent.mkdir(parents=True)
    there.write_bytes(zlib.compress(made.text))
    connection = HostConnection(Host("local"))
    older = tmp_path / "cache" / "ddpctl" / "manifests" / "older"
    write_cache(older, "")
    os.utime(older, (0, 0))
    monkeypatch.setattr("launcher.push.files.push_tree.KEPT", 1)
    assert fetched_manifest(connection, made.digest, len(made.text)) == made
    assert [path.name for path in tmp_path.glob("cache/ddpctl/manifests/*")] == [made.digest]
    assert fetched_manifest(connection, made.digest, len(made.text) - 1) is None
    there.write_bytes(b"x")
    assert fetched_manifest(connection, made.digest, 1 << 20) is None
