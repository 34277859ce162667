"""The hosts file: read, validated as a whole, and kept as values."""

from .files import read_env_file, user_environment
from .hostfile import HostList
from .job_values import seconds_in
from .load import Hosts, cluster_of, default_hosts, load, override_job, parse
from .model import Cluster, Host, Job, dump
from .select import select

__all__ = [
    "Cluster",
    "Host",
    "HostList",
    "Hosts",
    "Job",
    "cluster_of",
    "default_hosts",
    "dump",
    "load",
    "override_job",
    "parse",
    "read_env_file",
    "seconds_in",
    "select",
    "user_environment",
]
