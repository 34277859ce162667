"""Any hosts file gives a Cluster or a HostsFileError, and a dumped Cluster reads back equal."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.errors import HostsFileError
from launcher.hosts import Cluster, Host, Job, dump, load, parse
from launcher.hosts.schema import HOST, JOB, SCHEMA, SECTIONS
from launcher.hosts.values import SET_BY_DDPCTL

pytestmark = pytest.mark.slow

EDITOR = jsonschema.Draft7Validator(SCHEMA)
KEYS = [*HOST, *JOB, *SECTIONS]
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["all", "auto", "local", "host", "16g", "a:22", "u@b", "/a:/b", "-x", "~", "0"]
    )
)
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=15,
)
documents = st.fixed_dictionaries({}, optional=dict.fromkeys(SECTIONS, trees)) | trees


def accepts_or_explains(read: Any) -> None:
    """No other exception, and every problem is one printable line."""
    try:
        made = read()
    except HostsFileError as error:
        assert str(error).splitlines()
        assert all(line and line.isprintable() for line in str(error).splitlines()), str(
            error
        ).splitlines()
    else:
        assert isinstance(made, Cluster) and made.hosts
        assert parse(dump(made), made.source) == made


@given(st.text())
@example('hosts: ["\\e[31m:8"]')
@example("\x1b[31m")
def test_any_text(text: str) -> None:
    accepts_or_explains(lambda: parse(text, "x"))
    accepts_or_explains(lambda: parse("gpu1 slots=2\n" + text, "x"))
    accepts_or_explains(lambda: load([text]))


@given(st.lists(st.sampled_from([*"{}[]:-&*!|>'\"%@`#,? \n\t", "a", "hosts", "<<", "\x00"])))
def test_any_yaml_punctuation(parts: list[str]) -> None:
    accepts_or_explains(lambda: parse("".join(parts), "x"))


@given(documents)
@settings(max_examples=300)
def test_any_yaml_structure(document: Any) -> None:
    accepts_or_explains(lambda: parse(yaml.safe_dump(document), "x"))


@given(st.binary() | st.text(alphabet="hosts: -[]{}&*\n#ab8=\t").map(str.encode))
def test_any_file(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hosts.yaml"
        path.write_bytes(data)
        accepts_or_explains(lambda: load(path))


# Clusters that are right

name = st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True).filter(lambda n: n != "local")
argument = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
path = argument.filter(lambda t: t.strip("/. \t") == t and t.isprintable() and t != "").map(
    lambda t: "/" + t.replace("//", "/")
)
port = st.integers(1, 65535)
gpus = (
    st.just("all")
    | st.integers(0, 16)
    | st.lists(st.integers(0, 15), min_size=1, max_size=8, unique=True).map(tuple)
)
hosts = st.builds(
    Host,
    host=name,
    user=st.none() | st.from_regex(r"[a-z][a-z0-9._-]{0,8}", fullmatch=True),
    port=st.none() | port,
    identity_file=st.none() | path,
    proxy_jump=st.none() | st.sampled_from(["none", "j", "u@j:22", "a,b"]),
    gpus=gpus,
    nproc_per_node=st.none() | st.just(1),
    internal_ip=st.none() | st.ip_addresses(v=4, network="10.0.0.0/8").map(str),
    interface=st.none() | st.sampled_from(["ib0", "eth0", "enp1s0f0", "on"]),
    host_keys=st.sampled_from(["ask", "accept-new"]),
)
env_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda n: n not in SET_BY_DDPCTL
)
jobs = st.builds(
    Job,
    image=st.sampled_from(["a", "a:1.10", "reg:5000/a/b:x", "a@sha256:" + "0" * 64]),
    workdir=st.none() | path,
    dataset=st.none() | path,
    command=st.lists(argument, max_size=4).map(lambda rest: ("x.py", *rest)),
    resume_args=st.lists(argument, max_size=3).map(tuple),
    nproc_per_node=st.none() | st.just(1),
    master_port=st.just("auto") | port,
    env=st.dictionaries(env_names, argument, max_size=4),
    env_file=st.none() | path,
    mounts=st.lists(st.sampled_from(["/a:/b", "/c d:/e:ro", "/f:/g:rw"]), unique=True).map(tuple),
    tmpfs=st.dictionaries(st.sampled_from(["/t", "/v/w"]), st.integers(2**20, 2**40)),
    shm_size=st.integers(2**20, 2**40),
    devices=st.lists(st.sampled_from(["/dev/a", "/dev/b:/dev/c:rw"])).map(tuple),
    cap_add=st.lists(st.sampled_from(["SYS_PTRACE", "ALL"])).map(tuple),
    ulimits=st.dictionaries(st.sampled_from(["nofile", "memlock"]), st.integers(-1, 2**40)),
    pids_limit=st.sampled_from([-1, 1, 32768]),
    new_privileges=st.sampled_from(["allow", "forbid"]),
    user=st.sampled_from(["host", "root", "0:0", "12:34", "1000:1000"]),
    numa=st.sampled_from(["auto", "off"]),
    torchrun_args=st.sampled_from([(), ("--role", "a b"), ("--local-addr=::1",)]),
    max_restarts=st.integers(0, 1000),
    stop_timeout=st.integers(0, 86400),
    time_limit=st.none() | st.integers(1, 365 * 86400),
)


def apart(host: Host) -> str:
    return host.host


@given(
    st.lists(hosts, min_size=1, max_size=5, unique_by=(apart, lambda h: h.internal_ip or h.host)),
    jobs,
    st.booleans(),
)
@settings(max_examples=300)
def test_a_cluster_reads_back_equal(made: list[Host], job: Job, spare: bool) -> None:
    split = 1 if spare else len(made)
    cluster = Cluster(hosts=tuple(made[:split]), spares=tuple(made[split:]), job=job, source="x")
    assert parse(dump(cluster), "x") == cluster
    EDITOR.validate(yaml.safe_load(dump(cluster)))  # an editor accepts what ddpctl accepts
