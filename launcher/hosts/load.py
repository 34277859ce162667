"""Load a hosts file, a hostfile or a list of hosts, with values from the command line.

`load` reads files, `parse` does not. `parse(dump(cluster), ...)` returns an equal cluster.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import UsageError
from .cluster import Cluster, Host
from .files import text_of
from .hostfile import SCHEDULERS, allocated_hosts, is_host_list, read_host_list
from .job import Job
from .rules import HostEntry, broken_rules
from .schema import HOST, JOB
from .select import select
from .source_reader import SourceReader
from .yaml_tree import MAPPING, RawValue, raw, read_yaml

Source: TypeAlias = str | Path | Sequence[str] | None
Hosts: TypeAlias = Source | Cluster

COMMAND_LINE = "command line"
DEFAULT_HOSTS = "hosts.yaml"


def cluster_of(
    hosts: Hosts,
    job: Mapping[str, object],
    include: str | None = None,
    exclude: str | None = None,
    *,
    source: str = COMMAND_LINE,
    job_file: str | None = None,
) -> Cluster:
    """Return the cluster, reduced to the selected hosts. Values of `job` override the file's.

    hosts: a file, a list such as "gpu1:8,gpu2:8" or ["gpu1:8", "gpu2:8"], a Cluster, or None for
    ./hosts.yaml. job: values by key; None keeps the file's value. source: the origin of `job`, for
    messages. job_file: the file to read the job from, if it is not the hosts file.
    Raises UsageError if the hosts or the values are wrong.
    """
    overridden = [key for key, value in job.items() if value is not None]
    if isinstance(hosts, Cluster):
        cluster = hosts
    else:
        cluster = load(hosts, job_files=job_file is None, overridden=overridden)
    if job_file is not None:
        cluster = replace(cluster, job=_load_job(job_file, overridden, cluster.nnodes))
    return override_job(select(cluster, include, exclude), job, source=source)


def load(
    hosts: Source,
    *,
    job_files: bool = True,
    overridden: Collection[str] = (),
    convert: bool = False,
) -> Cluster:
    """Load a cluster from a hosts file, a DeepSpeed or MPI hostfile, or a list such as gpu1:8,gpu2:8.

    hosts: None for ./hosts.yaml; "slurm" or "pbs" for the hosts of the current allocation, with the
    process engine. job_files=False: the job's files may be missing, for commands that do not need
    them (`ps` and `kill` from any machine). overridden: keys of the job that the command line sets;
    the file's values for them may name missing files or exceed the number of hosts. convert: also
    read files of other tools, such as Ansible's. Raises UsageError; for a file, HostsFileError with
    a line per mistake, including missing files.
    """
    if hosts is None:
        if not Path(DEFAULT_HOSTS).is_file():
            remedy = "pass a hosts file (`ddpctl init` writes one) or -H gpu1:8,gpu2:8"
            raise UsageError("no hosts", remedy)
        hosts = DEFAULT_HOSTS
    engine = Job.engine
    if isinstance(hosts, str) and is_host_list(hosts):
        if hosts in SCHEDULERS:
            hosts, engine = allocated_hosts(hosts), "process"
        else:
            hosts = [hosts.removesuffix(",")]
    unchecked = overridden if job_files else JOB
    if isinstance(hosts, (str, Path)):
        file = os.path.expanduser(hosts)  # noqa: PTH111 # a Path would change the spelling
        with SourceReader(file, unchecked=unchecked, convert=convert).complete() as reading:
            return reading.cluster(reading.tree(text_of(Path(file))))
    with SourceReader("-H").complete() as reading:
        cluster = reading.cluster(read_host_list(",".join(hosts), reading.mistakes))
        return replace(cluster, job=replace(cluster.job, engine=engine))


def _load_job(file: str, overridden: Collection[str], nnodes: int) -> Job:
    """Load the job from a file with a section `job:`, or with only the keys of a job. See `load`."""
    with SourceReader(file, unchecked=overridden).complete() as reading:
        tree = read_yaml(text_of(Path(file)), reading.mistakes)
        if tree.kind == MAPPING and "job" not in tree.entries:
            tree = RawValue(tree.line, MAPPING, entries={"job": tree})
        return reading.job(reading.sections(tree), [], nnodes)


def parse(text: str, source: str) -> Cluster:
    """Parse `text`. Raises HostsFileError with all mistakes.

    source: the file's name for messages; relative paths are relative to its folder. Does not check
    whether files exist.
    """
    with SourceReader(source, unchecked={*HOST, *JOB}).complete() as reading:
        return reading.cluster(reading.tree(text))


def override_job(
    cluster: Cluster, given: Mapping[str, object], *, source: str = COMMAND_LINE
) -> Cluster:
    """Return the cluster with job values from the command line.

    given: values by key of the job; None keeps the file's value. `env` is merged into the file's;
    nproc_per_node overrides that of each host too. source: the origin of the values, if not the
    command line. Raises HostsFileError with a line per wrong value or missing file.
    """
    if unknown_names := given.keys() - JOB.keys():
        raise TypeError(f"{source} got an unexpected keyword argument {min(unknown_names)!r}")
    with SourceReader(source).complete() as reading:
        values: dict[str, Any] = {}
        for name, value in given.items():
            if value is not None:
                flag = "COMMAND" if name == "command" else "--" + name.replace("_", "-")
                key = flag if source == COMMAND_LINE else name
                values |= reading.value(name, JOB[name], raw(value), key)
        if "env" in values:
            values["env"] = {**cluster.job.env, **values["env"]}
        job, hosts, spares = replace(cluster.job, **values), cluster.hosts, cluster.spares
        if "nproc_per_node" in values:
            hosts, spares = map(_without_nproc, (hosts, spares))
        entries = [HostEntry(f"hosts[{i}]", 0, host) for i, host in enumerate(hosts)]
        entries += [HostEntry(f"spares[{i}]", 0, host) for i, host in enumerate(spares)]
        nnodes = len(hosts) if "min_nodes" in values else None
        reading.mistakes += broken_rules(entries, job, nnodes=nnodes)
    former = (getattr(cluster.job, key) for key in ("dataset", "env_file") if key in values)
    replaced = (*cluster.replaced, *filter(None, former))
    return replace(cluster, hosts=hosts, spares=spares, job=job, replaced=replaced)


def _without_nproc(hosts: Sequence[Host]) -> tuple[Host, ...]:
    return tuple(replace(host, nproc_per_node=None) for host in hosts)
