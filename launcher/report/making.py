"""Collect what the page needs from this machine and the hosts, then write it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from ..errors import DdpctlError, StateError, UsageError
from ..runs.attempt import running_attempt
from ..runs.record import RunFolder, RunRecord, timestamp
from ..ssh.many import ask_each
from ..ssh.node import Node
from ..state import write_atomically
from ..terminal.console import Console
from .numbers import charts_by_host
from .page import page

# $1: the output folder. Of a very long run, only the newest part is drawn.
READ = 'tail -c 20000000 "$1/metrics.jsonl" 2>/dev/null || true'
HIDDEN = "(not shown)"


def make(folder: RunFolder, out: Path, console: Console) -> int:
    """The exit code: 0, or 4 if a host did not answer; its curves are then missing on the page."""
    record = folder.load()
    metrics, failures = _metrics(folder, record, console)
    notes = []
    for host, error in failures.items():
        notes.append(f"Curves of {host} may be missing: cannot see {error}")
        console.error(f"no answer from {error}")
    html = page(
        record, charts_by_host(metrics), without_secrets(folder.hosts_file), notes, now=timestamp()
    )
    try:
        # ASCII with character references reads the same in any locale
        write_atomically(out, html.encode("ascii", "xmlcharrefreplace").decode())
    except StateError as error:
        raise UsageError(f"{error}; or give another -o FILE") from None
    console.print(str(out))
    return 4 if notes else 0


def _metrics(
    folder: RunFolder, record: RunRecord, console: Console
) -> tuple[dict[str, bytes], Mapping[str, DdpctlError]]:
    """metrics.jsonl of each host, and the error of each host that did not answer.

    The trainer's rank 0 writes it on node 0, which may be another host after a resume.
    """
    if not record.attempts:
        return {}, {}
    with running_attempt(folder, record) as party, console.step("reading the metrics of the run"):
        places = dict(zip(party.nodes, party.places, strict=True))
        machines = {(node.name, places[node].run_dir): node for node in reversed(party.nodes)}

        def read(node: Node) -> bytes:
            return node.script(READ, f"{places[node].run_dir}/output", timeout=60.0).stdout

        nodes = sorted(machines.values(), key=lambda node: places[node].node_rank)
        return ask_each(nodes, read)


def without_secrets(path: Path) -> str:
    """The hosts file as used, without the values of `env`: reports are passed on."""
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError):
        return "(no longer on this machine)"
    job = document.get("job") if isinstance(document, dict) else None
    if isinstance(job, dict) and isinstance(job.get("env"), dict):
        job["env"] = dict.fromkeys(job["env"], HIDDEN)
    return yaml.safe_dump(document, sort_keys=False)
