"""Every instant of a save leaves a whole checkpoint; a damaged one is never loaded."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from trainer import checkpoint
from trainer.cli import main
from trainer.errors import CheckpointError

META = {"step": 0, "epoch": 1, "best": {}, "plan": {"world_size": 1}}
META |= {"eval_pending": False, "config": {"model": "resnet8"}}


def save(root: Path, step: int, keep: int = 3) -> checkpoint.Saved:
    state = {"model": {"w": torch.full((500,), float(step))}, "optimizer": {}, "ema": None}
    return checkpoint.save(root, state, META | {"step": step}, keep)[0]


def test_newest_by_number_and_only_so_many(tmp_path: Path) -> None:
    for step in (9, 10, 99_999_999, 100_000_000):  # as text, 99999999 sorts last
        save(tmp_path, step, keep=2)
    assert [p.name for p in checkpoint.folders(tmp_path)] == ["step-100000000", "step-99999999"]
    newest, problems = checkpoint.newest_intact(tmp_path)
    assert newest and newest.step == 100_000_000 and not problems
    assert (tmp_path / "ckpt" / "latest").read_text() == "step-100000000\n"


def test_an_old_checkpoint_that_cannot_be_removed_yet_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(
        path: object, **_: object
    ) -> None:  # as on NFS while another process reads a file in it
        raise OSError(errno.ENOTEMPTY, "Directory not empty", path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", busy)
        for step in (1, 2, 3):
            save(tmp_path, step, keep=2)
    assert [p.name for p in checkpoint.folders(tmp_path)] == ["step-00000003", "step-00000002"]
    checkpoint.clean(tmp_path)
    kept = {"step-00000003", "step-00000002", "latest"}
    assert {p.name for p in (tmp_path / "ckpt").iterdir()} == kept


def test_everything_is_synced_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        events.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        fsync(descriptor)

    def renamed(source: Path, target: Path, **more: object) -> None:
        events.append(("rename", Path(target).name))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    save(tmp_path, 1)
    pid = os.getpid()
    assert events[:6] == [
        ("sync", "state.pt"),
        ("sync", "meta.json"),
        ("sync", "MANIFEST"),
        ("sync", f".tmp-step-00000001-{pid}"),
        ("rename", "step-00000001"),
        ("sync", "ckpt"),
    ]
    assert events[6] == ("sync", f".latest.{pid}")


def test_a_second_save_of_a_step_is_in_place_before_the_first_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, remove, there = save(tmp_path, 1), shutil.rmtree, []

    def removed(path: Path, **more: bool) -> None:
        if path.exists():
            there.append((first.path / "MANIFEST").exists())
        remove(path, **more)

    monkeypatch.setattr(shutil, "rmtree", removed)
    save(tmp_path, 1)
    assert there == [True]
    assert [path.name for path in checkpoint.folders(tmp_path)] == ["step-00000001"]


def test_sha256sum_accepts_the_manifest(tmp_path: Path) -> None:
    saved = save(tmp_path, 1)
    done = subprocess.run(["sha256sum", "-c", "MANIFEST"], cwd=saved.path, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_twenty_flipped_bits_and_five_truncations_are_all_noticed(tmp_path: Path) -> None:
    older, newer = save(tmp_path, 1), save(tmp_path, 2)
    pick = random.Random(0)
    files = [newer.path / name for name in ("state.pt", "meta.json", "MANIFEST")]
    for case in range(25):
        file = files[case % 3]
        content = file.read_bytes()
        if case < 20:
            damaged = bytearray(content)
            damaged[pick.randrange(len(content))] ^= 1 << pick.randrange(8)
        else:
            damaged = bytearray(content[: len(content) * (case - 20) // 5])
        file.write_bytes(damaged)
        found, problems = checkpoint.newest_intact(tmp_path)
        assert found == older, f"case {case}, {file.name}"
        assert len(problems) == 1 and "step-00000002" in problems[0]
        file.write_bytes(content)
    assert checkpoint.newest_intact(tmp_path) == (newer, [])


def test_fifty_kills_at_random_moments_leave_a_complete_checkpoint(tmp_path: Path) -> None:
    """The loop runs in a forked child, so that a kill costs milliseconds, not an import. Each child
    is killed somewhere within its first three saves, however slow the machine is."""
    began = time.perf_counter()
    save(tmp_path, 1)
    duration = time.perf_counter() - began
    pick, before = random.Random(1), 1
    for kill in range(50):
        saves, said = os.pipe()
        child = os.fork()
        if child == 0:
            checkpoint.clean(tmp_path)
            step = before
            while True:
                step += 1
                save(tmp_path, step, keep=2)
                os.write(said, b".")
        for _ in range(pick.randrange(3)):
            os.read(saves, 1)
        time.sleep(pick.uniform(0.0, duration))  # the random instant is the test
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(saves)
        os.close(said)
        newest, problems = checkpoint.newest_intact(tmp_path)
        assert newest, f"kill {kill}: {problems}"
        assert not problems, f"kill {kill}: a torn folder is called step-*: {problems}"
        assert newest.step >= before
        state, meta = checkpoint.decode(checkpoint.read(newest.path))
        assert float(state["model"]["w"][0]) == newest.step == meta["step"]
        before = newest.step
    assert before > 25, "the loop hardly saved: nothing was tested"


@pytest.mark.parametrize("call", range(40))
def test_a_crash_before_any_system_call_leaves_a_complete_checkpoint(
    tmp_path: Path, call: int
) -> None:
    """Count the calls that change the disk; at number `call` the process is gone."""
    save(tmp_path, 1)
    save(tmp_path, 2, keep=2)
    child = os.fork()
    if child == 0:
        left = call

        def watch(event: str, args: tuple[object, ...]) -> None:
            nonlocal left
            writes = event == "open" and isinstance(args[2], int) and args[2] & os.O_WRONLY
            if writes or event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.open"):
                left -= 1
                if left < 0:
                    os._exit(9)

        sys.addaudithook(watch)
        save(tmp_path, 3, keep=2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    newest, problems = checkpoint.newest_intact(tmp_path)
    assert newest and newest.step in (2, 3) and not problems
    if os.waitstatus_to_exitcode(status) == 0:
        assert newest.step == 3
    checkpoint.clean(tmp_path)
    assert save(tmp_path, 4).step == 4


def test_a_full_disk_is_a_one_line_error_and_keeps_existing_files(tmp_path: Path) -> None:
    older = save(tmp_path, 1)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))  # the kernel's own refusal
    try:
        with pytest.raises(CheckpointError, match=r"cannot write .*step-00000002: File too large"):
            save(tmp_path, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert checkpoint.newest_intact(tmp_path) == (older, [])
    assert [p.name for p in (tmp_path / "ckpt").iterdir() if p.name.startswith(".")] == []


def test_saving_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    first = save(tmp_path, 5)
    (first.path / "state.pt").write_bytes(b"damaged")
    assert checkpoint.verify(save(tmp_path, 5).path) == first


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch owned",)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Evil()}, "evil.pt")
    files = {"state.pt": Path("evil.pt").read_bytes(), "meta.json": b"{}"}
    checkpoint.publish(tmp_path, 1, files)  # whole by its hashes
    with pytest.raises(CheckpointError, match="not a checkpoint of this trainer"):
        checkpoint.decode(checkpoint.read(tmp_path / "ckpt" / "step-00000001"))
    assert not Path("owned").exists()


def test_listing_hashes_every_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    assert main(["ckpt", "ls", str(tmp_path / "ckpt")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "step-00000001  epoch 1  0.0 MB  best top-1 -  resnet8, ranks: 1  intact" in first
    assert f"intact {newest.identity[:16]}" in second
    (newest.path / "state.pt").write_bytes(b"")
    assert main(["ckpt", "ls", str(tmp_path)]) == 4
    assert "state.pt is damaged (sha256 differs)  DAMAGED" in capsys.readouterr().out
    assert main(["ckpt", "ls", str(tmp_path / "nothing")]) == 4
    assert "found no checkpoint" in capsys.readouterr().err


def test_exporting_takes_the_newest_intact_checkpoint_and_its_averaged_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    target = tmp_path / "net.pth"
    assert main(["ckpt", "export", str(tmp_path), str(target)]) == 0
    assert float(torch.load(target)["w"][0]) == 2
    (newest.path / "state.pt").write_bytes(b"")
    assert main(["ckpt", "export", str(tmp_path), str(target)]) == 0
    assert "skipped: " in capsys.readouterr().out
    assert float(torch.load(target)["w"][0]) == 1
    averaged = {"model": {"w": torch.zeros(1)}, "ema": {"w": torch.ones(1)}}
    checkpoint.save(tmp_path, averaged, META | {"step": 3}, keep=3)
    assert main(["ckpt", "export", str(tmp_path / "ckpt" / "step-00000003"), str(target)]) == 0
    assert torch.load(target)["w"].tolist() == [1.0]
    assert main(["ckpt", "export", str(tmp_path), str(tmp_path / "net.txt")]) == 2


def test_weights_on_a_full_disk_are_one_line_and_leave_the_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "best.pth"
    checkpoint.write_weights(path, {"w": torch.ones(5)})
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot write .*best\.pth: File too large$"):
            checkpoint.write_weights(path, {"w": torch.zeros(5000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert torch.load(path)["w"].tolist() == [1.0] * 5
    assert [p.name for p in tmp_path.iterdir()] == ["best.pth"]
