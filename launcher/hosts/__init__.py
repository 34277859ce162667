"""The hosts file: read, validated as a whole, and kept as values."""

from .files import read_env_file, user_environment
from .hostfile import HostList
from .load import Hosts, cluster_of, load, override_job, parse
from .model import Cluster, Host, Job, dump
from .select import select
from .values import seconds_in

__all__ = [
    "Cluster",
    "Host",
    "HostList",
    "Hosts",
    "Job",
    "cluster_of",
    "dump",
    "load",
    "override_job",
    "parse",
    "read_env_file",
    "seconds_in",
    "select",
    "user_environment",
]
