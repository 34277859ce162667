"""The user's environment variables: read from the job, handed to the engines, printed nowhere.

Their values may be secrets. Plans and records have only their names.
"""

from __future__ import annotations

from ..errors import UsageError
from ..hosts import Job, read_env_file
from ..runs.record import RunRecord


def user_environment(job: Job) -> dict[str, str]:
    """The variables of env_file and env; as in `docker run`, env wins."""
    return {**(read_env_file(job.env_file) if job.env_file else {}), **job.env}


def check_environment(record: RunRecord, job: Job) -> None:
    """Raises UsageError if this machine does not know the values of the run's variables."""
    if unknown := set(record.env_names) - set(user_environment(job)):
        raise UsageError(
            f"{record.run_id}: this machine does not know the values of "
            f"{', '.join(sorted(unknown))}; set them as job.env in a file for --hosts"
        )
