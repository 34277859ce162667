"""Whatever one host's engine answers, every command speaks for the other hosts, and none ends with 70."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fakes import FakeCluster

Make = Callable[..., FakeCluster]

LIES: list[tuple[str, Any]] = [
    ("containers", RecursionError("maximum recursion depth exceeded")),
    ("containers", ValueError("Exceeds the limit (4300 digits) for integer string conversion")),
    ("containers", [[1], None, 7]),
    ("volumes", RecursionError("maximum recursion depth exceeded")),
    ("volumes", [1]),
    ("inspect_container", [1]),
    ("info", [1]),
    ("info", KeyError("ApiVersion")),
]


@pytest.mark.parametrize(("call", "lie"), LIES)
def test_the_others_are_listed_checked_and_stopped(fake_cluster: Make, call: str, lie: Any) -> None:
    cluster = fake_cluster("good", "evil")
    run_id = cluster.launch("--detach")[1].strip()
    good, evil = cluster
    evil.lies[call] = lie
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file)
    assert code in (0, 4) and run_id in out, err
    assert cluster.ddpctl("clean", cluster.hosts_file)[0] in (0, 4)
    assert cluster.ddpctl("kill", cluster.hosts_file, "--strays")[0] in (0, 6)
    code, _, err = cluster.ddpctl("kill", cluster.hosts_file)
    assert code in (0, 6) and good.nodes == {}, err
    evil.lies.clear()
    assert cluster.record["pending_stop"] == (["evil"] if evil.nodes else [])
    assert (code == 6) == bool(evil.nodes)


def test_the_traceback_is_kept_for_the_case_that_it_is_a_bug(fake_cluster: Make) -> None:
    cluster = fake_cluster("good", "evil")
    cluster.hosts["evil"].lies["containers"] = RecursionError("deep")
    code, _, err = cluster.ddpctl("ps", cluster.hosts_file, "--json")
    assert code == 4
    [kept] = (cluster.state / "ddpctl").glob("internal-error-*.txt")
    assert str(kept) in err and "RecursionError: deep" in kept.read_text()


def test_a_stop_on_a_host_that_answers_nonsense_is_remembered(fake_cluster: Make) -> None:
    cluster = fake_cluster("good", "evil")
    run_id = cluster.launch("--detach")[1].strip()
    cluster.hosts["evil"].lies["containers"] = RecursionError("deep")
    code, out, _ = cluster.ddpctl("kill", run_id, "--json")
    [run] = json.loads(out)["runs"]
    assert (code, run["confirmed"]) == (6, False)
    assert [host["host"] for host in run["hosts"]] == ["good"]
    assert cluster.record["pending_stop"] == ["evil"]


def test_texts_that_are_no_unicode_can_be_printed(fake_cluster: Make) -> None:
    cluster = fake_cluster("good", "evil")
    run_id = cluster.launch("--detach")[1].strip()
    [node] = cluster.hosts["evil"].nodes.values()
    node.arguments["labels"]["io.ddpctl.owner"] = "\ud800"
    code, out, err = cluster.ddpctl("ps", cluster.hosts_file, "--nodes")
    assert code == 0 and run_id in out and "evil" in out, err
