"""Read a hosts file: text to tree, tree to values, values to a `Cluster`. Collects all mistakes.

`load` reads files, `parse` does not. `parse(dump(cluster), ...)` returns an equal cluster.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import UsageError
from ..state import current_folder, expanded
from ..text import LONGEST_PATH, names_in, quoted
from . import foreign
from .addresses import split_login
from .files import LocalPath, missing, text_of
from .hostfile import (
    SCHEDULERS,
    allocated_hosts,
    is_host_list,
    is_hostfile,
    read_host_list,
    read_hostfile,
)
from .mistakes import MOST, Mistake, Wrong, raise_any
from .model import Cluster, Host, Job
from .rules import HostEntry, broken_rules
from .schema import DEFAULTS, HOST, JOB, SECTIONS, SchemaKey, unknown
from .select import select
from .values import text, wrong
from .yaml_tree import LIST, MAPPING, NOTHING, TEXT, RawValue, raw, read_yaml

Source: TypeAlias = str | Path | Sequence[str] | None
Hosts: TypeAlias = Source | Cluster

COMMAND_LINE = "command line"
DEFAULT_HOSTS = "hosts.yaml"
Sections: TypeAlias = Mapping[str, RawValue]
Parser: TypeAlias = Callable[[str, list[Mistake]], RawValue]
_AMBIGUOUS_PORT = 22  # a lower number, as in gpu1:8, may just as well be a GPU count


def cluster_of(
    hosts: Hosts,
    job: Mapping[str, object],
    include: str | None = None,
    exclude: str | None = None,
    *,
    source: str = COMMAND_LINE,
    job_file: str | None = None,
) -> Cluster:
    """Return the selected hosts. Values of `job` other than None override the file's.

    hosts: a file, a list such as "gpu1:8,gpu2:8" or ["gpu1:8", "gpu2:8"], a Cluster, or None for
    ./hosts.yaml. source: the origin of `job`, for messages. job_file: has the job, in place of the
    hosts file. Raises UsageError.
    """
    overridden = [key for key, value in job.items() if value is not None]
    if not isinstance(hosts, Cluster):
        hosts = load(hosts, job_files=job_file is None, overridden=overridden)
    if job_file is not None:
        hosts = replace(hosts, job=load_job(job_file, overridden))
    return override_job(select(hosts, include, exclude), job, source=source)


def load(
    hosts: Source,
    *,
    job_files: bool = True,
    overridden: Collection[str] = (),
    convert: bool = False,
) -> Cluster:
    """Load a hosts file, a DeepSpeed or MPI hostfile, or a list such as gpu1:8,gpu2:8.

    hosts=None: load ./hosts.yaml. "slurm" or "pbs": the hosts of the allocation that this runs in,
    with the process engine. Raises HostsFileError with a line per mistake, including missing
    files. job_files=False: the job's own files may be missing, for commands that do not need them
    (`ps`, `kill` from any machine). overridden: keys of the job that the command line replaces;
    their files may be missing. convert: read the files of other tools too, such as Ansible's.
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
            hosts = hosts.rstrip(",").split(",")
    if isinstance(hosts, (str, Path)):
        path = Path(hosts)
        reading = _Reading(str(hosts), path.parent, convert=convert)
        cluster = reading.text(text_of(path))
    else:
        reading = _Reading("-H", "/")
        cluster = reading.text(",".join(hosts), read_host_list)
        cluster = replace(cluster, job=replace(cluster.job, engine=engine))
    reading.check(unused=overridden if job_files else JOB)
    return cluster


def load_job(file: str, overridden: Collection[str] = ()) -> Job:
    """Load the job of a file that has a section `job:` or just the keys of one. See `load`."""
    path = Path(file)
    reading = _Reading(file, path.parent)
    job = Job()
    try:
        job = reading.job(read_yaml(text_of(path), reading.mistakes))
    except Wrong as error:
        reading.mistakes += error.mistakes
    reading.check(unused=overridden)
    return job


def parse(text: str, source: str) -> Cluster:
    """Parse `text`. Raises HostsFileError with all mistakes.

    source: the name in messages; relative paths are relative to its folder. Does not check whether
    files exist.
    """
    reading = _Reading(source, Path(source).parent)
    cluster = reading.text(text)
    raise_any(source, reading.mistakes)
    return cluster


def override_job(
    cluster: Cluster, given: Mapping[str, object], *, source: str = COMMAND_LINE
) -> Cluster:
    """Return the cluster with job values from the command line.

    given: values by key of the job; None keeps the file's value. `env` is added to the file's;
    nproc_per_node overrides that of each host. source: the origin of the values, if not the command
    line. Raises HostsFileError with a line per wrong value or missing file.
    """
    reading = _Reading(source, current_folder())
    read: dict[str, Any] = {}
    if unknown_names := given.keys() - JOB.keys():
        raise TypeError(f"{source} got an unexpected keyword argument {min(unknown_names)!r}")
    for name, value in given.items():
        if value is not None:
            flag = "COMMAND" if name == "command" else "--" + name.replace("_", "-")
            key = flag if source == COMMAND_LINE else name
            read |= reading.value(name, JOB[name], raw(value), key)
    if "env" in read:
        read["env"] = {**cluster.job.env, **read["env"]}
    job, hosts = replace(cluster.job, **read), cluster.hosts
    former = (getattr(cluster.job, key) for key in ("dataset", "env_file") if key in read)
    replaced = (*cluster.replaced, *filter(None, former))
    if "nproc_per_node" in read:
        hosts = tuple(replace(host, nproc_per_node=None) for host in hosts)
    entries = [HostEntry(f"hosts[{i}]", 0, frozenset(), host) for i, host in enumerate(hosts)]
    reading.mistakes += broken_rules(entries, job)
    reading.check()
    return replace(cluster, hosts=hosts, job=job, replaced=replaced)


class _Reading:
    """Reads one source. Collects its mistakes and the paths that it names."""

    def __init__(self, source: str, base: str | Path, *, convert: bool = False) -> None:
        self.source, self.convert = source, convert
        self.base = Path(base)
        self.mistakes: list[Mistake] = []
        self.paths: list[LocalPath] = []

    def check(self, unused: Collection[str] = ()) -> None:
        """Raise any mistakes as HostsFileError. unused: keys of the job, whose files may be missing."""
        keys = {f"job.{key}" for key in unused}
        self.mistakes += missing(place for place in self.paths if place.key not in keys)
        raise_any(self.source, self.mistakes)

    @contextlib.contextmanager
    def _at(self, key: str, remedy: str = "") -> Iterator[None]:
        try:
            yield
        except Wrong as error:
            self.mistakes += [mistake.within(key, remedy) for mistake in error.mistakes]

    def text(self, text: str, read: Parser | None = None) -> Cluster:
        """Return the cluster. It is complete only if `mistakes` is empty."""
        try:
            return self.cluster(self.tree(text, read))
        except Wrong as error:
            self.mistakes += error.mistakes
            return Cluster(())

    def tree(self, text: str, read: Parser | None = None) -> RawValue:
        """Parse the text. Raises Wrong for the file of another tool, which `ddpctl init` converts."""
        if read is None and foreign.is_ini(text):
            tree = foreign.read_ini(text)
        else:
            read = read or (read_hostfile if is_hostfile(text) else read_yaml)
            tree = read(text, self.mistakes)
        tool = foreign.kind_of(tree)
        if tool and self.convert:
            return foreign.as_hosts_file(tree)
        if tool:
            remedy = (
                f"`ddpctl init --from {quoted(self.source, LONGEST_PATH)}` makes a hosts file of it"
            )
            raise Wrong(Mistake(1, "", f"found {tool}", remedy))
        return tree

    def sections(self, tree: RawValue) -> Sections:
        if tree.kind != MAPPING:
            found = "an empty file" if tree.kind == NOTHING else ""
            raise wrong(tree, "write hosts: and one `- NAME` per line", found)
        others = ((name, value) for name, value in tree.entries.items() if name not in SECTIONS)
        self.mistakes += [unknown(name, value.line, SECTIONS) for name, value in others]
        return {name: tree.entries.get(name, RawValue(tree.line, NOTHING)) for name in SECTIONS}

    def cluster(self, tree: RawValue) -> Cluster:
        sections = self.sections(tree)
        defaults = self._section(sections, "defaults", DEFAULTS)
        if names_a_file(sections["hosts"]):
            hosts, spares = self._hosts_of_file(sections, defaults)
        else:
            hosts, spares = (self._hosts(sections, name, defaults) for name in ("hosts", "spares"))
        return Cluster(
            hosts=tuple(entry.host for entry in hosts),
            spares=tuple(entry.host for entry in spares),
            job=self._job(sections, [*hosts, *spares]),
            source=self.source,
        )

    def job(self, tree: RawValue) -> Job:
        """Read a file that has a section `job:`, or just the keys of one."""
        if tree.kind == MAPPING and "job" not in tree.entries:
            tree = RawValue(tree.line, MAPPING, entries={"job": tree})
        return self._job(self.sections(tree), [])

    def _job(self, sections: Sections, hosts: Sequence[HostEntry]) -> Job:
        """Read the section `job:`. Its values must fit together and with the hosts."""
        job = Job(**self._section(sections, "job", JOB))
        lines = {name: value.line for name, value in sections["job"].entries.items()}
        self.mistakes += broken_rules(hosts, job, lines)
        return job

    def _hosts_of_file(
        self, sections: Sections, defaults: Mapping[str, Any]
    ) -> tuple[list[HostEntry], list[HostEntry]]:
        """Read hosts, spares and defaults of another hosts file. Own defaults and spares win."""
        value = sections["hosts"]
        path = ""
        with self._at("hosts"):
            path = self._absolute(value.text, value)
        if mistakes := list(missing([LocalPath(value.line, "hosts", path, "file")])):
            self.mistakes += mistakes
        if mistakes or not path:
            return [], []
        other = _Reading(path, Path(path).parent)
        try:
            theirs = other.sections(other.tree(text_of(Path(path))))
            defaults = {**other._section(theirs, "defaults", DEFAULTS), **defaults}
            hosts, spares = (other._hosts(theirs, name, defaults) for name in ("hosts", "spares"))
        except Wrong as error:
            other.mistakes += error.mistakes
            return [], []
        finally:
            other.mistakes += missing(other.paths)
            self.mistakes += [replace(mistake, source=path) for mistake in other.mistakes]
        if sections["spares"].items:
            spares = self._hosts(sections, "spares", defaults)
        return [replace(entry, source=path) for entry in hosts], spares

    def _section(
        self, sections: Sections, name: str, keys: Mapping[str, SchemaKey]
    ) -> dict[str, Any]:
        tree = sections[name]
        with self._at(name):  # a section in which every line is commented out is empty, not wrong
            if tree.kind not in (MAPPING, NOTHING):
                raise wrong(tree, f"indent the keys under `{name}:`")
        return self._keys(tree, keys, name)

    def _hosts(self, sections: Sections, name: str, defaults: Mapping[str, Any]) -> list[HostEntry]:
        tree = sections[name]
        with self._at(name):
            is_empty = tree.kind in (LIST, NOTHING) and not tree.items
            if (is_empty and name == "hosts") or not (is_empty or tree.kind == LIST):
                found = "no hosts" if is_empty else ""
                remedy = "write one `- NAME` or `- host: NAME` per line"
                remedy += ", or the path of another hosts file" if tree.kind == TEXT else ""
                raise wrong(tree, remedy, found)
        entries: list[HostEntry | None] = []
        for i, item in enumerate(tree.items):
            with self._at(f"{name}[{i}]"):
                entries += [self._entry(f"{name}[{i}]", one, defaults) for one in unfolded(item)]
        return [entry for entry in entries if entry is not None]

    def _entry(self, key: str, item: RawValue, defaults: Mapping[str, Any]) -> HostEntry | None:
        own: dict[str, Any] = {}
        with self._at(key, f"write {HOST['host'].allowed}"):
            table = item if item.kind == MAPPING else _long_form(item)
            own = self._keys(table, HOST, key)
            if not table.entries.keys() & {"host", "name", "hostname", "address", "ip"}:
                raise Wrong(Mistake(item.line, ".host", "found no host", "write host: NAME"))
        if "host" not in own:
            return None
        # SSH is not used for this machine, so the SSH defaults do not apply.
        applied = ("gpus", "interface") if own["host"] == "local" else DEFAULTS
        merged = {name: value for name, value in defaults.items() if name in applied} | own
        return HostEntry(key, item.line, frozenset(own), Host(**merged))

    def _keys(self, table: RawValue, keys: Mapping[str, SchemaKey], path: str) -> dict[str, Any]:
        """Return the valid values in `table`. Records the mistakes of the others."""
        read: dict[str, Any] = {}
        for name, tree in table.entries.items():
            if len(self.mistakes) > MOST:  # an alias may repeat thousands of wrong keys
                break
            if name in keys:
                read |= self.value(name, keys[name], tree, f"{path}.{name}")
            else:
                self.mistakes.append(unknown(name, tree.line, keys).within(f"{path}."))
        return read

    def value(self, name: str, key: SchemaKey, tree: RawValue, path: str) -> dict[str, Any]:
        """Return {name: value}, or {} after recording the mistake."""
        read: dict[str, Any] = {}
        with self._at(path, f"write {key.allowed}"):
            value = key.read(tree)
            kind = "file" if name == "image" and value.endswith(".sif") else key.path
            if kind and isinstance(value, str):
                value = self._absolute(value, tree)
                self.paths.append(LocalPath(tree.line, path, value, kind))
            read[name] = value
        return read

    def _absolute(self, written: str, tree: RawValue) -> str:
        path = self.base / expanded(written)
        path = path if path.is_absolute() else current_folder() / path
        absolute = "/" + os.path.normpath(path).lstrip("/")  # normpath keeps two leading slashes
        if absolute == "/":
            raise wrong(tree, "use a path below /")
        return absolute


def names_a_file(hosts: RawValue) -> bool:
    """Return whether the value of `hosts:` is the path of another hosts file."""
    return hosts.kind == TEXT and ("/" in hosts.text or hosts.text.endswith((".yaml", ".yml")))


def unfolded(item: RawValue) -> list[RawValue]:
    """Return one entry per host of `gpu[1-8].lab`, or of a mapping with such a host.

    The internal_ip may be a range of the same length. Raises Wrong.
    """
    values = item.entries if item.kind == MAPPING else {"host": item}
    ranged = {
        key: names_in(value.text)
        for key, value in values.items()
        if key in ("host", "internal_ip") and value.kind == TEXT and "[" in value.text
    }
    count = len(ranged.get("host", ()))
    if count < 2:
        return [item]
    if count > MOST or {len(listed) for listed in ranged.values()} != {count}:
        what = f"{count} hosts" if count > MOST else "ranges of different lengths"
        raise wrong(item, "write a shorter range" if count > MOST else "make them equal", what)
    made = []
    for i in range(count):
        own = {key: replace(values[key], text=listed[i]) for key, listed in ranged.items()}
        made.append(
            replace(item, entries={**values, **own}) if item.kind == MAPPING else own["host"]
        )
    return made


def _long_form(item: RawValue) -> RawValue:
    """Return an entry `[user@]host[:port]` as a mapping."""
    if item.kind == LIST:
        raise wrong(item, "write one host per entry")
    parts = split_login(text(item))
    port = parts.get("port", "")
    if port.isdecimal() and 0 < int(port[:5]) < _AMBIGUOUS_PORT:
        name = quoted(parts["host"])
        remedy = f"write {{host: {name}, port: {port}}} or {{host: {name}, gpus: {port}}}"
        raise wrong(item, remedy, f"{item.shown}, which may mean a port or a number of GPUs")
    return raw(parts, item.line)
