"""Collect data for the page from this machine and the hosts, then write the page."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from ..errors import DdpctlError, UsageError, lines
from ..facts.shared_homes import one_per_home
from ..outcomes import Exit
from ..own_folders import read_record, state_error
from ..runs.newest_attempt import newest_attempt
from ..runs.record import RunRecord, timestamp
from ..runs.run_folder import RunFolder
from ..ssh.host_connection import HostConnection, connected
from ..ssh.many import by_name, one_per_account, try_each
from ..ssh.script_files import load_script
from ..terminal.console import Console
from ..terminal.host_errors import report_errors
from .charts import charts, together
from .journals import began, parse_journals, with_reported_states
from .page import RunView, comparison, page

EVENTS = load_script(__file__, "run_events.sh")
LONGEST = 12_000_000  # bytes of metrics, and of events, to read from a host: the newest


def make(folders: Sequence[RunFolder], out: Path, console: Console) -> Exit:
    """Write a page about one run, or one that compares two.

    Return UNREACHABLE if a host did not answer.
    """
    views = [_collect(folder, console) for folder in folders]
    html = page(views[0]) if len(views) == 1 else comparison(*views)
    try:
        # ASCII with character references is safe in any locale
        out.write_bytes(html.encode("ascii", "xmlcharrefreplace"))
    except OSError as error:
        remedy = "use -o to name a file in a writable folder that has free space"
        raise UsageError(state_error(error, "written", out).what, remedy) from None
    console.print(str(out))
    return Exit.UNREACHABLE if any(run.notes for run in views) else Exit.DONE


def _collect(folder: RunFolder, console: Console) -> RunView:
    record = folder.load()
    answers, failures = _ask(folder, record, console)
    report_errors(failures, console)
    journals = parse_journals(record, [(each.name, answers[each][1]) for each in answers])
    metrics = by_name([*answers], {each: charts(answers[each][0]) for each in answers})
    drawn = together(metrics)
    evidence = sorted(folder.logs.glob("failure-*.txt"))
    return RunView(
        with_reported_states(record, journals),
        [*drawn, *journals.usage_charts(began(record))],
        journals,
        without_secrets(folder.hosts_file),
        [f"Curves may be missing: {line}" for line in lines(failures.values())],
        now=timestamp(),
        evidence={path.stem: path.read_text(errors="replace") for path in evidence},
    )


def _ask(
    folder: RunFolder, record: RunRecord, console: Console
) -> tuple[dict[HostConnection, tuple[bytes, bytes]], dict[str, DdpctlError]]:
    """Return each host's metrics.jsonl and events, and the errors of hosts that did not answer.

    Asks the hosts of earlier attempts too, because only rank 0 writes metrics, and a resume may have moved
    it. Hosts that share a home have one metrics.jsonl, which is read once.
    """
    newest = {node.host for node in record.attempt.nodes}
    run_dirs = {node.host: node.run_dir for each in record.attempts for node in each.nodes}
    hosts = folder.all_hosts()
    former = [hosts[name] for name in run_dirs if name in hosts and name not in newest]
    step = console.step("reading the run's metrics and events on the hosts")
    with newest_attempt(folder, console, record) as attempt, connected(former) as others, step:
        # by connection, because two accounts on one host have the same name
        run_dir_on = {member.connection: member.place.run_dir for member in attempt.members}
        run_dir_on |= {connection: run_dirs[connection.name] for connection in others}
        machines = one_per_account(run_dir_on)
        homes = one_per_home(machines)

        def read(connection: HostConnection) -> tuple[bytes, bytes]:
            run_dir, metrics = run_dir_on[connection], b""
            if connection in homes:
                tail = ["tail", "-c", str(LONGEST), f"{run_dir}/output/metrics.jsonl"]
                metrics = connection.run(tail, timeout=60.0, limit=LONGEST).stdout
            journals = [
                f"{node.node_rank}/attempt-{each.number}"
                for each in record.attempts
                for node in each.nodes
                if node.host == connection.name
            ]
            size = str(LONGEST // (3 * len(journals)))
            argv = [run_dir, size, *journals]
            events = connection.script(EVENTS, *argv, timeout=60.0, limit=LONGEST)
            return metrics, events.stdout

        answers, failures = try_each(machines, read)
        return answers, by_name(machines, failures)


def without_secrets(path: Path) -> str:
    """Return the hosts file's text without the values of `env`, because users share reports."""
    try:
        document = yaml.safe_load(read_record(path))
    except (OSError, ValueError, yaml.YAMLError):
        return "(the run's hosts file on this machine is gone or damaged)"
    job = document.get("job") if isinstance(document, dict) else None
    if isinstance(job, dict) and isinstance(job.get("env"), dict):
        job["env"] = dict.fromkeys(job["env"], "(not shown)")
    return yaml.safe_dump(document, sort_keys=False)
