"""A wrong hosts file: every problem at once, one line each, with its place and remedy."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from launcher.errors import HostsFileError
from launcher.hosts import Job, cluster_of, load, parse, user_env


def problems(text: str) -> list[str]:
    with pytest.raises(HostsFileError) as caught:
        parse(text, "hosts.yaml")
    assert caught.value.exit_code == 2
    assert all("\n" not in line for line in str(caught.value).splitlines())
    return str(caught.value).splitlines()


def test_every_problem_is_reported_at_once_in_the_order_of_the_file() -> None:
    found = problems(
        """defaults: {port: -22}
hosts:
  - {host: a, prot: 22}
  - {host: b, port: 0}
  - {host: b, gpus: 2}
job:
  imgae: x
  nproc_per_node: 0
  engine: process
"""
    )
    assert [line.split(": ")[:2] for line in found] == [
        ["hosts.yaml:1", "defaults.port"],
        ["hosts.yaml:3", "hosts[0].prot"],
        ["hosts.yaml:4", "hosts[1].port"],
        ["hosts.yaml:5", "hosts[2]"],
        ["hosts.yaml:7", "job.imgae"],
        ["hosts.yaml:8", "job.nproc_per_node"],
    ]


def test_the_form_of_a_problem() -> None:
    assert problems("hosts:\n  - host: a\n    prot: 2222\n") == [
        "hosts.yaml:3: hosts[0].prot: found an unknown key; did you mean 'port'?"
    ]
    assert problems("hosts: [a]\njob:\n  master_port: 70000\n") == [
        "hosts.yaml:3: job.master_port: found 70000; write a number from 1 to 65535, or auto"
    ]


def test_the_known_keys_are_listed_once_per_section() -> None:
    lines = problems("hosts: [{host: a, zzz: 1, yyy: 2}]\njob: {zzz: 1, yyy: 2}\n")
    assert [("; allowed: " in line) for line in lines] == [True, False, True, False]
    assert all("found an unknown key; correct or remove it" in line for line in lines)


HOST_PROBLEMS = [
    ("{host: a, port: -1}", "found -1"),
    ("{host: a, port: 0}", "found 0"),
    ("{host: a, port: 70000}", "found 70000"),
    ("{host: a, port: 0022}", "found 0022"),
    ("{host: a, port: 22.0}", "found 22.0"),
    ("{host: a, port: yes}", "found yes"),
    ("{host: a, port: }", "found nothing"),
    ("{host: a, port: [22]}", "found a list"),
    ("{host: a, port: 22, port: 23}", "appears twice (first on line 2)"),
    ("{host: a, gpus: -1}", "found -1"),
    ("{host: a, gpus: al}", "did you mean 'all'?"),
    ("{host: a, gpus: []}", "0 for CPU"),
    ("{host: a, gpus: [0, 0]}", "found 0 twice"),
    ("{host: a, gpus: [-1]}", "found -1"),
    ("{host: a, gpus: [a, 1]}", "found a;"),
    ("{host: a, gpus: '0,1'}", "a list of ids such as [0, 1]"),
    ("{host: a, gpus: {0: 1}}", "found a mapping"),
    ("{host: -oProxyCommand=id}", "ssh would read the name"),
    ("-oProxyCommand=id", "ssh would read the name"),
    ("u@-host", "ssh would read the name"),
    ("{host: 'a b'}", "found a b"),
    ('{host: "a\\nb"}', r"found 'a\nb'"),
    ('{host: "a\\e[31mb"}', r"\x1b"),
    ("{host: 'a;id'}", "remove ;"),
    ("{host: '$(id)'}", "found $(id)"),
    ("{host: 'fe80::1%a;id'}", "remove ;"),
    ("{host: bob@gpu}", "write host: gpu and user: bob"),
    ("{host: 'gpu:2222'}", "write host: gpu and port: 2222"),
    ("{host: 'a:b:c'}", "remove :"),
    ("{host: 'ssh://a'}", "remove / :"),
    ("{host: }", "found nothing"),
    ("{host: ''}", "found empty text"),
    ("''", "found empty text"),
    ("{gpus: 2}", "found no host"),
    ("gpu1:8", "write {host: gpu1, port: 8} or {host: gpu1, gpus: 8}"),
    ("gpu1:99999", "found 99999"),
    ("'@gpu1'", "found empty text"),
    ("u@", "found empty text"),
    ("5", 'quote it if you mean the text: "5"'),
    ("yes", "a yes/no value"),
    ("[a]", "found a list"),
    ("{host: a, user: 'x y'}", "found x y"),
    ("{host: a, user: -x}", "ssh would read the name"),
    ("{host: a, user: 'x;y'}", "remove ;"),
    ("{host: a, user: no}", "a yes/no value"),
    ("{host: a, identity_file: ''}", "found empty text"),
    ("{host: a, proxy_jump: -x}", "ssh would read the name"),
    ("{host: a, proxy_jump: 'a,-x'}", "write [user@]host[:port]"),
    ("{host: a, proxy_jump: 'a:0'}", "write [user@]host[:port]"),
    ("{host: a, proxy_jump: 'a b'}", "found a b"),
    ("{host: a, internal_ip: gpu1}", "without a port or mask"),
    ("{host: a, internal_ip: 10.0.0.1/24}", "without a port or mask"),
    ("{host: a, internal_ip: 10.0.0.256}", "without a port or mask"),
    ("{host: a, internal_ip: 0.0.0.0}", "without a port or mask"),
    ("{host: a, interface: 'ib0,ib1'}", "as `ip link` shows it"),
    ("{host: a, interface: '^docker0'}", "as `ip link` shows it"),
    ("{host: a, interface: a-very-long-interface}", "as `ip link` shows it"),
    ('{host: a, interface: "ib0\\n"}', r"found 'ib0\n'"),
    ("{host: a, host_keys: no}", "found no; write ask or accept-new"),
    ("{host: a, host_keys: accept_new}", "did you mean 'accept-new'?"),
    ("{host: local, port: 22}", "`local` does not use SSH"),
    ("u@local", "`local` does not use SSH"),
    ("{host: a, hostname: b}", "did you mean 'host'?"),
    ("{host: a, slots: 8}", "did you mean 'gpus'?"),
    ("{host: a, image: b}", "move it under `job:`"),
    ("{host: a, [b]: c}", "a key that is not text"),
    ("!!python/object/apply:os.system ['id']", "YAML tag"),
]


@pytest.mark.parametrize(("written", "expected"), HOST_PROBLEMS)
def test_a_wrong_host(written: str, expected: str) -> None:
    found = problems(f"hosts:\n  - {written}\n")
    assert any(expected in line for line in found), found
    assert all(line.startswith("hosts.yaml:2: ") for line in found)


JOB_PROBLEMS = [
    ("engine: podman", "found podman; write docker (for hosts with Docker or Podman)"),
    ("engine: Docker", "process or apptainer; did you mean 'docker'?"),
    ("image: Foo/Bar", "lower case"),
    ("image: 'a b'", "as `docker images` shows it"),
    ("image: --privileged", "as `docker images` shows it"),
    ("image: 1.10", 'quote it if you mean the text: "1.10"'),
    ("image:", "found nothing"),
    ("workdir: 5", "a number"),
    ("workdir: /", "use a path below /"),
    ('dataset: "a\\0b"', "cannot be passed to a program"),
    ("command: python train.py --lr 1", "write [train.py, --lr, 1]"),
    ("command: [python3, train.py]", "remove python3:"),
    ("command: [torchrun, train.py]", "remove torchrun:"),
    ("command: []", "nothing to run"),
    ("command: [train.py, [1]]", "job.command[1]: found a list"),
    ("command: [train.py, null]", "job.command[1]: found nothing"),
    ('command: [train.py, "\\0"]', "cannot be passed to a program"),
    ("resume_args: --resume", "write [--resume]"),
    ("nproc_per_node: 0", "found 0"),
    ("nproc_per_node: two", "from 1 to 1024"),
    ("master_port: 0", "found 0"),
    ("master_port: -29500", "found -29500"),
    ("master_port: 029500", "found 029500"),
    ("master_port: atuo", "did you mean 'auto'?"),
    ("env: [A=1]", "write NAME: value"),
    ("env: {A B: 1}", "job.env.A B: found the name A B"),
    ("env: {1A: 1}", "found the name 1A"),
    ("env: {RANK: 1}", "ddpctl or torchrun sets it"),
    ("env: {A: }", "found nothing"),
    ("env: {A: [1]}", "found a list"),
    ("env: {A: 1, A: 2}", "appears twice"),
    ("mounts: /a:/b", "found /a:/b; "),
    ("mounts: [/a]", "write /host/folder:/container/folder"),
    ("mounts: ['a:/b']", "write /host/folder:/container/folder"),
    ("mounts: ['/a:b']", "write /host/folder:/container/folder"),
    ("mounts: ['~/a:/b']", "write /host/folder:/container/folder"),
    ("mounts: ['/a:/b:rx']", "write /host/folder:/container/folder"),
    ("mounts: ['/a:/b:']", "write /host/folder:/container/folder"),
    ("mounts: ['/a:/b:ro:x']", "write /host/folder:/container/folder"),
    ("mounts: ['/a:/checkpoints/x']", "where ddpctl's own"),
    ("mounts: ['/a://checkpoints/.']", "where ddpctl's own"),
    ("mounts: ['/a:/']", "where ddpctl's own"),
    ("mounts: ['/a:/../output']", "and `..`"),
    ('mounts: ["/a\\n/../b:/c"]', "write /host/folder:/container/folder"),
    ("mounts: ['/a:/c', '/b:/c/']", "two mounts at /c"),
    ("{dataset: d, mounts: ['/a:/data']}", "where dataset is mounted"),
    ("{workdir: d, mounts: ['/a:/workspace/x']}", "where workdir is mounted"),
    ("devices: /dev/fuse", "such as [/dev/fuse]"),
    ("devices: [fuse]", "job.devices[0]: found fuse"),
    ("devices: [/dev/../etc]", "write /dev/NAME"),
    ("devices: ['/dev/a:/dev/b:x']", "write /dev/NAME"),
    ("cap_add: [sys-ptrace]", "`man 7 capabilities`"),
    ("ulimits: {files: many, nofile: x}", "job.ulimits.nofile: found x"),
    ("ulimits: {nofiles: 1}", "did you mean 'nofile'?"),
    ("ulimits: {nofile: many}", "job.ulimits.nofile: found many"),
    ("ulimits: {nofile: -2}", "found -2"),
    ("pids_limit: -2", "write a number up to 4194304; -1 is unlimited"),
    ("new_privileges: maybe", "write allow or forbid"),
    ("tmpfs: {scratch: 1g}", "write an absolute path"),
    ("tmpfs: {/checkpoints/x: 1g}", "found a mount at /checkpoints/x, where ddpctl's own"),
    ("tmpfs: {/fast: 16q}", "job.tmpfs./fast: found 16q"),
    ("{dataset: d, tmpfs: {/data/x: 1g}}", "where dataset is mounted"),
    ("{mounts: ['/a:/b'], tmpfs: {/b: 1g}}", "job.tmpfs: found two mounts at /b"),
    ("shm_size: 16q", "write a size"),
    ("shm_size: 16", "write a size from 1m"),
    ("shm_size: -16g", "write a size"),
    ("shm_size: 0", "write a size from 1m"),
    ("shm_size: 9999999t", "write a size from 1m to 1024t"),
    ("user: bob", "such as 1000:1000"),
    ("user: hots", "did you mean 'host'?"),
    ("user: '1:99999999999'", "such as 1000:1000"),
    ("max_restarts: -1", "found -1"),
    ("stop_timeout: 60s", "found 60s"),
    ("stop_timeout: -1", "found -1"),
    ("time_limit: 2.5h", "write a duration such as 90s, 30m, 2h30m"),
    ("time_limit: 30m2h", "write a duration such as 90s, 30m, 2h30m"),
    ("time_limit: 24", "write 24h or 24m"),
    ("time_limit: 0", "up to 365d"),
    ("time_limit: 366d", "up to 365d"),
    ("numa: on", "write auto or off"),
    ("torchrun_args: --role=a", "write [--role=a]"),
    ("torchrun_args: [train.py]", "put the script into job.command"),
    ("torchrun_args: [--role, a, --nproc_per_node=2]", "set job.nproc_per_node"),
    ("torchrun_args: [--max-rest, 3]", "set job.max_restarts"),
    ("torchrun_args: [--rdzv-conf, a=1]", "ddpctl tells the nodes where to meet"),
    ("torchrun_args: [-t3]", "`ddpctl logs`"),
    ("torchrun_args: ['--']", "put it into job.command"),
    ("volumes: []", "did you mean 'mounts'?"),
    ("dataset: s3://bucket/x", "ddpctl does not read URLs"),
    ("gpus: 2", "move it under `hosts:`"),
    ("python: /opt/torch/bin/python", "set engine: process"),
    ("{engine: process, python: a, conda: b}", "keep one of them"),
    ("requirements: requirements.txt", "install packages in an image with `ddpctl image build`"),
    ("nproc_per_node: 3", "found 2 GPUs, but job.nproc_per_node is 3"),
]


@pytest.mark.parametrize(("line", "expected"), JOB_PROBLEMS)
def test_a_wrong_job(line: str, expected: str) -> None:
    found = problems(f"hosts:\n  - host: a\n    gpus: 2\njob:\n  {line}\n")
    assert any(expected in text for text in found), found


def test_every_flag_of_torchrun_that_ddpctl_sets_is_named_at_once() -> None:
    found = problems("hosts: [a]\njob: {torchrun_args: [--nnodes=3, --role=a, --rdzv-id, x]}\n")
    assert ["--nnodes=3" in found[0], "--rdzv-id" in found[1], len(found)] == [True, True, 2]


@pytest.mark.parametrize(
    "line",
    ["mounts: ['/a:/b']", "tmpfs: {/a: 1g}", "devices: [/dev/a]", "cap_add: [ALL]"]
    + ["ulimits: {nofile: 1}", "pids_limit: 9", "new_privileges: allow"],
)
def test_the_process_engine_has_no_container(line: str) -> None:
    (found,) = problems(f"hosts: [local]\njob:\n  engine: process\n  {line}\n")
    key = line.partition(":")[0]
    assert found.startswith(f"hosts.yaml:4: job.{key}: found {key} with engine: process")


def test_a_node_has_a_gpu_for_each_of_its_processes() -> None:
    (found,) = problems(
        "hosts:\n  - {host: a, gpus: 4}\n  - {host: b, gpus: 2, nproc_per_node: 3}\n"
        "job: {nproc_per_node: 4}\n"
    )
    assert found.startswith(
        "hosts.yaml:3: hosts[1].gpus: found 2 GPUs, but hosts[1].nproc_per_node is 3; "
    )


def test_a_run_cannot_go_on_with_more_nodes_than_it_has(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text("hosts: [a, b]\nspares: [c]\njob:\n  min_nodes: 3\n")
    found = "job.min_nodes: found 3 with only 2 hosts; write at most 2, or list more hosts"
    with pytest.raises(HostsFileError, match=f"hosts.yaml:4: {found}"):
        load(file)
    assert load(file, job_files=False).job.min_nodes == 3  # as a resume with --exclude leaves it
    (tmp_path / "job.yaml").write_text("min_nodes: 3")
    (tmp_path / "two.yaml").write_text("hosts: [a, b]\n")
    with pytest.raises(HostsFileError, match=f"job.yaml:1: {found}"):
        cluster_of(tmp_path / "two.yaml", {}, job_file=str(tmp_path / "job.yaml"))
    with pytest.raises(HostsFileError, match=f"here: {found}"):
        cluster_of(file, {"min_nodes": 3}, source="here")
    assert cluster_of(file, {"min_nodes": 2}).job.min_nodes == 2


@pytest.mark.parametrize(
    "hosts",
    [
        "[a, a]",
        "[a, A]",
        "[local, local]",
        "[{host: a, gpus: 2}, {host: a, gpus: 2}]",
        "[{host: a, gpus: [0, 1]}, {host: a, gpus: [1]}]",
        "[{host: a, gpus: [0]}, {host: a}]",
        "[a, {host: a, port: 22}]",
        "[b, {host: a, gpus: [0]}, {host: a, gpus: 1}]",
    ],
)
def test_one_gpu_belongs_to_one_node(hosts: str) -> None:
    (found,) = problems(f"hosts: {hosts}\n")
    assert "give the entries of one machine different GPU ids" in found


def test_a_spare_is_not_also_a_host() -> None:
    (found,) = problems("hosts: [a]\nspares: [a]\n")
    assert found.startswith("hosts.yaml:2: spares[0]: ")


def test_two_machines_have_two_addresses() -> None:
    (found,) = problems(
        "hosts:\n  - {host: a, internal_ip: 10.0.0.1}\n  - {host: b, internal_ip: 10.0.0.1}\n"
    )
    assert found.startswith(
        "hosts.yaml:3: hosts[1].internal_ip: found 10.0.0.1, which is also the address of hosts[0]"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "found an empty file"),
        ("# only a comment\n", "found an empty file"),
        ("just some words\n", "found just some words"),
        ("- a\n- b\n", "found a list"),
        ("hosts:\n", "found no hosts"),
        ("hosts: []\n", "found no hosts"),
        ("job: {}\n", "found no hosts"),
        ("hosts: {a: {}}\n", "found a mapping"),
        ("hosts: a,b\n", "found a,b"),
        ("hosts: [a]\nspares: b\n", "spares: found b"),
        ("hosts: [a]\njob: [b]\n", "job: found a list"),
        ("hosts: [a]\ndefaults: 3\n", "defaults: found 3"),
        ("hosts: [a]\nhosts: [b]\n", "appears twice"),
        ("hosts: [a]\nhots: [b]\n", "did you mean 'hosts'?"),
        ("hosts: [a]\nimage: b\n", "move it under `job:`"),
        ("host: [a]\n", "host: found an unknown key; did you mean 'hosts'?"),
        ("hosts: [a]\ndefaults: {internal_ip: 10.0.0.1}\n", "move it under `hosts:`"),
        ("hosts: [a\n", "not YAML"),
        ("hosts:\n\t- a\n", "hosts.yaml:2: found a tab; indent with spaces"),
        ("{{{{", "not YAML"),
        ("hosts: [a]\n---\nhosts: [b]\n", "not YAML"),
        ("hosts: [*a]\n", "not YAML"),
        ("hosts: &a [*a]\n", "an alias inside the value"),
        ("hosts: [a]\njob: {<<: 3}\n", "`<<` with a number"),
        ("a\x00b", "hosts.yaml:1: found the control character #x00; remove it"),
        ("hosts:\n - é\n# \x07\n", "hosts.yaml:3: found the control character #x07; remove it"),
        ("hosts: [\ud800]", "not YAML"),
        ("[" * 10_000, "too many nested lists"),
        ("hosts: " + "[" * 900 + "a" + "]" * 900, "too many nested lists"),
        ("hosts: [a]\njob:\n  master_port:\n    70000\n", "hosts.yaml:3: job.master_port"),
    ],
)
def test_a_document_that_is_not_a_hosts_file(text: str, expected: str) -> None:
    found = problems(text)
    assert any(expected in line for line in found), found


def test_a_billion_laughs_are_refused_immediately() -> None:
    levels = "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 12)}]" for i in range(1, 12))
    start = time.monotonic()
    found = problems("l0: &l0 [ha]\n" + levels + "\nhosts: *l11\n")
    assert any("write one host per entry" in line for line in found), found
    assert time.monotonic() - start < 1


def test_each_of_many_hosts_may_merge_the_same_mapping() -> None:
    merging = [f"  - {{host: gpu{i}, <<: *eight}}\n" for i in range(1, 201)]
    text = "hosts:\n  - &eight {host: gpu0, gpus: 8}\n" + "".join(merging)
    assert [host.gpus for host in parse(text, "hosts.yaml").hosts] == [8] * 201


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "[" * 999_990,
        "- " * 499_000,
        "{a: " * 240_000,
        "hosts:\n - &x {host: a, " + ", ".join(f"k{i}: 1" for i in range(20_000)) + "}\n"
        + "\n".join(" - *x" for _ in range(99)),
        "hosts: [a]\njob: {image: " + "a-" * 400_000 + "}",
        "hosts: [a]\njob: {mounts: ['/" + "/.." * 300_000 + "']}",
    ],
    ids=["lists", "blocks", "mappings", "aliases of wrong keys", "image", "mount"],
)  # fmt: skip
def test_a_file_that_is_meant_to_exhaust_the_reader_is_refused_in_seconds(text: str) -> None:
    start = time.process_time()
    assert 1 <= len(problems(text)) <= 1001
    assert time.process_time() - start < 5


def test_after_a_thousand_mistakes_one_line_says_that_there_are_more() -> None:
    lines = problems("hosts: [a]\njob:\n" + "\n".join(f"  k{i}: 1" for i in range(1200)))
    assert len(lines) == 1001
    assert lines[-1] == "hosts.yaml: found more mistakes; fix these first"


# Files


def file_problems(path: Path) -> list[str]:
    with pytest.raises(HostsFileError) as caught:
        load(path)
    return str(caught.value).splitlines()


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    def problem_of(name: str, data: bytes) -> str:
        path = tmp_path / name
        path.write_bytes(data)
        (line,) = file_problems(path)
        assert line.startswith(str(path))
        return line

    assert "found an empty file" in problem_of("empty", b"")
    assert "more than 1 MB" in problem_of("large", b"# x\n" * 2_500_000)
    assert "byte 0x80, which is not UTF-8" in problem_of("binary", bytes(range(256)))
    assert ":2: found byte 0xe9, which is not UTF-8" in problem_of(
        "latin1", b"hosts:\n  - caf\xe9\n"
    )
    assert "not UTF-8" in problem_of("utf16", "hosts: [a]".encode("utf-16"))
    (line,) = file_problems(tmp_path)
    assert line.startswith(f"{tmp_path}: cannot be read: is a directory; ")
    (line,) = file_problems(tmp_path / "none.yaml")
    assert "cannot be read: no such file or directory" in line
    (line,) = file_problems(Path(f"{tmp_path}/\0"))
    assert "cannot be read" in line


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_bytes(b"\xef\xbb\xbfhosts: [a]\n")
    assert load(path).hosts[0].host == "a"


def test_files_that_are_not_there_are_named_with_everything_else(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    path = tmp_path / "hosts.yaml"
    path.write_text(
        """defaults: {identity_file: id_none}
hosts: [a, {host: b, identity_file: .}]
job:
  workdir: plain
  dataset: nowhere
  env_file: none.env
  max_restarts: -1
"""
    )
    assert [line.split("; ")[0] for line in file_problems(path)] == [
        f"{path}:1: defaults.identity_file: found {tmp_path}/id_none, which does not exist on this machine",
        f"{path}:2: hosts[1].identity_file: found {tmp_path}, which is not a file on this machine",
        f"{path}:4: job.workdir: found {tmp_path}/plain, which is not a folder on this machine",
        f"{path}:5: job.dataset: found {tmp_path}/nowhere, which does not exist on this machine",
        f"{path}:6: job.env_file: found {tmp_path}/none.env, which does not exist on this machine",
        f"{path}:7: job.max_restarts: found -1",
    ]
    assert file_problems(path)[0].endswith("; correct the path")
    assert file_problems(path)[4].endswith("; correct the path or create it")
    assert file_problems(path)[3].endswith('nowhere:/data:ro"]')


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_key_that_may_not_be_read(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch(mode=0)
    path = tmp_path / "hosts.yaml"
    path.write_text("hosts: [{host: a, identity_file: key}]\n")
    assert "cannot be read (permission denied)" in file_problems(path)[0]


def test_an_env_file_is_checked_without_showing_its_secrets(tmp_path: Path) -> None:
    (tmp_path / "secrets.env").write_bytes(
        b"# comment\n\nTOKEN=hunter2\nhunter3\nA B=hunter4\nRANK=hunter5\nX=\xff hunter6\n"
    )
    path = tmp_path / "hosts.yaml"
    path.write_text("hosts: [a]\njob:\n  env_file: secrets.env\n")
    found = file_problems(path)
    assert [line.split(" line ")[1][0] for line in found] == ["4", "5", "6", "7"]
    assert "hunter" not in "".join(found)


def env_file_problem(folder: Path, env_file: Path | str) -> str:
    path = folder / "hosts.yaml"
    path.write_text(f"hosts: [a]\njob:\n  env_file: {env_file}\n")
    (line,) = file_problems(path)
    with pytest.raises(HostsFileError) as caught:
        user_env(Job(env_file=str(env_file)))
    assert len(str(caught.value).splitlines()) == 1
    return line


@pytest.mark.timeout(20)
def test_an_env_file_that_is_not_a_small_file_is_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").write_text("A=1\n" * 300_000)
    assert "which is not a file" in env_file_problem(tmp_path, tmp_path / "fifo")
    assert "which is not a file" in env_file_problem(tmp_path, tmp_path)
    assert "which is not a file" in env_file_problem(tmp_path, "/dev/zero")
    assert "which is larger than 1 MB" in env_file_problem(tmp_path, tmp_path / "large")
    assert "which cannot be read (" in env_file_problem(tmp_path, "/proc/self/mem")


def test_a_value_of_an_env_file_ends_with_its_line_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "secrets.env"
    path.write_bytes("A=1\x0c2\n B =x\u2028y=\x85 \r\n\n#C=3\nD=\nE=a\rb\n".encode())
    variables = user_env(Job(env_file=str(path)))
    assert variables == {"A": "1\x0c2", "B": "x\u2028y=\x85 ", "D": "", "E": "a\rb"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "lines",
    [
        [f"  - gpu{i}.lab" for i in range(20_000)],
        [f"  - {{host: a, gpus: [{i % 250}]}}" for i in range(10_000)],
        ["  - {host: a, gpus: [" + "0, " * 100_000 + "0]}"],
        ["  - a", "job:", "  mounts: [" + ", ".join(f"/a:/b{i}" for i in range(50_000)) + "]"],
    ],
    ids=["hosts", "nodes of one machine", "GPU ids", "mounts"],
)
def test_the_largest_files_are_read_in_seconds(lines: list[str]) -> None:
    start = time.process_time()
    with contextlib.suppress(HostsFileError):
        parse("\n".join(["hosts:", *lines]), "x")
    assert time.process_time() - start < 5
