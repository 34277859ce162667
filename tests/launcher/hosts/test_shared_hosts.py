"""Machines and job in files of their own; ranges of hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import HostsFileError
from launcher.hosts import cluster_of, dump, load, parse
from launcher.text import names, names_in

LAB = """\
defaults: {user: lab, gpus: 2, identity_file: key}
hosts: [gpu1, {host: gpu2, user: root}]
spares: [gpu3]
job: {not: ours}
"""


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    (tmp_path / "lab").mkdir()
    (tmp_path / "mine" / "code").mkdir(parents=True)
    (tmp_path / "lab" / "key").touch()
    (tmp_path / "lab" / "hosts.yaml").write_text(LAB)
    return tmp_path


def own(lab: Path, text: str) -> Path:
    path = lab / "mine" / "own.yaml"
    path.write_text(text)
    return path


def test_hosts_defaults_and_spares_come_from_the_other_file_and_own_defaults_win(lab: Path) -> None:
    cluster = load(
        own(lab, "hosts: ../lab/hosts.yaml\ndefaults: {user: me}\njob: {workdir: code}\n")
    )
    assert [(host.host, host.user, host.gpus) for host in (*cluster.hosts, *cluster.spares)] == [
        ("gpu1", "me", 2),
        ("gpu2", "root", 2),
        ("gpu3", "me", 2),
    ]
    assert cluster.hosts[0].identity_file == str(lab / "lab" / "key")
    assert cluster.job.workdir == str(lab / "mine" / "code")
    assert parse(dump(cluster), cluster.source) == cluster


def test_own_spares_replace_those_of_the_other_file(lab: Path) -> None:
    cluster = load(own(lab, "hosts: ../lab/hosts.yaml\nspares: [gpu9]\n"))
    assert [host.host for host in cluster.spares] == ["gpu9"]


def test_a_mistake_names_the_file_that_it_is_in(lab: Path) -> None:
    other = lab / "lab" / "hosts.yaml"
    other.write_text("hosts:\n  - {host: gpu1, prot: 22}\n  - {host: gpu1}\n")
    path = own(lab, "job: {imge: x}\nhosts: ../lab/hosts.yaml\n")
    with pytest.raises(HostsFileError) as wrong:
        load(path)
    assert f"{path}:1: job.imge" in str(wrong.value)
    assert f"{other}:2: hosts[0].prot" in str(wrong.value)
    assert f"{other}:3: hosts[1]: found gpu1 twice" in str(wrong.value)
    other.write_text("hosts: [gpu1]\nspares:\n  - gpu1\n")
    with pytest.raises(HostsFileError) as wrong:
        load(path)
    assert f"{other}:3: spares[0]: found gpu1 twice" in str(wrong.value)
    with pytest.raises(
        HostsFileError, match=r"own.yaml:1: hosts: found .*nowhere.yaml, which does not exist"
    ):
        load(own(lab, "hosts: nowhere.yaml\n"))


@pytest.mark.parametrize(
    "text", ["workdir: code\nimage: 'mine:1'\n", "job: {workdir: code, image: 'mine:1'}\n"]
)
def test_a_job_file_takes_the_place_of_the_job(lab: Path, text: str) -> None:
    (lab / "lab" / "hosts.yaml").write_text("hosts: [gpu1]\njob: {dataset: gone}\n")
    cluster = cluster_of(
        lab / "lab" / "hosts.yaml", {"image": "other:1"}, job_file=str(own(lab, text))
    )
    assert cluster.job.workdir == str(lab / "mine" / "code")
    assert (cluster.job.image, cluster.job.dataset) == ("other:1", None)
    with pytest.raises(HostsFileError, match=r"own.yaml:1: job.wrkdir"):
        cluster_of(lab / "lab" / "hosts.yaml", {}, job_file=str(own(lab, "wrkdir: code\n")))


def test_ranges_of_hosts_are_read_as_they_are_printed() -> None:
    hosts = ["gpu08.lab", "gpu09.lab", "gpu10.lab", "gpu12.lab"]
    assert names(hosts) == "gpu[08-10,12].lab"
    assert names_in("gpu[08-10,12].lab") == hosts
    text = "hosts:\n  - me@gpu[1-2].lab:2222\n  - {host: 'ib[1-2]', internal_ip: '10.0.0.[7-8]'}\n"
    assert [(h.host, h.user, h.port, h.internal_ip) for h in parse(text, "h").hosts] == [
        ("gpu1.lab", "me", 2222, None),
        ("gpu2.lab", "me", 2222, None),
        ("ib1", None, None, "10.0.0.7"),
        ("ib2", None, None, "10.0.0.8"),
    ]
    listed = load("gpu[1,3]:8,login")
    assert [(h.host, h.gpus) for h in listed.hosts] == [("gpu1", 8), ("gpu3", 8), ("login", "all")]


@pytest.mark.parametrize(
    ("hosts", "remedy"),
    [
        ("  - gpu{1..4}", "write gpu[1-4]"),
        ("  - gpu[1-9999999]", "write a shorter range"),
        ("  - {host: 'gpu[1-2]', internal_ip: '10.0.0.[1-3]'}", "make them equally long"),
        ("  [gpu[1-4].lab]", "put the range on its own line"),
    ],
)
def test_a_range_in_another_form_is_one_line_with_the_right_one(hosts: str, remedy: str) -> None:
    with pytest.raises(HostsFileError) as wrong:
        parse(f"hosts:\n{hosts}\n", "h.yaml")
    assert remedy in str(wrong.value) and "\n" not in str(wrong.value)


def test_a_file_of_names_is_a_hostfile(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("gpu1.lab\ngpu2.lab slots=4\n")
    assert [(h.host, h.gpus) for h in load(tmp_path / "hostfile").hosts] == [
        ("gpu1.lab", "all"),
        ("gpu2.lab", 4),
    ]
