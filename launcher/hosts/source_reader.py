"""Read a hosts file: text to tree, tree to values, values to a `Cluster`. Collects all mistakes."""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeAlias

from ..own_folders import current_folder, expanded
from ..text import LONGEST_PATH, names_in, quoted
from . import other_tools
from .addresses import split_login
from .cluster import Cluster, Host
from .files import check_path, text_of
from .hostfile import is_hostfile, read_hostfile
from .job import Job
from .mistakes import MOST, Mistake, Wrong, hosts_file_error
from .rules import HostEntry, broken_rules
from .schema import DEFAULTS, HOST, JOB, SECTIONS, unknown
from .values import PATHS, Shape, read, text, wrong
from .yaml_tree import LIST, MAPPING, NOTHING, TEXT, RawValue, raw, read_yaml

Sections: TypeAlias = Mapping[str, RawValue]
_FOR_SSH = DEFAULTS.keys() - {"gpus", "interface"}  # keys that `local` cannot have
_RANGED = ("host", "internal_ip")  # may be ranges such as gpu[1-8].lab
_AMBIGUOUS_PORT = 22  # a lower number, as in gpu1:8, may just as well be a GPU count


class SourceReader:
    """The reader of one source, a file or the command line. Collects the source's mistakes.

    unchecked: keys whose files may be missing, and min_nodes if it may exceed the number of hosts.
    convert: whether to read files of other tools too.
    """

    def __init__(
        self, source: str, *, unchecked: Collection[str] = (), convert: bool = False
    ) -> None:
        self.source, self.unchecked, self.convert = source, unchecked, convert
        self.mistakes: list[Mistake] = []

    @contextlib.contextmanager
    def complete(self) -> Iterator[Self]:
        """Context manager: raise HostsFileError at the end if there were mistakes."""
        with self._at(""):
            yield self
        if self.mistakes:
            raise hosts_file_error(self.source, self.mistakes)

    @contextlib.contextmanager
    def _at(self, key: str, remedy: str = "") -> Iterator[None]:
        try:
            yield
        except Wrong as error:
            self.mistakes += error.within(key, remedy).mistakes

    def tree(self, text: str) -> RawValue:
        """Parse the text. Raises Wrong for a file of another tool, unless `self.convert` is set."""
        tool: str | None = other_tools.ANSIBLE
        if other_tools.is_ini(text):
            tree = other_tools.read_ini(text)
        else:
            tree = (read_hostfile if is_hostfile(text) else read_yaml)(text, self.mistakes)
            tool = other_tools.kind_of(tree)
        if not tool:
            return tree
        if self.convert:
            return other_tools.as_hosts_file(tree)
        command = f"`ddpctl init --from {quoted(self.source, LONGEST_PATH)}`"
        raise Wrong(Mistake(1, "", f"found {tool}", f"run {command} to convert it to a hosts file"))

    def sections(self, tree: RawValue) -> Sections:
        if tree.kind != MAPPING:
            found = "an empty file" if tree.kind == NOTHING else ""
            raise wrong(tree, "write `hosts:` and, below it, one `- NAME` line per host", found)
        others = ((name, value) for name, value in tree.entries.items() if name not in SECTIONS)
        self.mistakes += [unknown(name, value.line, SECTIONS) for name, value in others]
        return {name: tree.entries.get(name, RawValue(tree.line, NOTHING)) for name in SECTIONS}

    def cluster(self, tree: RawValue) -> Cluster:
        """Return the cluster, which is usable only if no mistakes were recorded."""
        sections = self.sections(tree)
        defaults = self._section(sections, "defaults", DEFAULTS)
        named = sections["hosts"]
        if named.kind == TEXT and ("/" in named.text or named.text.endswith((".yaml", ".yml"))):
            hosts, spares = self._hosts_of_file(sections, defaults)
        else:
            hosts, spares = (self._hosts(sections, name, defaults) for name in ("hosts", "spares"))
        return Cluster(
            hosts=tuple(entry.host for entry in hosts),
            spares=tuple(entry.host for entry in spares),
            job=self.job(sections, [*hosts, *spares], len(hosts)),
            source=self.source,
        )

    def job(self, sections: Sections, hosts: Sequence[HostEntry], nnodes: int) -> Job:
        """Read the section `job:`. Records a mistake for each conflict between values.

        nnodes: how many hosts without mistakes there are, not counting spares.
        """
        known = None if self.mistakes or "min_nodes" in self.unchecked else nnodes
        job = Job(**self._section(sections, "job", JOB))
        lines = {name: value.line for name, value in sections["job"].entries.items()}
        self.mistakes += broken_rules(hosts, job, lines, known)
        return job

    def _hosts_of_file(
        self, sections: Sections, defaults: Mapping[str, Any]
    ) -> tuple[list[HostEntry], list[HostEntry]]:
        """Read the hosts and spares of the file that `hosts:` names, and its defaults.

        The defaults and spares of the file being read take precedence.
        """
        value, hosts, spares = sections["hosts"], list[HostEntry](), list[HostEntry]()
        with self._at("hosts"):
            path = self._absolute(value.text, value)
            check_path(path, "file", value.line)
            other = SourceReader(path, unchecked=self.unchecked)
            with other._at(""):
                theirs = other.sections(other.tree(text_of(Path(path))))
                defaults = {**other._section(theirs, "defaults", DEFAULTS), **defaults}
                hosts, spares = (other._hosts(theirs, n, defaults) for n in ("hosts", "spares"))
            self.mistakes += [replace(mistake, source=path) for mistake in other.mistakes]
        if sections["spares"].items:
            spares = self._hosts(sections, "spares", defaults)
        return hosts, spares

    def _section(self, sections: Sections, name: str, keys: Mapping[str, Shape]) -> dict[str, Any]:
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
        entries: list[HostEntry] = []
        for i, item in enumerate(tree.items):
            key = f"{name}[{i}]"
            with self._at(key, f"write {HOST['host']['x-allowed']}"):
                for table in _unfolded(item if item.kind == MAPPING else _long_form(item)):
                    entries.append(self._entry(key, table, defaults))
        return entries

    def _entry(self, key: str, table: RawValue, defaults: Mapping[str, Any]) -> HostEntry:
        """Read one host. Raises Wrong if it has no valid name; records other mistakes."""
        own = self._keys(table, HOST, key)
        if not table.entries.keys() & {"host", "ip", *HOST["host"]["x-synonyms"]}:
            raise Wrong(Mistake(table.line, ".host", "found no host", "write `host: NAME`"))
        if "host" not in own:
            raise Wrong  # the mistake is recorded
        if own["host"] == "local":
            defaults = {name: value for name, value in defaults.items() if name not in _FOR_SSH}
            if for_ssh := [name for name in own if name in _FOR_SSH]:
                what = f"found {', '.join(for_ssh)} on host: local"
                remedy = f"remove {'it' if len(for_ssh) == 1 else 'them'}: `local` does not use SSH"
                self.mistakes.append(Mistake(table.line, f"{key}.{for_ssh[0]}", what, remedy))
        return HostEntry(key, table.line, Host(**{**defaults, **own}), self.source)

    def _keys(self, table: RawValue, keys: Mapping[str, Shape], path: str) -> dict[str, Any]:
        """Return the valid values in `table`, and record the mistakes in the others."""
        values: dict[str, Any] = {}
        for name, tree in table.entries.items():
            if len(self.mistakes) > MOST:  # an alias may repeat thousands of wrong keys
                break
            if name in keys:
                values |= self.value(name, keys[name], tree, f"{path}.{name}")
            else:
                self.mistakes += Wrong(unknown(name, tree.line, keys)).within(f"{path}.").mistakes
        return values

    def value(self, name: str, shape: Shape, tree: RawValue, path: str) -> dict[str, Any]:
        """Return {name: value}, or {} after recording the mistake."""
        values: dict[str, Any] = {}
        with self._at(path):
            value = read(shape, tree)
            kind = "file" if name == "image" and value.endswith(".sif") else shape.get("x-reader")
            values[name] = self._absolute(value, tree) if kind in PATHS else value
            if kind in PATHS and name not in self.unchecked:
                check_path(values[name], kind, tree.line)
        return values

    def _absolute(self, written: str, tree: RawValue) -> str:
        """Return a path made absolute; it may be relative to the source's folder. Raises Wrong for /."""
        path = Path(self.source).parent / expanded(written)
        path = path if path.is_absolute() else current_folder() / path
        absolute = "/" + os.path.normpath(path).lstrip("/")  # normpath keeps two leading slashes
        if absolute == "/":
            raise wrong(tree, "use a path below /")
        return absolute


def _unfolded(table: RawValue) -> Iterator[RawValue]:
    """Yield one entry per host of a range such as `host: gpu[1-8].lab`.

    Raises Wrong if internal_ip is not a range of the same length, or if there are too many hosts.
    """
    ranged = {key: names_in(table.entries[key].text) for key in _RANGED if key in table.entries}
    lengths = {len(listed) for listed in ranged.values()} or {1}
    if max(lengths) > MOST:
        raise wrong(table, "write a shorter range", f"more than {MOST} hosts")
    if len(lengths) > 1:
        raise wrong(table, "make them equally long", "ranges of different lengths")
    for i in range(max(lengths)):
        own = {key: replace(table.entries[key], text=listed[i]) for key, listed in ranged.items()}
        yield replace(table, entries={**table.entries, **own})


def _long_form(item: RawValue) -> RawValue:
    """Return an entry `[user@]host[:port]` as a mapping. Raises Wrong if the port may be a GPU count."""
    if item.kind == LIST:
        raise wrong(item, "write one host per entry")
    parts = split_login(text(item))
    port = parts.get("port", "")
    if port.isdecimal() and 0 < int(port[:5]) < _AMBIGUOUS_PORT:
        name = quoted(parts["host"])
        remedy = f"write {{host: {name}, port: {port}}} or {{host: {name}, gpus: {port}}}"
        raise wrong(item, remedy, f"{item.shown}, which may mean a port or a number of GPUs")
    return raw(parts, item.line)
