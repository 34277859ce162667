"""Every key of the hosts file: how it is read and what it means.

The loader obeys these tables; docs/hosts-file.md and the JSON schema for editors are printed from
them, so they cannot differ. A test holds hosts.example.yaml and the model to them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from . import job_values, values
from .problems import Problem, nearest, shown
from .values import Reader

PathKind: TypeAlias = Literal["file", "env file", "folder"]
Shape: TypeAlias = Mapping[str, object]  # a JSON schema

_TEXT: Shape = {"type": "string"}
_TEXTS: Shape = {"type": "array", "items": _TEXT}
_NUMBER_OR_TEXT: Shape = {"type": ["integer", "string"]}
_SCALAR: Shape = {"type": ["string", "number", "boolean"]}
_ARGUMENTS: Shape = {"type": "array", "items": _SCALAR}
_GPU_IDS: Shape = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": values.MAX_GPUS - 1},
    "minItems": 1,
    "uniqueItems": True,
}


@dataclass(frozen=True)
class Key:
    """allowed, default: in words. path: for a path on this machine, what must be there.

    shape: what an editor checks. It is coarser than `read`, which has the last word.
    """

    read: Reader
    allowed: str
    default: str
    meaning: str
    path: PathKind | None = None
    shape: Shape = field(default_factory=lambda: _TEXT)


def _number(
    low: int, high: int, allowed: str, default: str, meaning: str, also: str | None = None
) -> Key:
    shape: Shape = {"type": "integer", "minimum": low, "maximum": high}
    if also:
        shape = {"anyOf": [shape, {"const": also}]}
    return Key(values.whole(low, high, also), allowed, default, meaning, shape=shape)


def _choice(words: tuple[str, ...], default: str, meaning: str) -> Key:
    shape: Shape = {"enum": list(words)}
    return Key(values.choice(*words), " or ".join(words), default, meaning, shape=shape)


def _path(kind: PathKind, allowed: str, default: str, meaning: str) -> Key:
    shape: Shape = {"type": ["string", "null"]}  # YAML reads ~, the home folder, as null
    return Key(values.path, allowed, default, meaning, path=kind, shape=shape)


_AS_SSH = "what `ssh HOST` uses"

HOST = {
    "host": Key(
        values.host,
        "an address, a DNS name, a Host alias of ~/.ssh/config, or local",
        "required",
        "The machine. `local` is this machine, without SSH. To run several nodes on one machine, "
        "list it several times with different GPU ids, or with `gpus: 0`.",
    ),
    "user": Key(
        values.user,
        "a login name",
        _AS_SSH,
        "The SSH user, who must be allowed to use Docker on the host.",
    ),
    "port": _number(
        1,
        65535,
        "a number from 1 to 65535",
        _AS_SSH,
        "The port that sshd listens on.",
    ),
    "identity_file": _path(
        "file",
        "a private key file on this machine",
        _AS_SSH,
        "The key to log in with. The SSH agent and ~/.ssh/config are used as `ssh` uses them.",
    ),
    "proxy_jump": Key(
        values.proxy_jump,
        "[user@]host[:port], several separated by commas, or none",
        _AS_SSH,
        "Jump hosts, as `ssh -J` takes them.",
    ),
    "host_keys": _choice(
        ("ask", "accept-new"),
        "ask",
        "What to do when known_hosts does not have the host's key. `ask`: stop and show how to add "
        "it. `accept-new`: add it. A changed key is always an error.",
    ),
    "gpus": Key(
        values.gpus,
        "all, a count, a list of ids such as [0, 1], or 0 for CPU",
        "all",
        "The GPUs that the node uses: NVIDIA's, or AMD's where there are none (untested on hardware).",
        shape={
            "anyOf": [
                {"const": "all"},
                {"type": "integer", "minimum": 0, "maximum": values.MAX_GPUS},
                _GPU_IDS,
            ]
        },
    ),
    "nproc_per_node": _number(
        1,
        1024,
        "a number of processes, from 1",
        "job.nproc_per_node",
        "Processes on this node. Nodes may differ.",
    ),
    "internal_ip": Key(
        values.internal_ip,
        "an IPv4 or IPv6 address of the host",
        "found by `ddpctl check`",
        "The address that the other nodes use to reach this node.",
    ),
    "interface": Key(
        values.interface,
        "the name of a network interface, such as ib0",
        "the interface that has internal_ip",
        "The network interface for NCCL and Gloo. Hosts may differ.",
    ),
}
# Several machines cannot share a name or an address; for nproc_per_node there is job's.
DEFAULTS = {
    name: key for name, key in HOST.items() if name not in ("host", "internal_ip", "nproc_per_node")
}

JOB = {
    "engine": _choice(
        ("docker", "process"),
        "docker",
        "`docker`: one container per node. `process`: torchrun without a container, only on "
        "`host: local`.",
    ),
    "image": Key(
        job_values.image,
        "an image reference: [registry/]name[:tag][@sha256:digest]",
        "ddpctl-trainer:latest",
        "The image. Any image with Python and torch works. Hosts that lack it get it from this "
        "machine.",
    ),
    "workdir": _path(
        "folder",
        "a folder on this machine",
        "none",
        "Your code. It is pushed to every host and mounted at /workspace, the working directory.",
    ),
    "dataset": _path(
        "folder",
        "a folder on this machine",
        "none",
        "Your data. It is pushed to every host and mounted read-only at /data.",
    ),
    "command": Key(
        job_values.command,
        "a list: what torchrun runs, such as [train.py, --epochs, 10] or [-m, trainer]",
        "[-m, trainer]",
        "The script and its arguments, passed on unchanged. `-- ...` on the command line overrides "
        "it.",
        shape={**_ARGUMENTS, "minItems": 1},
    ),
    "resume_args": Key(
        job_values.arguments,
        "a list of arguments",
        "[]",
        "Arguments that `ddpctl resume` appends to the command. The trainer needs none.",
        shape=_ARGUMENTS,
    ),
    "nproc_per_node": _number(
        1,
        1024,
        "a number of processes, from 1",
        "one per GPU; 1 on a CPU host",
        "Processes on each node that does not set its own number.",
    ),
    "master_port": _number(
        1,
        65535,
        "a number from 1 to 65535, or auto",
        "auto",
        "The rendezvous port on node 0. `auto`: any free port.",
        "auto",
    ),
    "env": Key(
        job_values.env,
        "a mapping of names (letters, digits, _) to values",
        "{}",
        "Environment variables of every process. Values are passed as written.",
        shape={"type": "object", "additionalProperties": _SCALAR},
    ),
    "env_file": _path(
        "env file",
        "a file of NAME=value lines on this machine",
        "none",
        "Secret environment variables, one NAME=value per line; a value is everything up to the "
        "end of its line. They never appear on a command line, in a log, in `ps` or in run.json.",
    ),
    "mounts": Key(
        job_values.mounts,
        "a list of /host/folder:/container/folder[:ro]",
        "[]",
        "Other folders of the hosts to mount in the container.",
        shape=_TEXTS,
    ),
    "tmpfs": Key(
        job_values.tmpfs,
        "a mapping of /container/folder to a size such as 64g",
        "{}",
        "Folders of the container that are kept in memory.",
        shape={"type": "object", "additionalProperties": _NUMBER_OR_TEXT},
    ),
    "shm_size": Key(
        job_values.size,
        "a size such as 16g or 512m",
        "16g",
        "Shared memory (/dev/shm) of the container, which data loader workers need.",
        shape=_NUMBER_OR_TEXT,
    ),
    "devices": Key(
        job_values.devices,
        "a list of /dev/NAME[:/dev/NAME_IN_THE_CONTAINER[:rwm]]",
        "[]",
        "Devices of the host for the container. GPUs and InfiniBand are added without this.",
        shape=_TEXTS,
    ),
    "cap_add": Key(
        job_values.cap_add,
        "a list of Linux capabilities such as SYS_PTRACE",
        "[]",
        "Capabilities that the container has beyond Docker's usual ones.",
        shape=_TEXTS,
    ),
    "ulimits": Key(
        job_values.ulimits,
        "a mapping of limits such as nofile to a number, -1 for unlimited",
        "{}",
        "Resource limits of the container, soft and hard.",
        shape={"type": "object", "additionalProperties": {"type": "integer", "minimum": -1}},
    ),
    "user": Key(
        job_values.container_user,
        "host, root, or uid:gid",
        "host",
        "The user of the container. `host`: the SSH user, who then owns the files it writes.",
        shape=_NUMBER_OR_TEXT,  # YAML 1.1 reads 1000:1000 as a number in base 60
    ),
    "max_restarts": _number(
        0,
        1000,
        "a number from 0",
        "0",
        "How often to restart the whole job from its newest checkpoint after a failure that may pass: "
        "a lost host, a killed rank or container, a broken connection, a hang. An exception of the "
        "script would happen again, so `ddpctl resume` restarts after it.",
    ),
    "stop_timeout": _number(
        0,
        86400,
        "seconds, from 0 to 86400",
        "60",
        "Seconds between SIGTERM and SIGKILL when a run is stopped.",
    ),
    "time_limit": Key(
        job_values.duration,
        "a time such as 2h30m or 90s, or a number of seconds",
        "none",
        "How long an attempt may take. After that it is stopped as `ddpctl kill` does: it has "
        "stop_timeout to save, the run is CANCELLED and the exit code is 7.",
        shape=_NUMBER_OR_TEXT,
    ),
    "metrics_dir": Key(
        job_values.folder_on_hosts,
        "an absolute path of a folder on the hosts",
        "none",
        "Each node keeps a Prometheus textfile there while it runs, for node_exporter's textfile "
        "collector. The folder must exist, and the container's user must be able to write to it.",
    ),
}

SECTIONS = {
    "defaults": "Values for every host. A host may override them.",
    "hosts": "The nodes in rank order: the first is node 0, the master. An entry is a mapping, or "
    "just `[user@]host[:port]` as `ssh` takes it.",
    "spares": "Hosts that replace a lost one, in this order. Written like hosts.",
    "job": "What every node runs.",
}

# What users of other tools write.
_SYNONYMS = {
    "hostname": "host", "address": "host", "ip": "host", "name": "host", "node": "host",
    "username": "user", "ssh_user": "user", "ssh_port": "port", "key": "identity_file",
    "key_file": "identity_file", "ssh_key": "identity_file", "jump": "proxy_jump",
    "slots": "gpus", "num_gpus": "gpus", "gpu": "gpus", "gpu_ids": "gpus", "devices": "gpus",
    "iface": "interface", "nic": "interface", "private_ip": "internal_ip",
    "nproc": "nproc_per_node", "script": "command", "cmd": "command", "args": "command",
    "environment": "env", "envs": "env", "volumes": "mounts", "data": "dataset",
    "code": "workdir", "port": "master_port", "restarts": "max_restarts", "nodes": "hosts",
    "workers": "hosts"
}  # fmt: skip


def unknown(name: str, line: int, known: Collection[str]) -> Problem:
    """A key that is none of `known`, with the key that was probably meant."""
    synonym = _SYNONYMS.get(name.lower().replace("-", "_"))
    near = synonym if synonym in known else nearest(name, known)
    homes = [home for home, keys in (("hosts", HOST), ("job", JOB)) if name in keys or name == home]
    remedy = "correct or remove it"
    if homes:
        near, remedy = None, f"move it under {' or '.join(f'{home}:' for home in homes)}"
    return Problem(
        line, shown(name), "found an unknown key", remedy, ", ".join(sorted(known)), near
    )
