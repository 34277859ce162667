"""Which run is meant: one that this machine remembers, or one that is found on the hosts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from launcher.engines.base import NodeStatus
from launcher.engines.choose import engines_on
from launcher.errors import DdpctlError, UsageError
from launcher.hosts import Cluster, dump, load
from launcher.runs.record import RunFolder, find_run
from launcher.ssh.many import ask_each, one_per_account
from launcher.ssh.node import Node, connected
from launcher.state import make_folder, state_home, write_atomically

# The record of the newest attempt of run $1 that this host keeps.
READ_RECORD = r"""
newest=$(ls -td "$HOME/.ddpctl/runs/$1"/nodes/*/attempt-* 2>/dev/null | head -n 1)
cat "$newest/run.json"
"""
# The runs that this host keeps the record of, with or without containers.
KEPT = r"""
for folder in "$HOME"/.ddpctl/runs/*/nodes; do
  if [ -d "$folder" ]; then basename "${folder%/nodes}"; fi
done
"""


def names_hosts(text: str | None) -> bool:
    """Whether an argument that may be a run or a hosts file is a hosts file."""
    return text is not None and (Path(text).is_file() or text.endswith((".yaml", ".yml")))


def find(target: str | None, hosts: str | None) -> RunFolder:
    """The run that `target` names: an id, a beginning of one, or a hosts file for its newest run.

    With `hosts`, a run that this machine does not remember is looked for there, and remembered.
    """
    if names_hosts(target):
        hosts, target = target, None
    if hosts is None:
        return find_run(target)
    cluster = load(hosts, job_files=False)
    with connected(cluster.hosts) as nodes:
        return find_on(nodes, cluster, target)


def find_on(nodes: Sequence[Node], cluster: Cluster, prefix: str | None) -> RunFolder:
    """The newest run there that matches, those alive first; one that was killed has no containers
    any more, but its folders."""
    statuses, failures = look(nodes, cluster)
    alive = {status.run_id for status in statuses if status.alive}
    known = {status.run_id for status in statuses} | kept(nodes)
    matching = {run_id for run_id in known if run_id.startswith(prefix or "")}
    if prefix in matching:
        matching = {prefix}
    if not matching:
        unseen = f" (not seen: {', '.join(failures)})" if failures else ""
        raise UsageError(
            f"{cluster.source}: no run{f' {prefix!r}' if prefix else ''} there{unseen}"
        )
    if prefix and len(matching) > 1:
        listed = ", ".join(sorted(matching))
        raise UsageError(f"{prefix!r} is the beginning of {listed}: give more of it")
    newest = max(matching, key=lambda run_id: (run_id in alive, run_id))  # ids begin with the time
    folder = RunFolder(state_home() / "runs" / newest)
    if not (folder.path / "run.json").exists():
        adopt(folder, nodes, cluster)
    return folder


def kept(nodes: Sequence[Node]) -> set[str]:
    """The run ids that the hosts in sight have folders of."""

    def ask(node: Node) -> list[str]:
        return node.script(KEPT).stdout.decode(errors="replace").split()

    found, _ = ask_each(nodes, ask)
    return {run_id for run_ids in found.values() for run_id in run_ids}


def look(
    nodes: Sequence[Node], cluster: Cluster, run_id: str | None = None
) -> tuple[list[NodeStatus], dict[str, DdpctlError]]:
    """Every node of every run that the hosts' engines know, and the hosts that cannot be seen."""
    machines = one_per_account(nodes)

    def ask(node: Node) -> list[NodeStatus]:
        return [s for engine in engines_on(node, cluster.job.engine) for s in engine.list(run_id)]

    found, failures = ask_each(machines, ask)
    return [status for statuses in found.values() for status in statuses], failures


def adopt(folder: RunFolder, nodes: Sequence[Node], cluster: Cluster) -> None:
    """Remembers a run that another machine started, from the record that its hosts keep."""
    document = _record_on_hosts(folder.run_id, nodes)
    make_folder(folder.logs)
    write_atomically(folder.hosts_file, str(document.pop("hosts_file", dump(cluster))))
    write_atomically(folder.path / "run.json", json.dumps(document, indent=2) + "\n")


def _record_on_hosts(run_id: str, nodes: Sequence[Node]) -> dict[str, object]:
    for node in nodes:
        try:
            done = node.script(READ_RECORD, run_id)
            document = json.loads(done.stdout)
            if isinstance(document, dict):
                return document
        except (DdpctlError, ValueError):
            continue  # the next host may have it
    raise UsageError(f"no host has the record of {run_id}; only `ddpctl kill` works on such a run")
