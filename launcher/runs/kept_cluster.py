"""The hosts file as used, kept in a run's folder for later commands.

Values of `job.env` may be secret. They are kept in a separate file with mode 0600 that is never
copied. Only a resume or a restart needs them.
"""

from __future__ import annotations

import dataclasses
import json

from ..errors import UsageError
from ..hosts import Cluster, dump, load
from ..state import make_folder, write_atomically
from .record import RunFolder

ENV = "env.json"


def keep_cluster(folder: RunFolder, cluster: Cluster) -> None:
    make_folder(folder.logs)
    without = dataclasses.replace(cluster, job=dataclasses.replace(cluster.job, env={}))
    write_atomically(folder.path / ENV, json.dumps(dict(cluster.job.env)), mode=0o600)
    write_atomically(folder.hosts_file, dump(without))


def kept_cluster(folder: RunFolder, *, job_files: bool = False) -> Cluster:
    """Return the hosts and the job of a run's last start from this machine."""
    cluster = load(folder.hosts_file, job_files=job_files)
    path = folder.path / ENV
    try:
        env = json.loads(path.read_text())
        given = {str(name): str(value) for name, value in env.items()}
    except FileNotFoundError:
        return cluster
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{path}: cannot read the values of job.env: {error}") from None
    return dataclasses.replace(cluster, job=dataclasses.replace(cluster.job, env=given))
