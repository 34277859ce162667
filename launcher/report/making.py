"""The `report` command's work: what the page needs from this machine and node 0, then the file."""

from __future__ import annotations

from pathlib import Path

import yaml

from launcher.attach import party_of
from launcher.console import Console
from launcher.errors import DdpctlError, UsageError
from launcher.record import RunFolder, RunRecord, timestamp, write_atomically
from launcher.report.numbers import charts
from launcher.report.page import page

# $1 output folder. A long run's file is large, its curves need not be: the newest part serves.
READ = 'tail -c 20000000 "$1/metrics.jsonl" 2>/dev/null || true'
HIDDEN = "(not shown)"


def make(folder: RunFolder, out: Path, console: Console) -> int:
    """Returns 0, or 4 when node 0 was not seen: the page is there, without the curves."""
    record = folder.load()
    notes, metrics = [], b""
    try:
        metrics = _metrics(folder, record, console)
    except DdpctlError as error:
        notes.append(f"There are no curves: cannot see {error}")
        console.error(f"cannot see {error}")
    html = page(record, charts(metrics), without_secrets(folder.hosts_file), notes, now=timestamp())
    try:
        # whatever the locale: every other character as a reference
        write_atomically(out, html.encode("ascii", "xmlcharrefreplace").decode())
    except OSError as error:
        raise UsageError(
            f"{out}: cannot be written ({error.strerror}); give another -o FILE"
        ) from None
    console.print(str(out))
    return 4 if notes else 0


def _metrics(folder: RunFolder, record: RunRecord, console: Console) -> bytes:
    """metrics.jsonl, which rank 0 writes on node 0."""
    if not record.attempts:
        return b""
    with party_of(folder, record) as party, console.step("reading the metrics of the run"):
        for node, place in zip(party.nodes, party.places, strict=True):
            if place.node_rank == 0:
                argv = ["sh", "-c", READ, "sh", f"{place.run_dir}/output"]
                return node.run(argv, timeout=60.0).stdout
    return b""


def without_secrets(path: Path) -> str:
    """The hosts file as used, for a page that is passed on: no value of `env` stands in it."""
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError):
        return "(this machine no longer has it)"
    job = document.get("job") if isinstance(document, dict) else None
    if isinstance(job, dict) and isinstance(job.get("env"), dict):
        job["env"] = dict.fromkeys(job["env"], HIDDEN)
    return yaml.safe_dump(document, sort_keys=False)
