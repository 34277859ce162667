"""Every key of the hosts file: where it may stand, how it is read, what it means.

This table is what the reader obeys and what docs/hosts-file.md is printed from, so the two cannot
differ; hosts.example.yaml is held to it by a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import job_values, values
from .problems import nearest, shown
from .values import At, Reader, Reading, Value
from .yaml import Table


@dataclass(frozen=True)
class Key:
    """allowed: what may stand there, in words. default: what holds without it, in words."""

    name: str
    read: Reader
    allowed: str
    default: str
    meaning: str


HOST = (
    Key(
        "host",
        values.host,
        "an address, a DNS name, a Host alias of ~/.ssh/config, or local",
        "required",
        "The machine. `local` is this one, without SSH. The same machine may stand twice with "
        "disjoint lists of GPUs, or with `gpus: 0`: two nodes on one machine.",
    ),
    Key(
        "user",
        values.user,
        "a login name",
        "what `ssh HOST` uses",
        "The SSH user. It must be allowed to use Docker on the host.",
    ),
    Key(
        "port",
        values.whole(1, 65535),
        "a number from 1 to 65535",
        "what `ssh HOST` uses",
        "The port of sshd.",
    ),
    Key(
        "identity_file",
        values.path_of("file"),
        "a private key file on this machine",
        "what `ssh HOST` uses",
        "The key to log in with. The agent and ~/.ssh/config are used as `ssh` uses them.",
    ),
    Key(
        "proxy_jump",
        values.proxy_jump,
        "[user@]host[:port], several joined by commas, or none",
        "what `ssh HOST` uses",
        "The jump hosts on the way, as `ssh -J` takes them.",
    ),
    Key(
        "host_keys",
        values.choice("ask", "accept-new"),
        "ask or accept-new",
        "ask",
        "What to do about a host key that known_hosts does not have. `ask`: stop and say how to "
        "add it. `accept-new`: add it once. A changed key is always an error.",
    ),
    Key(
        "gpus",
        values.gpus,
        "all, a count, a list of ids such as [0, 1], or 0 for CPU",
        "all",
        "The GPUs that the node gets.",
    ),
    Key(
        "internal_ip",
        values.internal_ip,
        "an IPv4 or IPv6 address of the host",
        "found out by `ddpctl check`",
        "The address that the other nodes reach this one by.",
    ),
    Key(
        "interface",
        values.interface,
        "the name of a network interface, such as ib0",
        "the one that carries internal_ip",
        "The interface for NCCL and Gloo. Hosts may differ.",
    ),
)
# `host` and `internal_ip` cannot hold for more than one machine.
DEFAULTS = tuple(key for key in HOST if key.name not in ("host", "internal_ip"))

JOB = (
    Key(
        "engine",
        values.choice("docker", "process"),
        "docker or process",
        "docker",
        "`docker`: one container a node. `process`: torchrun straight on this machine, only for "
        "`host: local`.",
    ),
    Key(
        "image",
        job_values.image,
        "an image reference: [registry/]name[:tag][@sha256:digest]",
        "ddpctl-trainer:latest",
        "The image. Anything with Python and torch in it serves. It is sent to hosts that do not "
        "have it.",
    ),
    Key(
        "workdir",
        values.path_of("folder"),
        "a folder on this machine",
        "none",
        "The code, pushed to every host and mounted at /workspace, the working directory.",
    ),
    Key(
        "dataset",
        values.path_of("folder"),
        "a folder on this machine",
        "none",
        "The data, pushed to every host and mounted read-only at /data.",
    ),
    Key(
        "command",
        job_values.command,
        "a list: what torchrun runs, such as [train.py, --epochs, 10] or [-m, trainer]",
        "[-m, trainer]",
        "The script and its arguments, passed unchanged. `-- ...` on the command line replaces it.",
    ),
    Key(
        "resume_args",
        job_values.arguments,
        "a list of arguments",
        "[]",
        "Appended to the command by `ddpctl resume`. The trainer needs none.",
    ),
    Key(
        "nproc_per_node",
        values.whole(1, 1024),
        "a number of processes, from 1",
        "one a GPU; 1 on a CPU host",
        "Processes on each node.",
    ),
    Key(
        "master_port",
        values.whole(1, 65535, also="auto"),
        "a number from 1 to 65535, or auto",
        "29500",
        "The port of the rendezvous on node 0. `auto`: one that is free there.",
    ),
    Key(
        "env",
        job_values.env,
        "a mapping of names (letters, digits, _) to values",
        "{}",
        "Environment of every process. Values stay as they are written.",
    ),
    Key(
        "env_file",
        values.path_of("env file"),
        "a file of NAME=value lines on this machine",
        "none",
        "Secrets for the environment, one NAME=value a line, each value up to the end of its "
        "line as it stands. Never on a command line, in a log, in `ps` or in run.json.",
    ),
    Key(
        "mounts",
        job_values.mounts,
        "a list of /host/folder:/container/folder[:ro]",
        "[]",
        "More folders of the hosts for the container.",
    ),
    Key(
        "shm_size",
        job_values.size,
        "a size such as 16g or 512m",
        "16g",
        "Shared memory (/dev/shm) of the container; data loader workers need it.",
    ),
    Key(
        "user",
        job_values.container_user,
        "host, root, or uid:gid",
        "host",
        "Who the container runs as. `host`: the SSH user, who then owns the files it writes.",
    ),
    Key(
        "max_restarts",
        values.whole(0, 1000),
        "a number from 0",
        "0",
        "Restarts of the whole job from the newest checkpoint.",
    ),
    Key(
        "stop_timeout",
        values.whole(0, 86400),
        "seconds, from 0 to 86400",
        "60",
        "Seconds between SIGTERM and SIGKILL.",
    ),
)

SECTIONS: Mapping[str, str] = {
    "defaults": "For every host; a host may override any of them.",
    "hosts": "The nodes. List order is rank order: the first is node 0, the master. An entry is a "
    "mapping, or a bare `[user@]host[:port]`, which is whatever `ssh` does with it.",
    "spares": "Hosts that take the place of a lost one, in this order. Written like hosts.",
    "job": "What every node runs.",
}

# What people who come from other tools write.
_SYNONYMS = {
    "hostname": "host", "address": "host", "ip": "host", "name": "host", "node": "host",
    "username": "user", "ssh_user": "user", "ssh_port": "port", "key": "identity_file",
    "key_file": "identity_file", "ssh_key": "identity_file", "jump": "proxy_jump",
    "slots": "gpus", "num_gpus": "gpus", "gpu": "gpus", "gpu_ids": "gpus", "devices": "gpus",
    "iface": "interface", "nic": "interface", "private_ip": "internal_ip",
    "nproc": "nproc_per_node", "script": "command", "cmd": "command", "args": "command",
    "environment": "env", "envs": "env", "volumes": "mounts", "data": "dataset",
    "code": "workdir", "port": "master_port", "restarts": "max_restarts", "nodes": "hosts",
    "workers": "hosts",
}  # fmt: skip


def read_keys(table: Table, keys: tuple[Key, ...], path: str, reading: Reading) -> dict[str, Value]:
    """The values of `table` that are right; each that is not is added to the problems."""
    known = {key.name: key for key in keys}
    found: dict[str, Value] = {}
    for name, tree in table.entries.items():
        key = known.get(name)
        if key is None:
            unknown(name, table.lines[name], path, tuple(known), reading)
            continue
        value = key.read(tree, At(reading, f"{path}.{name}", key.allowed))
        if value is not None:
            found[name] = value
    return found


def unknown(name: str, line: int, path: str, known: tuple[str, ...], reading: Reading) -> None:
    synonym = _SYNONYMS.get(name.lower().replace("-", "_"))
    near = synonym if synonym in known else nearest(name, known)
    homes = [
        section
        for section, keys in (("hosts", HOST), ("job", JOB))
        if name in {key.name for key in keys} or name == section
    ]
    remedy = "correct or remove it"
    if homes:
        near = None
        remedy = f"move it under {' or '.join(f'{home}:' for home in homes)}"
    reading.problems.add(
        line,
        f"{path}.{shown(name)}" if path else shown(name),
        "found an unknown key",
        allowed=", ".join(sorted(known)),
        remedy=remedy,
        near=near,
    )
