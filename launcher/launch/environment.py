"""The user's environment variables: read from the job, handed to the engines, printed nowhere.

Their values may be secrets. The plan, run.json and the hosts file kept for a run have only their names.
For a resume, the values of `job.env` stay on this machine, in a file of the run's folder (mode 0600).
"""

from __future__ import annotations

import dataclasses
import json

from launcher.hosts import Cluster, Job, dump, load, read_env_file
from launcher.runs.record import RunFolder
from launcher.state import write_atomically

KEPT = "env.json"


def user_environment(job: Job) -> dict[str, str]:
    """The variables of env_file and env; as in `docker run`, env wins."""
    return {**(read_env_file(job.env_file) if job.env_file else {}), **job.env}


def keep_cluster(folder: RunFolder, cluster: Cluster) -> None:
    """Keeps the hosts file as used, and apart from it the values of its `env`."""
    without = dataclasses.replace(cluster, job=dataclasses.replace(cluster.job, env={}))
    write_atomically(folder.path / KEPT, json.dumps(dict(cluster.job.env)), mode=0o600)
    write_atomically(folder.hosts_file, dump(without))


def kept_cluster(folder: RunFolder, *, job_files: bool = False) -> Cluster:
    """The hosts and the job of a run, as it was last started from here."""
    cluster = load(folder.hosts_file, job_files=job_files)
    try:
        env = json.loads((folder.path / KEPT).read_text())
    except FileNotFoundError:  # another machine launched the run
        return cluster
    return dataclasses.replace(cluster, job=dataclasses.replace(cluster.job, env=env))
