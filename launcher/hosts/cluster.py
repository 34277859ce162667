"""What the hosts file says, as values: `Cluster`, its `Host`s and the `Job` they do together.

`load` is the way in from a command line; it looks at the disk. `parse` does not.
`parse(dump(cluster), ...)` gives the cluster again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from .files import look, text_of
from .problems import Problems
from .read import Document, read_document
from .rules import Entry, check_job, check_rules
from .schema import JOB
from .values import At, Reading
from .yaml import Sequence as YamlList
from .yaml import Table, Text, Tree

_STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, config=_STRICT)
class Host:
    """One node. Its place in `Cluster.hosts` is its node rank. `host` is as written."""

    host: str
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    proxy_jump: str | None = None
    gpus: Literal["all"] | int | tuple[int, ...] = "all"
    internal_ip: str | None = None
    interface: str | None = None
    host_keys: Literal["ask", "accept-new"] = "ask"

    @property
    def is_local(self) -> bool:
        return self.host == "local"

    @property
    def machine(self) -> tuple[str, int]:
        """The same for two hosts that are one machine, whoever logs in there.

        A host name is the same in any letter case, and no port is port 22.
        """
        return self.host.lower(), self.port or 22

    @property
    def account(self) -> tuple[str | None, str, int]:
        """The same for two hosts that share a home folder: one user on one machine."""
        return self.user, *self.machine

    @property
    def name(self) -> str:
        """What log lines and messages call it."""
        return self.host


@dataclass(frozen=True, config=_STRICT)
class Job:
    """What every node runs. Paths are absolute; shm_size is in bytes, stop_timeout in seconds."""

    engine: Literal["docker", "process"] = "docker"
    image: str = "ddpctl-trainer:latest"
    workdir: str | None = None
    dataset: str | None = None
    command: tuple[str, ...] = ("-m", "trainer")
    resume_args: tuple[str, ...] = ()
    nproc_per_node: int | None = None
    master_port: int | Literal["auto"] = 29500
    env: Mapping[str, str] = field(default_factory=dict)
    env_file: str | None = None
    mounts: tuple[str, ...] = ()
    shm_size: int = 16 * 1024**3
    user: str = "host"
    max_restarts: int = 0
    stop_timeout: int = 60


@dataclass(frozen=True, config=_STRICT)
class Cluster:
    """hosts: by node rank. spares: take the place of a lost host. source: where it was read."""

    hosts: tuple[Host, ...]
    job: Job = field(default_factory=Job)
    spares: tuple[Host, ...] = ()
    source: str = "hosts.yaml"

    @property
    def nnodes(self) -> int:
        return len(self.hosts)

    def with_job(
        self,
        *,
        cwd: str | Path | None = None,
        image: str | None = None,
        dataset: str | None = None,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        nproc_per_node: int | None = None,
        max_restarts: int | None = None,
        command: Sequence[str] | None = None,
    ) -> Cluster:
        """The same cluster with what a command line says; None leaves the file's value.

        env is added to the file's. Relative paths are relative to cwd. HostsFileError names each
        flag that is wrong, a folder that is not there included.
        """
        given: dict[str, Tree | None] = {
            "image": _tree(image),
            "dataset": _tree(dataset),
            "workdir": _tree(workdir),
            "env": _tree(env),
            "nproc_per_node": _tree(nproc_per_node),
            "max_restarts": _tree(max_restarts),
            "command": _tree(command),
        }
        reading = _reading("command line", cwd)
        found: dict[str, Any] = {}
        for key in JOB:
            tree = given.get(key.name)
            if tree is not None:
                flag = "COMMAND" if key.name == "command" else "--" + key.name.replace("_", "-")
                found[key.name] = key.read(tree, At(reading, flag, key.allowed))
        if "env" in found and found["env"] is not None:
            found["env"] = {**self.job.env, **found["env"]}
        settled = {
            **_written(asdict(self.job)),
            **{k: v for k, v in found.items() if v is not None},
        }
        entries = [_entry_of(host, f"hosts[{i}]") for i, host in enumerate(self.hosts)]
        check_rules(entries, settled, reading.problems)
        check_job(settled, {}, reading.problems)
        look(reading)
        reading.problems.raise_any()
        return replace(self, job=replace(self.job, **found))


def load(hosts: str | Path, *, job_files: bool = True, overridden: Collection[str] = ()) -> Cluster:
    """The cluster of a hosts file, a DeepSpeed or MPI hostfile, or a list such as gpu1:8,gpu2:8.

    HostsFileError has a line for each problem, missing files included. job_files=False is for
    commands that work without the job's own files (`ps`, `kill` from any machine); overridden
    names keys of the job that the command line gives, so that the file's need not exist.
    """
    from .hostfile import is_hostfile, is_hosts_flag, parse_hostfile, parse_hosts_flag

    path = Path(hosts)
    if is_hosts_flag(str(hosts)) and not path.exists():
        return parse_hosts_flag(str(hosts))
    text = text_of(path)
    if is_hostfile(text):
        return parse_hostfile(text, str(hosts))
    reading = _reading(str(hosts), path.absolute().parent)
    document = read_document(text, reading)
    unused = {place.key for place in reading.places if place.key.startswith("job.")}
    if job_files:
        unused &= {f"job.{key}" for key in overridden}
    look(reading, unused)
    return _cluster(document, reading)


def parse(text: str, source: str, *, base: str | Path | None = None) -> Cluster:
    """The cluster that the YAML in `text` describes; HostsFileError has all problems.

    source names it in messages; base is what relative paths are relative to (default: the folder
    of source). Whether files exist is not looked at.
    """
    reading = _reading(source, Path(source).parent if base is None else base)
    return _cluster(read_document(text, reading), reading)


def dump(cluster: Cluster) -> str:
    """The hosts file as used: defaults merged, paths absolute, only what was said."""
    from .dump import dump_cluster

    return dump_cluster(cluster)


def _cluster(document: Document, reading: Reading) -> Cluster:
    reading.problems.raise_any()
    return Cluster(
        hosts=tuple(Host(**entry.merged) for entry in document.hosts),
        spares=tuple(Host(**entry.merged) for entry in document.spares),
        job=Job(**(document.job or {})),  # type: ignore[arg-type]
        source=reading.problems.source,
    )


def _reading(source: str, base: str | Path | None) -> Reading:
    folder = Path.cwd() if base is None else Path(base).absolute()
    return Reading(Problems(source), str(folder), str(Path.home()))


# What a Cluster says in the terms of the reader


def _tree(value: object) -> Tree | None:
    """A value of a command line as if it had been read from a file."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        entries = {str(k): Text(0, str(v)) for k, v in value.items()}
        return Table(0, entries, dict.fromkeys(entries, 0))
    if isinstance(value, (list, tuple)):
        return YamlList(0, tuple(Text(0, str(item)) for item in value))
    return Text(0, str(value))


def _written(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in fields.items() if v is not None}


def _entry_of(host: Host, key: str) -> Entry:
    fields = _written(asdict(host))
    return Entry(key, 0, {}, fields)
