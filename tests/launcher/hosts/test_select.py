"""--include and --exclude: which hosts and GPUs are left, in the order of the file."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import UsageError
from launcher.hosts import Cluster, Host, parse, select

FILE = """
hosts:
  - {host: a, gpus: 4}
  - {host: B, gpus: [2, 5]}
  - {host: c, gpus: [0, 1]}
  - {host: c, gpus: [2, 3]}
  - {host: d, gpus: all}
  - {host: cpu, gpus: 0}
spares: [{host: spare, gpus: 4}]
"""
CLUSTER = parse(FILE, "hosts.yaml")


def left(include: str | None = None, exclude: str | None = None) -> list[tuple[str, Any]]:
    return [(host.name, host.gpus) for host in select(CLUSTER, include, exclude).hosts]


ALL = left()


@pytest.mark.parametrize(
    ("include", "kept"),
    [
        ("a", [("a", 4)]),
        ("cpu@a", [("a", 4), ("cpu", 0)]),
        ("a:3,1", [("a", (1, 3))]),
        ("b:5@a", [("a", 4), ("B", (5,))]),
        ("c", [("c", (0, 1)), ("c", (2, 3))]),
        ("c:3", [("c", (3,))]),
        ("c:1,2", [("c", (1,)), ("c", (2,))]),
        ("d:7,0", [("d", (0, 7))]),
    ],
)
def test_include_keeps_only_what_it_names(include: str, kept: list[tuple[str, Any]]) -> None:
    assert left(include) == kept


@pytest.mark.parametrize(
    ("exclude", "changed"),
    [
        ("a", {0: None}),
        ("a:0,2", {0: (1, 3)}),
        ("b:2,5", {1: None}),
        ("c:0,1,2", {2: None, 3: (3,)}),
        ("d@cpu", {4: None, 5: None}),
        ("spare", {}),
    ],
)
def test_exclude_removes_what_it_names(exclude: str, changed: dict[int, Any]) -> None:
    expected = [
        (name, changed.get(i, gpus))
        for i, (name, gpus) in enumerate(ALL)
        if changed.get(i, gpus) is not None
    ]
    assert left(exclude=exclude) == expected


def test_a_cpu_node_on_a_machine_with_gpus_stays_when_gpus_are_named() -> None:
    both = parse("hosts: [{host: a, gpus: 2}, {host: a, gpus: 0}]", "hosts.yaml")
    assert [host.gpus for host in select(both, None, "a:0").hosts] == [(1,), 0]
    assert [host.gpus for host in select(both, "a:0", None).hosts] == [(0,)]


def test_equal_entries_of_one_machine_stay_two_nodes() -> None:
    nodes = parse("hosts: [{host: a, gpus: 0}, {host: a, gpus: 0}, b]", "hosts.yaml")
    assert select(nodes, "a", None).hosts == nodes.hosts[:2]


def test_spares_are_selected_like_hosts() -> None:
    assert select(CLUSTER, None, "spare:0").spares == (Host("spare", gpus=(1, 2, 3)),)
    assert select(CLUSTER, "a", None).spares == ()
    assert select(CLUSTER, "a@spare", None).spares == CLUSTER.spares


@pytest.mark.parametrize(
    ("include", "exclude", "said"),
    [
        ("a", "B", "--include and --exclude cannot be combined"),
        ("nope", None, "--include: hosts.yaml has no host 'nope'; name one of a,B,c,d,cpu,spare"),
        ("a:4", None, "--include: a has no GPU 4 in hosts.yaml"),
        (None, "c:1,9", "--exclude: c has no GPU 9 in hosts.yaml"),
        ("cpu:0", None, "--include: cpu has no GPU 0 in hosts.yaml"),
        (None, "d:0", "--exclude: d has gpus: all, so it is unknown which GPUs would be left"),
        (None, "a@b@c@d@cpu", "leaves no host of hosts.yaml"),
        ("spare", None, "leaves no host of hosts.yaml"),
        ("a@@b", None, "pass host1@host2:0,2"),
        ("", None, "pass host1@host2:0,2"),
        ("a:", None, "has no host 'a:'"),
        ("a@A:1", None, "names 'a' twice"),
    ],
)
def test_an_impossible_selection_is_a_one_line_error(
    include: str | None, exclude: str | None, said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        select(CLUSTER, include, exclude)
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


def test_hosts_may_be_a_range_as_in_the_file_and_in_messages() -> None:
    lab = parse("hosts: ['gpu[1-4]', {host: 'gpu[5-6]', gpus: 4}]", "hosts.yaml")
    with pytest.raises(UsageError, match=r"name one of gpu\[1-6\]"):
        select(lab, "nope", None)
    kept = select(lab, "gpu[1-2,4]@gpu[5-6]:0,2", None).hosts
    assert [host.name for host in kept] == ["gpu1", "gpu2", "gpu4", "gpu5", "gpu6"]
    assert [host.gpus for host in kept[2:]] == ["all", (0, 2), (0, 2)]
    assert [host.name for host in select(lab, None, "GPU[2-6]").hosts] == ["gpu1"]


def test_an_ipv6_address_is_a_name_with_colons() -> None:
    cluster = Cluster((Host("fe80::1", gpus=2), Host("fe80::2", gpus=2)))
    assert select(cluster, "fe80::1:1", None).hosts == (Host("fe80::1", gpus=(1,)),)
    assert select(cluster, "fe80::1", None).hosts == cluster.hosts[:1]


@given(st.sets(st.integers(0, 3), min_size=1, max_size=3))
def test_include_and_exclude_of_the_same_text_split_the_hosts(ids: set[int]) -> None:
    text = "a:" + ",".join(map(str, ids))
    [kept], rest = select(CLUSTER, text, None).hosts, select(CLUSTER, None, text).hosts[0]
    assert sorted([*kept.gpus, *rest.gpus]) == [0, 1, 2, 3]
