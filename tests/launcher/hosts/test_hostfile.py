"""DeepSpeed and MPI hostfiles, and `-H`: each slot is a GPU."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from launcher.errors import HostsFileError, UsageError
from launcher.hosts import Cluster, Host, Job, load, parse
from launcher.hosts.hostfile import is_host_list, is_hostfile


def test_a_deepspeed_hostfile(tmp_path: Path) -> None:
    path = tmp_path / "hostfile"
    path.write_text("# cluster\n\ngpu1 slots=8   # the master\nbob@gpu2 slots = 4\ngpu3\n")
    assert load(path) == Cluster(
        hosts=(Host("gpu1", gpus=8), Host("gpu2", user="bob", gpus=4), Host("gpu3")),
        job=Job(),
        source=str(path),
    )


def test_mpi_spellings() -> None:
    made = parse("gpu1:8\ngpu2 slots=2 max_slots=4\n[fe80::1]:2\n", "hf")
    assert made.hosts == (Host("gpu1", gpus=8), Host("gpu2", gpus=2), Host("fe80::1", gpus=2))


def test_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = (Host("gpu1", gpus=8), Host("gpu2", user="bob", gpus=0), Host("gpu3"))
    assert load(["gpu1:8", "bob@gpu2:0", "gpu3"]).hosts == hosts
    monkeypatch.chdir(tmp_path)
    assert load("gpu1:8,bob@gpu2:0,gpu3").hosts == hosts
    (tmp_path / "gpu1:8").write_text("hosts: [other]\n")
    assert load("gpu1:8").hosts == (Host("other"),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu1 slots=8\n", True),
        ("\n# x\ngpu1  slots=8 max_slots=9\n", True),
        ("gpu1:8\n", True),
        ("gpu1 slots=\n", True),
        ("hosts:\n  - gpu1\n", False),
        ("hosts: [gpu1]\n", False),
        ("nonsense\n", False),
        ("{hosts: [a]}\n", False),
        ("- gpu1\n", False),
        ("", False),
    ],
)
def test_a_hostfile_is_expected_from_yaml_by_its_content(text: str, expected: bool) -> None:
    assert is_hostfile(text) is expected


@pytest.mark.parametrize(("text", "wrong"), [("a,,b", 1), (",a", 0), (",", 0), ("a:8,,", 1)])
def test_a_list_that_lacks_a_host_is_no_missing_file(text: str, wrong: int) -> None:
    with pytest.raises(HostsFileError, match=rf"-H: hosts\[{wrong}\].host: found empty text"):
        load(text)


def test_a_list_may_have_spaces() -> None:
    assert load("a, b:8").hosts == (Host("a"), Host("b", gpus=8))


@pytest.mark.parametrize("name", ["hosts.yaml", "/tmp/x:8", "dir/gpu1:8", "gpu1", "a:b"])
def test_a_file_name_is_no_list_of_hosts(name: str) -> None:
    assert not is_host_list(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu1 slots=8\ngpu1 slots=8\n", "hf:2: hosts[1]: found gpu1 twice"),
        ("gpu1 slots=x\n", "hf:1: hosts[0]: found gpu1 slots=x"),
        ("gpu1 slots=-1\n", "hf:1: hosts[0]: found gpu1 slots=-1"),
        ("gpu1 slots=\n", "hf:1: hosts[0]: found gpu1 slots="),
        ("gpu1 slot=8\n", "did you mean 'slots'?"),
        ("gpu1 slots=8 slots=9\n", "found gpu1 slots=8 slots=9"),
        ("gpu1 slots=8\n-oX slots=2\n", "hf:2: hosts[1].host: found -oX"),
        ("gpu1 slots=8\ngpu2 8\n", "hf:2: hosts[1]: found gpu2 8"),
    ],
)
def test_a_wrong_hostfile(text: str, expected: str) -> None:
    with pytest.raises(HostsFileError) as caught:
        parse(text, "hf")
    assert any(expected in line for line in str(caught.value).splitlines()), str(
        caught.value
    ).splitlines()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("gpu1:8,gpu1:8", "twice"),
        ("gpu1:8,,gpu2:8", "hosts[1].host: found empty text"),
        ("gpu1:x", "found gpu1:x"),
        ("-x:8", "as an option"),
        ("", "found empty text"),
    ],
)
def test_a_wrong_flag(value: str, expected: str) -> None:
    with pytest.raises(HostsFileError) as caught:
        load(value.split(","))
    assert any(expected in line for line in str(caught.value).splitlines()), str(
        caught.value
    ).splitlines()
    assert str(caught.value).splitlines()[0].startswith("-H: ")


def test_a_list_of_hosts_of_any_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    many = [f"gpu{i}.lab.example.org" for i in range(300)]
    assert [host.host for host in load(many).hosts] == many
    counted = ",".join(f"{name}:8" for name in many)
    assert load(counted.split(",")).hosts == load(counted).hosts


def test_hosts_without_a_number_use_all_their_gpus() -> None:
    assert load(["a", "b"]).hosts == (Host("a"), Host("b"))


def test_a_file_name_that_is_too_long_is_one_line() -> None:
    with pytest.raises(HostsFileError, match="cannot be read: file name too long"):
        load("x" * 300)


@pytest.mark.parametrize(
    "text", ["a[1]" * 200_000 + "(", "a b" + " " * 500_000 + "(", "a " + "b= " * 100_000 + "x y"]
)
def test_a_long_line_is_no_hostfile_and_takes_no_time(text: str) -> None:
    began = time.process_time()
    assert not is_hostfile(text)
    assert time.process_time() - began < 1


def test_a_list_of_hosts_alone_is_no_inventory() -> None:
    with pytest.raises(HostsFileError, match="found a list; write `hosts:`"):
        parse("[gpu1, gpu2]\n", "hosts.yaml")


@pytest.mark.parametrize("line", ["x ansible_user='a", 'x "'])
def test_a_quote_without_its_pair_in_an_inventory_is_one_line(line: str) -> None:
    with pytest.raises(HostsFileError, match=r"inv:2: found .*; close the quotes"):
        parse(f"[a]\n{line}\n", "inv")


def test_a_file_of_an_allocation_may_have_any_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nodes").write_bytes(b"gpu1\xff\n")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    monkeypatch.chdir(tmp_path)
    assert [host.host for host in load("pbs").hosts] == ["gpu1\ufffd"]


def test_the_hosts_of_an_allocation_run_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[08-10],big-1")
    made = load("slurm")
    assert [host.host for host in made.hosts] == ["gpu08", "gpu09", "gpu10", "big-1"]
    assert made.job.engine == "process"
    nodes = tmp_path / "nodes"
    nodes.write_text("gpu1\ngpu1\ngpu2\n")  # PBS writes a line per processor
    monkeypatch.setenv("PBS_NODEFILE", str(nodes))
    assert [host.host for host in load("pbs").hosts] == ["gpu1", "gpu2"]
    monkeypatch.delenv("SLURM_JOB_NODELIST")
    with pytest.raises(UsageError, match="SLURM_JOB_NODELIST is not set"):
        load("slurm")
    (tmp_path / "slurm").write_text("gpu7 slots=2\n")
    assert [host.host for host in load("slurm").hosts] == ["gpu7"]
