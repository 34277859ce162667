"""The hosts file: read, checked whole, and kept as values."""

from .cluster import Cluster, Host, Job, dump, load, parse

__all__ = ["Cluster", "Host", "Job", "dump", "load", "parse"]
