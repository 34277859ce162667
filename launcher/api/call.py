"""`ddpctl.run`: call a function on every rank and return the results.

Hosts are not trusted: results are JSON of limited size, and pickles only with trust=True.
"""

import base64
import builtins
import pickle
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from ..budget import TooManyValues, parse_json
from ..engines.node_handle import AttemptHandle
from ..errors import CommandFailed, DdpctlError, NodesFailed, RemoteError, RunFailed
from ..hosts import Hosts, cluster_of
from ..logs.event_reader import parsed
from ..outcomes import RunState
from ..runs.newest_attempt import newest_attempt
from ..runs.record import RunRecord
from ..runs.run_folder import run_folder
from ..ssh.host_connection import HostConnection
from ..ssh.many import by_name, try_each
from ..ssh.script_files import load_script
from .handle import JobOptions, LoggingConsole, launch
from .parcel import CALLER, MAX_RESULTS, pack

READ = load_script(__file__, "read_results.sh")
READ_TIMEOUT = 600.0  # seconds
ROW = re.compile(rb"(\d{1,7}) (.*)", re.DOTALL)
MOST_VALUES = 2_000_000  # in one rank's result; that many take about 200 MB of memory
SAVE_LARGE = "save large results to $DDPCTL_OUTPUT_DIR, and return their paths"
RUN_AGAIN = "call run() again; a script on a host may have changed the files with the results"


@dataclass(frozen=True)
class Raised:
    type: str
    message: str
    traceback: str
    built_in: bool = True  # whether Python itself defines the type


@dataclass(frozen=True)
class RankResult:
    """The outcome of a rank. result: a JSON value. pickle: base64, loaded only with trust=True."""

    host: str
    result: Any = None
    error: Raised | None = None
    pickle: str | None = None


def run(
    function: Callable[..., object],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    hosts: Hosts = None,
    trust: bool = False,
    name: str = "",
    include: str | None = None,
    exclude: str | None = None,
    check: bool = True,
    hang_timeout: float | None = None,
    **job: Unpack[JobOptions],
) -> list[Any]:
    """Call function(*args, **kwargs) on every rank. Return the results in rank order.

    ddpctl sends the function's module and, if the job has one, the workdir. For a function from a
    notebook or script, it sends the source and everything that the source refers to. Ranks have
    torchrun's environment variables. Arguments and results are JSON values (tuples become lists).
    With trust=True, they may be anything that pickle supports, but then a host can run code on this
    machine. Ctrl-C stops the run.

    Raises the exception of the first rank that failed, from a RemoteError that has its traceback.
    Without trust=True, exceptions of types that are not built in are raised as the RemoteError
    itself. Raises RunFailed if a rank ended without a result or an exception.
    """
    cluster = cluster_of(hosts, job, include, exclude, source="run()")
    with tempfile.TemporaryDirectory(prefix="ddpctl-run-") as folder:
        pack(function, args, kwargs or {}, Path(folder), cluster=cluster, trust=trust)
        script = [CALLER.name]
        started = launch(
            cluster, script, name=name, check=check, hang_timeout=hang_timeout, workdir=folder
        )
        try:
            started.wait()
        except KeyboardInterrupt:
            started.kill()
            raise
    run = run_folder(started.id)
    with newest_attempt(run, LoggingConsole()) as attempt:
        outcomes, failures = read_outcomes(attempt)
    record = run.load()
    if failures and record.state is RunState.SUCCEEDED:  # a failed run's failure may explain them
        raise NodesFailed(failures)
    return results(record, outcomes, trust)


def results(record: RunRecord, outcomes: Mapping[int, RankResult], trust: bool) -> list[Any]:
    """Return the results in rank order. Raises the first failed rank's exception, or RunFailed."""
    failure = record.attempt.first_failure
    raised = [rank for rank, outcome in outcomes.items() if outcome.error]
    first = failure.rank if failure else min(raised, default=None)
    if first in raised:  # otherwise, the exceptions follow from a killed rank or a lost host
        raise_again(record.run_id, first, outcomes[first], trust)
    if record.state is not RunState.SUCCEEDED:
        why = failure.headline if failure else record.state.lower()
        raise RunFailed(record.run_id, why, failure.remedy if failure else "")
    missing = [rank for rank in range(record.attempt.world_size) if rank not in outcomes]
    if missing:
        what = f"rank {missing[0]} ended without returning a result"
        raise RunFailed(record.run_id, what, f"see `ddpctl logs {record.run_id}`")
    ordered = [outcomes[rank] for rank in range(record.attempt.world_size)]
    return [unpickled(each) if trust else each.result for each in ordered]


def raise_again(run_id: str, rank: int, outcome: RankResult, trust: bool) -> None:
    assert outcome.error
    error = outcome.error
    remote = RemoteError(run_id, outcome.host, rank, error.type, error.message, error.traceback)
    if trust and outcome.pickle:
        raise unpickled(outcome) from remote
    kind = getattr(builtins, error.type, None) if error.built_in else None
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            same = kind(error.message)
        except TypeError:  # the exception has other constructor arguments
            raise remote from None
        raise same from remote
    raise remote


def unpickled(outcome: RankResult) -> Any:
    try:
        return pickle.loads(base64.b64decode(outcome.pickle or ""))  # noqa: S301  trust=True
    except Exception as error:
        what = f"cannot unpickle a result: {error}"
        packages = "install the hosts' packages on this machine"
        remedy = f"return numbers, strings, lists and dicts, or {packages}"
        raise CommandFailed(what, remedy, host=outcome.host) from None


def read_outcomes(
    attempt: AttemptHandle,
) -> tuple[dict[int, RankResult], dict[str, DdpctlError]]:
    """Return the outcome of each rank that wrote one, and the errors of hosts that did not answer.

    Raises CommandFailed if the outcomes are malformed.
    """

    def read(connection: HostConnection) -> bytes:
        place = attempt.by_connection[connection].place
        script = READ, place.run_dir, str(place.attempt), str(place.node_rank)
        # an exception's text does not count towards MAX_RESULTS
        return connection.script(*script, timeout=READ_TIMEOUT, limit=2 * MAX_RESULTS).stdout

    texts: dict[int, tuple[str, bytes]] = {}  # host and JSON by rank
    answers, failures = try_each(attempt.connections, read)
    for connection, data in answers.items():
        for rank, text in split(data, connection.name).items():
            host, before = texts.setdefault(rank, (connection.name, text))
            if before != text:
                what = f"both {host} and {connection.name} have a result for rank {rank}"
                raise CommandFailed(what, RUN_AGAIN)
    outcomes = {rank: parsed_outcome(host, text) for rank, (host, text) in texts.items()}
    return outcomes, by_name(attempt.connections, failures)


def split(data: bytes, host: str) -> dict[int, bytes]:
    """Split READ's output by rank. Raises CommandFailed if it is malformed."""
    rows = [ROW.fullmatch(line) for line in data.split(b"\n")[:-1]]
    if not all(rows):
        raise CommandFailed("cannot read the results", RUN_AGAIN, host=host)
    return {int(row[1]): row[2] for row in rows if row}


def parsed_outcome(host: str, text: bytes) -> RankResult:
    try:
        document = parse_json(text, MOST_VALUES)
        error, pickled = document.get("error"), document.get("pickle")
        if not isinstance(pickled, str | None):
            raise ValueError("its pickle is not text")
        raised = None if error is None else parsed(Raised, error)
        return RankResult(host, document.get("result"), raised, pickled)
    except TooManyValues as error:
        raise CommandFailed(f"a result has {error}", SAVE_LARGE, host=host) from None
    except (ValueError, AttributeError) as error:
        raise CommandFailed(f"cannot read a result: {error}", RUN_AGAIN, host=host) from None
