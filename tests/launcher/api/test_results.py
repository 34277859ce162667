"""Results: the value of every rank, or the exception of the first that failed."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.api.call import (
    Raised,
    RankResult,
    parsed_outcome,
    read_outcomes,
    results,
    split,
)
from launcher.engines.choose import engine_of
from launcher.engines.node_handle import AttemptHandle, NodeHandle
from launcher.errors import CommandFailed, DdpctlError, NodesFailed, RemoteError, RunFailed
from launcher.failure import FirstFailure
from launcher.hosts import Host
from launcher.outcomes import RunState
from launcher.plan.plan import place_in
from launcher.ssh.host_connection import HostConnection


def record(state: RunState, world_size: int = 2, failed: int | None = None) -> Any:
    failure = None
    if failed is not None:
        message = "exited with 1"
        failure = FirstFailure("gpu1", 0, failed, 0, 1, None, "exit-code", "", message, "", "")
    attempt = SimpleNamespace(world_size=world_size, first_failure=failure)
    return SimpleNamespace(run_id="r1", state=state, attempt=attempt)


def raised(kind: str, message: str = "boom") -> RankResult:
    return RankResult("gpu1", error=Raised(kind, message, f"Traceback ...\n{kind}: {message}"))


def test_results_are_in_the_order_of_the_ranks() -> None:
    outcomes = {1: RankResult("gpu2", [1]), 0: RankResult("gpu1", None)}
    assert results(record(RunState.SUCCEEDED), outcomes, trust=False) == [None, [1]]


def test_the_exception_of_the_first_failure_is_raised_with_its_traceback() -> None:
    outcomes = {0: raised("RuntimeError", "peer left"), 1: raised("ValueError")}
    with pytest.raises(ValueError, match=r"^boom$") as caught:
        results(record(RunState.FAILED, failed=1), outcomes, trust=False)
    remote = caught.value.__cause__
    assert isinstance(remote, RemoteError) and (remote.host, remote.rank) == ("gpu1", 1)
    assert "Traceback ...\nValueError: boom" in str(remote)


@pytest.mark.parametrize("kind", ["CustomError", "UnicodeDecodeError", "SystemExit", "print"])
def test_an_exception_that_cannot_be_made_again_is_a_remote_error(kind: str) -> None:
    with pytest.raises(RemoteError) as caught:
        results(record(RunState.FAILED, failed=0), {0: raised(kind)}, trust=False)
    assert (caught.value.type, caught.value.message) == (kind, "boom")


def test_an_exception_with_the_name_of_a_built_in_one_keeps_its_own_type() -> None:
    outcomes = {0: RankResult("gpu1", error=Raised("ConnectionError", "boom", "", built_in=False))}
    with pytest.raises(RemoteError):
        results(record(RunState.FAILED, failed=0), outcomes, trust=False)


def test_a_rank_that_died_without_an_exception_is_named() -> None:
    with pytest.raises(RunFailed, match=r"r1: rank 1 \(gpu1, local_rank 0\) exited with 1"):
        results(record(RunState.FAILED, failed=1), {0: RankResult("gpu1", 1)}, trust=False)
    effect = {0: raised("RuntimeError", "connection closed by peer")}
    with pytest.raises(RunFailed, match="exited with 1"):
        results(record(RunState.FAILED, failed=1), effect, trust=False)
    with pytest.raises(RuntimeError, match="closed by peer"):
        results(record(RunState.FAILED), effect, trust=False)
    with pytest.raises(RunFailed, match="rank 1 ended without returning a result"):
        results(record(RunState.SUCCEEDED), {0: RankResult("gpu1", 1)}, trust=False)


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was loaded",)


def test_a_pickle_is_loaded_only_where_the_user_trusts_the_hosts() -> None:
    trap = base64.b64encode(pickle.dumps(Trap())).decode()
    outcomes = {0: RankResult("gpu1", 5, pickle=trap)}
    assert results(record(RunState.SUCCEEDED, 1), outcomes, trust=False) == [5]
    failed = {0: RankResult("gpu1", error=Raised("ValueError", "boom", ""), pickle=trap)}
    with pytest.raises(ValueError, match="boom"):
        results(record(RunState.FAILED, 1, failed=0), failed, trust=False)
    trusted = {0: RankResult("gpu1", pickle=base64.b64encode(pickle.dumps({1: (2, 3)})).decode())}
    assert results(record(RunState.SUCCEEDED, 1), trusted, trust=True) == [{1: (2, 3)}]
    with pytest.raises(CommandFailed, match="gpu1: cannot unpickle a result"):
        results(record(RunState.SUCCEEDED, 1), {0: RankResult("gpu1", pickle="AAAA")}, trust=True)


def place_with(folder: Path, rank: int, text: str, node: int = 0) -> Any:
    place = place_in(f"{folder}/runs/r1", "r1", node, 1)
    results = Path(place.run_dir) / "output" / "results" / "attempt-1" / f"node-{node}"
    results.mkdir(parents=True, exist_ok=True)
    (results / f"rank-{rank}").write_text(text)
    (results / f"rank-{rank}.new").write_text("half")
    return place


def attempt(*places: Any) -> AttemptHandle:
    connections = [HostConnection(Host("local")) for _ in places]
    for number, connection in enumerate(connections):
        connection.name = f"gpu{number}"
    return AttemptHandle(
        tuple(
            NodeHandle(connection, engine_of(connection, "process"), place)
            for connection, place in zip(connections, places, strict=True)
        )
    )


def test_results_are_read_from_every_host(tmp_path: Path) -> None:
    first = place_with(tmp_path / "a", 0, '{"result": "one\\ntwo"}')
    place_with(tmp_path / "a", 1, '{"result": 1}')
    second = place_with(tmp_path / "b", 2, '{"result": null}', node=1)
    found, _ = read_outcomes(attempt(first, second, place_in("/none/runs/r1", "r1", 2, 1)))
    assert {rank: (each.host, each.result) for rank, each in found.items()} == {
        0: ("gpu0", "one\ntwo"),
        1: ("gpu0", 1),
        2: ("gpu1", None),
    }


def test_no_host_can_speak_for_the_rank_of_another(tmp_path: Path) -> None:
    honest = place_with(tmp_path / "a", 0, '{"result": 1}')
    same = place_with(tmp_path / "shared", 0, '{"result": 1}')
    assert read_outcomes(attempt(honest, same))[0][0].result == 1
    forged = place_with(tmp_path / "b", 0, '{"result": 2}')
    with pytest.raises(CommandFailed, match="both gpu0 and gpu1 have a result for rank 0"):
        read_outcomes(attempt(honest, forged))


def test_nodes_that_share_a_folder_are_each_read_up_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.api.call.MAX_RESULTS", 300)
    text = json.dumps({"result": "x" * 250})
    places = [place_with(tmp_path, node, text, node=node) for node in range(8)]
    assert [*read_outcomes(attempt(*places))[0]] == [*range(8)]


def test_a_host_that_sends_without_end_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_with(tmp_path, 0, json.dumps({"result": "x" * 1000}))
    monkeypatch.setattr("launcher.api.call.MAX_RESULTS", 300)
    with pytest.raises(DdpctlError, match=r"gpu0: .*printed more than 0\.0006 MB"):
        raise NodesFailed(read_outcomes(attempt(place))[1])


@pytest.mark.parametrize("data", [b"noise\n", b"-1 {}\n", b"0 {}\n\n", b"99999999 {}\n"])
def test_frames_that_are_wrong_are_refused(data: bytes) -> None:
    with pytest.raises(CommandFailed, match="gpu1: cannot read the results"):
        split(data, "gpu1")


def test_a_result_of_very_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.api.call.MOST_VALUES", 100)
    parsed_outcome("gpu1", json.dumps({"result": [0] * 90}).encode())
    with pytest.raises(
        CommandFailed, match=r"gpu1: a result has more than 100 values; .*OUTPUT_DIR"
    ):
        parsed_outcome("gpu1", json.dumps({"result": [0] * 110}).encode())


@pytest.mark.parametrize("text", [b"", b"[]", b'{"error": 1}', b'{"pickle": 1}', b"[" * 100_000])
def test_documents_that_are_wrong_are_refused(text: bytes) -> None:
    with pytest.raises(CommandFailed, match="gpu1: cannot read a result"):
        parsed_outcome("gpu1", text)
