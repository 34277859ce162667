"""run.json: what this machine remembers of a run. The truth is the hosts' labels, this a record."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.errors import UsageError
from launcher.plan.options import RunOptions
from launcher.plan.plan import Plan
from launcher.state import make_folder, state_home, write_atomically

VERSION = 1
FINAL = ("SUCCEEDED", "FAILED", "CANCELLED")


def timestamp(seconds: float | None = None) -> str:
    """RFC 3339 in UTC with milliseconds; of now without an argument."""
    moment = (
        datetime.datetime.now(datetime.UTC)
        if seconds is None
        else datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    )
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_timestamp(text: str | None) -> float | None:
    """What `timestamp` wrote, as unix seconds."""
    return datetime.datetime.fromisoformat(text).timestamp() if text else None


@dataclass
class NodeRecord:
    node_rank: int
    host: str
    run_dir: str  # on the host
    state: str = "PENDING"
    exit_code: int | None = None


@dataclass
class AttemptRecord:
    """One start. state: PENDING RUNNING SUCCEEDED FAILED CANCELLED UNKNOWN."""

    attempt: int
    state: str
    created: str
    nodes: list[NodeRecord]
    world_size: int
    master_addr: str
    master_port: int
    started: str | None = None
    ended: str | None = None
    first_failure: dict[str, Any] | None = None
    progress: bool | None = None  # whether it saved a checkpoint; known once a restart is weighed
    by: str = "launch"  # launch, resume, or restart: by itself after a failure


@dataclass
class RunRecord:
    run_id: str
    name: str
    owner: str
    engine: str
    hosts: list[str]
    image: str
    image_digest: str | None
    dataset_digest: str | None
    workdir_digest: str | None
    command: list[str]
    stop_timeout: int
    attempts: list[AttemptRecord] = field(default_factory=list)
    pending_stop: list[str] = field(default_factory=list)  # hosts where a stop was not seen
    options: RunOptions = field(default_factory=RunOptions)
    env_names: list[str] = field(default_factory=list)  # variables that the user sets
    version: int = VERSION

    @property
    def state(self) -> str:
        return self.attempts[-1].state if self.attempts else "PENDING"

    @property
    def attempt(self) -> AttemptRecord:
        return self.attempts[-1]


class RunFolder:
    """`runs/<run id>/` of the state folder: run.json, hosts.yaml as used, logs/."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name

    @property
    def hosts_file(self) -> Path:
        return self.path / "hosts.yaml"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def save(self, record: RunRecord) -> None:
        make_folder(self.path)
        document = dataclasses.asdict(record)
        ordered = {"version": document.pop("version"), "state": record.state, **document}
        write_atomically(self.path / "run.json", json.dumps(ordered, indent=2) + "\n")

    def document(self) -> dict[str, Any]:
        """run.json and the hosts file in one, for the hosts to keep: any machine can adopt it."""
        document: dict[str, Any] = json.loads((self.path / "run.json").read_text())
        return {**document, "hosts_file": self.hosts_file.read_text()}

    def load(self) -> RunRecord:
        """Raises UsageError when run.json is missing or not ours."""
        try:
            document = json.loads((self.path / "run.json").read_text())
            return _record(document)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{self.path / 'run.json'}: cannot be read ({error}); the hosts still know the "
                "run: `ddpctl ps HOSTS`"
            ) from None


def _record(document: dict[str, Any]) -> RunRecord:
    names = {f.name for f in dataclasses.fields(RunRecord)}
    known = {key: value for key, value in document.items() if key in names}
    attempts = []
    for entry in known.pop("attempts", []):
        nodes = [NodeRecord(**node) for node in entry.pop("nodes")]
        attempts.append(AttemptRecord(nodes=nodes, **entry))
    kept = {f.name for f in dataclasses.fields(RunOptions)}
    given = {k: v for k, v in known.pop("options", {}).items() if k in kept}
    return RunRecord(attempts=attempts, options=RunOptions(**given), **known)


def new_record(plan: Plan) -> RunRecord:
    return RunRecord(
        run_id=plan.run_id,
        name=plan.name,
        owner=plan.owner,
        engine=plan.engine.name,
        hosts=[node.host.name for node in plan.nodes],
        image=plan.image,
        image_digest=plan.image_digest,
        dataset_digest=plan.dataset_digest,
        workdir_digest=plan.workdir_digest,
        command=list(plan.command),
        stop_timeout=plan.stop_timeout,
        options=plan.options.of_run(),
        env_names=list(plan.nodes[0].container.env_names),
    )


def new_attempt(plan: Plan) -> AttemptRecord:
    return AttemptRecord(
        attempt=plan.attempt,
        state="PENDING",
        created=timestamp(),
        nodes=[
            NodeRecord(node.node_rank, node.host.name, node.place.run_dir) for node in plan.nodes
        ],
        world_size=plan.world_size or 0,
        master_addr=plan.master_addr,
        master_port=int(plan.master_port),
        by=plan.options.by,
    )


def run_folders() -> Iterator[RunFolder]:
    """Every run that this machine remembers, the newest first."""
    root = state_home() / "runs"
    paths = [path for path in root.glob("*") if (path / "run.json").exists()]
    yield from (RunFolder(path) for path in sorted(paths, key=_created, reverse=True))


def _created(path: Path) -> float:
    # hosts.yaml is written once, at the launch; run.json is rewritten all along
    try:
        return (path / "hosts.yaml").stat().st_mtime
    except OSError:
        return (path / "run.json").stat().st_mtime


def checked_name(name: str) -> str:
    """A run's name becomes part of a container's. UsageError where that cannot be."""
    if name and not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,40}", name):
        raise UsageError(
            f"--name {name!r}: only a-z, 0-9, `_`, `.`, `-`, at most 41 of them, a letter or digit first"
        )
    return name


def find_run(text: str | None) -> RunFolder:
    """The run that an id or a unique prefix names; without one the newest of this machine."""
    folders = list(run_folders())
    if text is None:
        if not folders:
            raise UsageError("this machine remembers no run; name one, or give the hosts file")
        return folders[0]
    exact = [folder for folder in folders if folder.run_id == text]
    matching = exact or [folder for folder in folders if folder.run_id.startswith(text)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        listed = ", ".join(folder.run_id for folder in matching[:5])
        raise UsageError(f"{text!r} is the beginning of several runs ({listed}): give more of it")
    raise UsageError(
        f"no run of this machine is or begins with {text!r}; `ddpctl ps` lists them, "
        "`ddpctl ps HOSTS` those of the hosts"
    )
