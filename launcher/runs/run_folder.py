"""A run's folder on this machine: run.json, and the hosts file that the run used.

No run depends on this folder: the labels on the hosts are authoritative.
"""

import contextlib
import dataclasses
import json
import os
from pathlib import Path

from ..errors import StateError, UsageError
from ..hosts import Cluster, Host, dump, load
from ..own_folders import make_folder, read_record, state_home, write_atomically
from ..run_id import is_run_id
from ..terminal.console import Console
from .record import SETTLED, RunRecord, document, record_in

_unsaved: dict[Path, RunRecord] = {}  # by folder: records that could not be saved
_warned: set[Path] = set()  # the folders whose run.json could not be read or written


class UnreadableRecord(UsageError):
    """Raised if run.json is missing, damaged, or written by a newer ddpctl."""


class RunFolder:
    """The folder `runs/<run id>/` in the state folder: run.json, hosts.yaml, env.json and logs/.

    former-hosts.yaml records how to reach hosts that only earlier attempts used.

    Values of `job.env` may be secret, so they are in a separate file, env.json, which has mode 0600
    and is never copied. Only a resume or a restart needs them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self.hosts_file = path / "hosts.yaml"
        self.former_hosts_file = path / "former-hosts.yaml"
        self.env_file = path / "env.json"
        self.record_file = path / "run.json"
        self.logs = path / "logs"

    @property
    def is_recorded(self) -> bool:
        """Whether there is a record, which may be unreadable."""
        return os.path.lexists(self.record_file)

    def attempt_lock(self, attempt: int) -> Path:
        """Return the path of the lock held by the process that takes care of the attempt."""
        return self.path / f".attempt-{attempt}.lock"

    def kill_mark(self, attempt: int) -> Path:
        """Return the path of the empty file that `kill` leaves if this was the newest attempt."""
        return self.path / f".attempt-{attempt}.killed"

    def evidence_file(self, attempt: int, restart: int | None = None) -> Path:
        """Return the path for the evidence of an attempt's failure.

        restart: the number of a restart in place, for the failure that led to it.
        """
        name = f"attempt-{attempt}" if restart is None else f"attempt-{attempt}-restart-{restart}"
        return make_folder(self.logs) / f"failure-{name}.txt"

    def keep_cluster(self, cluster: Cluster) -> None:
        make_folder(self.logs)
        self._keep_former(cluster)
        without = dataclasses.replace(cluster, job=dataclasses.replace(cluster.job, env={}))
        write_atomically(self.env_file, json.dumps(dict(cluster.job.env)), mode=0o600)
        write_atomically(self.hosts_file, dump(without))

    def _keep_former(self, cluster: Cluster) -> None:
        """Record how to reach the run's earlier hosts that are not in `cluster`."""
        with contextlib.suppress(UsageError):  # a damaged file must not prevent a start
            here = {host.name for host in (*cluster.hosts, *cluster.spares)}
            # without what may conflict with another host, such as the address of a replaced machine
            former = [
                dataclasses.replace(host, gpus=0, internal_ip=None)
                for name, host in self.all_hosts().items()
                if name not in here
            ]
            if former:
                write_atomically(self.former_hosts_file, dump(Cluster(tuple(former))))

    def all_hosts(self) -> dict[str, Host]:
        """Return all hosts that the run has used or could have used, by name."""
        hosts: dict[str, Host] = {}
        for file in (self.former_hosts_file, self.hosts_file):
            if file.exists():
                cluster = load(file, job_files=False)
                hosts |= {host.name: host for host in (*cluster.hosts, *cluster.spares)}
        return hosts

    def kept_cluster(self, *, job_files: bool = False) -> Cluster:
        """Return the hosts and the job with which this machine last started the run.

        job_files: also check the job's files. Raises UsageError if env.json is unreadable.
        """
        # a resume may have excluded so many hosts that fewer than min_nodes are left
        cluster = load(self.hosts_file, job_files=job_files, overridden=["min_nodes"])
        try:
            env = json.loads(read_record(self.env_file))
            given = {str(name): str(value) for name, value in env.items()}
        except FileNotFoundError:
            return cluster
        except (OSError, ValueError, AttributeError) as error:
            what = f"{self.env_file}: cannot read the values of job.env: {error}"
            remedy = (
                "make the file readable, or pass --hosts with a hosts file that has these values"
            )
            raise UsageError(what, remedy) from None
        return dataclasses.replace(cluster, job=dataclasses.replace(cluster.job, env=given))

    def goes_on(self, record: RunRecord) -> bool:
        """Return `record.goes_on` for the max_restarts of the run; False if that cannot be read."""
        with contextlib.suppress(UsageError):  # these rule out a restart
            return record.goes_on(self.kept_cluster().job.max_restarts)
        return False

    def save(self, record: RunRecord) -> None:
        make_folder(self.path)
        write_atomically(self.record_file, json.dumps(document(record), indent=2) + "\n")
        _unsaved.pop(self.path, None)

    def try_save(self, record: RunRecord, console: Console) -> None:
        """Save the record. If that fails, report it once and keep the record in memory."""
        try:
            self.save(record)
        except StateError as error:
            _unsaved[self.path] = record
            if self.path not in _warned:
                console.error(f"not recorded: {error}")
            _warned.add(self.path)

    def is_settled(self) -> bool:
        """Return whether the run has ended and all its stops are confirmed.

        Judges by the head of run.json, without parsing the rest.
        """
        try:
            text = read_record(self.record_file)
        except (OSError, ValueError):
            return False
        return self.path not in _unsaved and SETTLED.match(text) is not None

    def load(self) -> RunRecord:
        """Return the record, from memory if it could not be saved. Raises UnreadableRecord."""
        if self.path in _unsaved:
            return _unsaved[self.path]
        try:
            return record_in(read_record(self.record_file), self.run_id)
        except (OSError, ValueError, RecursionError) as error:
            what = f"{self.record_file}: cannot be read ({error})"
            remedy = (
                "run `ddpctl ps HOSTS` to see the run, or remove the file and pass --hosts to make "
                "a new record"
            )
            raise UnreadableRecord(what, remedy) from None

    def load_if_readable(self, console: Console) -> RunRecord | None:
        """Return the record, or None if it is missing or (after one warning) unreadable."""
        try:
            return self.load() if self.is_recorded else None
        except UnreadableRecord as error:
            if self.path not in _warned:
                console.say(f"warning: {error}")
            _warned.add(self.path)
            return None


def run_folder(run_id: str) -> RunFolder:
    """Return the folder of a run, whether or not it exists. run_id: must be valid."""
    return RunFolder(state_home() / "runs" / run_id)


def run_folders() -> list[RunFolder]:
    """Return the folders of all recorded runs, newest first."""

    def started(folder: RunFolder) -> float:
        try:
            return folder.hosts_file.stat().st_mtime  # it is written once per attempt
        except OSError:
            return 0.0

    return sorted((f for f in all_folders() if f.is_recorded), key=started, reverse=True)


def unended_records(console: Console) -> list[RunRecord]:
    """Return the records of the runs that are not known to have ended, newest first."""
    records = [f.load_if_readable(console) for f in run_folders() if not f.is_settled()]
    return [record for record in records if record and not record.state.is_final]


def live_runs(console: Console) -> list[str]:
    """Return the ids of the runs that are live according to their records, newest first."""
    return [record.run_id for record in unended_records(console) if record.state.is_live]


def all_folders() -> list[RunFolder]:
    """Return the folders of all runs, recorded or not."""
    paths = (state_home() / "runs").glob("*")
    return [RunFolder(path) for path in paths if is_run_id(path.name)]
