"""Read a hosts file, validate all of it, and keep its contents as values."""

from .cluster import Cluster, Host, dump
from .files import user_env
from .hostfile import is_host_list
from .job import Job
from .load import Hosts, cluster_of, load, override_job, parse
from .select import select

__all__ = [
    "Cluster",
    "Host",
    "Hosts",
    "Job",
    "cluster_of",
    "dump",
    "is_host_list",
    "load",
    "override_job",
    "parse",
    "select",
    "user_env",
]
