"""`ddpctl.run`: call a function on every rank and return the results."""

from __future__ import annotations

import base64
import builtins
import pickle
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from ..diagnosis.first_failure import headline
from ..errors import CommandFailed, RemoteError, RunFailed
from ..hosts import Hosts, cluster_of
from ..runs.attempt import newest_attempt
from ..runs.record import RunRecord, run_folder
from ..terminal.console import LoggingConsole
from .handle import launch
from .job_options import JobOptions
from .parcel import CALLER, pack
from .results import Outcome, read_outcomes


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
    """Call function(*args, **kwargs) on every rank; return the results, by rank.

    ddpctl sends the function's module, and the workdir if the job has one. Of a function from a
    notebook or script, it sends the source and the names that this uses. torchrun's variables are
    set on the ranks. Arguments and results are JSON values (tuples become lists). With trust=True
    they are anything that pickle can carry, and a host can then run code on this machine. Ctrl-C
    stops the run.

    Raises the exception of the first rank that failed, from a RemoteError with its traceback. If
    that type is not one of Python's own, raises the RemoteError itself. Raises RunFailed if a rank
    ended without an exception.
    """
    cluster = cluster_of(hosts, job, include, exclude, source="run()")
    with tempfile.TemporaryDirectory(prefix="ddpctl-run-") as folder:
        pack(function, args, kwargs or {}, Path(folder), workdir=cluster.job.workdir, trust=trust)
        started = launch(
            cluster,
            [CALLER.name],
            name=name,
            check=check,
            hang_timeout=hang_timeout,
            workdir=folder,
        )
        try:
            started.wait()
        except KeyboardInterrupt:
            started.kill()
            raise
    run = run_folder(started.id)
    with newest_attempt(run, LoggingConsole()) as attempt:
        outcomes = read_outcomes(attempt)
    return results(run.load(), outcomes, trust)


def results(record: RunRecord, outcomes: Mapping[int, Outcome], trust: bool) -> list[Any]:
    """Return the results by rank. Raises the exception of a rank, or RunFailed."""
    failure = record.attempt.first_failure
    raised = [rank for rank, outcome in outcomes.items() if outcome.error]
    first = failure.rank if failure else None
    if raised and first is None:
        first = min(raised)
    if first in raised:  # otherwise that rank was killed, and the others raised because of it
        raise_again(record.run_id, first, outcomes[first], trust)
    if record.state != "SUCCEEDED":
        why = headline(failure) if failure else record.state.lower()
        raise RunFailed(record.run_id, why)
    missing = [rank for rank in range(record.attempt.world_size) if rank not in outcomes]
    if missing:
        raise RunFailed(record.run_id, f"rank {missing[0]} ended without returning a result")
    ordered = [outcomes[rank] for rank in range(record.attempt.world_size)]
    return [unpickled(each) if trust else each.result for each in ordered]


def raise_again(run_id: str, rank: int, outcome: Outcome, trust: bool) -> None:
    assert outcome.error
    error = outcome.error
    remote = RemoteError(run_id, outcome.host, rank, error.type, error.message, error.traceback)
    if trust and outcome.pickle:
        raise unpickled(outcome) from remote
    kind = getattr(builtins, error.type, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            same = kind(error.message)
        except TypeError:  # the exception has other constructor arguments
            raise remote from None
        raise same from remote
    raise remote


def unpickled(outcome: Outcome) -> Any:
    try:
        return pickle.loads(base64.b64decode(outcome.pickle or ""))  # noqa: S301  trust=True
    except Exception as error:
        raise CommandFailed(f"{outcome.host}: cannot unpickle its result: {error}") from None
