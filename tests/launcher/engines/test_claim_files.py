"""Claims of local processes: files that count while a process has them locked."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from launcher.engines import claim_files
from launcher.engines.status import ContainerState
from launcher.errors import CommandFailed

LABELS = {
    "io.ddpctl.run-id": "r",
    "io.ddpctl.attempt": "1",
    "io.ddpctl.node-rank": "0",
    "io.ddpctl.nnodes": "1",
    "io.ddpctl.owner": "ann",
    "io.ddpctl.gpus": "GPU-1",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(claim_files, "FOLDER", tmp_path / "claims")
    return tmp_path / "claims"


def states() -> list[str]:
    return [status.state for status in claim_files.claims("local")]


def test_a_claim_lasts_as_long_as_a_process_has_it(folder: Path) -> None:
    claim_files.publish("local", "ddpctl-r-0", ContainerState.CREATED, LABELS)
    [claim] = claim_files.claims("local")
    assert (claim.state, claim.gpus, claim.expired) == ("created", ("GPU-1",), False)
    inherited = os.dup(claim_files.held["ddpctl-r-0"])  # as a supervisor has it
    claim_files.started("ddpctl-r-0")
    assert states() == ["running"]
    os.close(inherited)
    assert states() == []
    assert list(folder.iterdir()) == []


def test_every_user_may_read_the_claims_and_only_the_owner_may_remove_one(folder: Path) -> None:
    claim_files.publish("local", "ddpctl-r-0", ContainerState.WAITING, LABELS)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((folder / "ddpctl-r-0.waiting").stat().st_mode) == 0o644
    claim_files.remove("ddpctl-r-0")


def test_files_of_others_are_skipped(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "a.created")
    (folder / "b.running").symlink_to("/etc/passwd")
    (folder / "c.waiting").mkdir()
    (folder / "d.created").write_text(json.dumps(LABELS))
    assert states() == []


def test_a_folder_that_is_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    folder.symlink_to(tmp_path)
    with pytest.raises(CommandFailed, match="cannot be used: is a link; ask root to remove it"):
        claim_files.publish("local", "ddpctl-r-0", ContainerState.CREATED, LABELS)
