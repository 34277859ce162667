import os

from ..errors import UsageError
from ..outcomes import Exit, Outcome
from ..text import duration_remedy, quoted, seconds_in
from . import options
from .options import argument, flag, option


def launch(
    hosts: str | None = options.HOSTS,
    command: list[str] | None = argument("-- COMMAND", "Override job.command: what torchrun runs."),
    host_list: str | None = options.HOST_LIST,
    include: str | None = options.INCLUDE,
    exclude: str | None = options.EXCLUDE,
    name: str = option("--name", "Name the run; the name becomes part of its id.", default=""),
    detach: bool = options.DETACH,
    no_push: bool = flag("--no-push", "Skip the push."),
    no_check: bool = flag("--no-check", "Skip the checks."),
    dry_run: bool = flag("--dry-run", "Print the plan without contacting any host."),
    max_restarts: int | None = option(
        "--max-restarts",
        "Override job.max_restarts: how often the run may restart after a failure.",
    ),
    env: list[str] | None = option("--env", "Add to job.env.", "-e", metavar="K=V"),
    env_file: str | None = option("--env-file", "Override job.env_file.", metavar="FILE"),
    image: str | None = options.IMAGE,
    dataset: str | None = option("--dataset", "Override job.dataset."),
    workdir: str | None = option("--workdir", "Override job.workdir."),
    nproc_per_node: int | None = option("--nproc-per-node", "Override job.nproc_per_node."),
    master_port: str | None = option("--master-port", "Override job.master_port.", metavar="PORT"),
    time_limit: str | None = option(
        "--time-limit", "Override job.time_limit, such as 2h30m.", metavar="D"
    ),
    wait: bool = flag("--wait", "Wait in line while other runs have the GPUs or the port."),
    wait_limit: str | None = option(
        "--wait-limit", "Wait in line for at most D, such as 8h.", metavar="D"
    ),
    nodes: int | None = option(
        "--nodes", "Run on any N hosts whose GPUs are free.", min=1, metavar="N"
    ),
    hang_timeout: str | None = option(
        "--hang-timeout",
        "Stop the run after D without progress; 0: never. Default: 30m for `-m trainer`, never for "
        "other scripts.",
        metavar="D",
    ),
    as_json: bool = options.JSON,
    on_exit: str | None = options.ON_EXIT,
    on_event: str | None = options.ON_EVENT,
    fold: bool = options.FOLD,
    plain: bool = options.PLAIN,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> Outcome | Exit:
    """Check, push, start torchrun on every node and follow the logs.

    Your script saves to $DDPCTL_CHECKPOINT_DIR, which a resume finds again, and to
    $DDPCTL_OUTPUT_DIR; `ddpctl fetch` copies both here.

    --on-exit runs CMD once with `sh -c` when the run has ended, with the outcome in its
    environment: DDPCTL_RUN_ID, DDPCTL_NAME, DDPCTL_STATE (SUCCEEDED FAILED CANCELLED UNKNOWN),
    DDPCTL_EXIT_CODE, DDPCTL_ATTEMPT, DDPCTL_RUN_DIR, DDPCTL_FIRST_FAILURE, DDPCTL_FAILED_HOST.
    If the run was detached, this machine's recorder runs CMD. If CMD fails, you get a warning.

    --on-event runs CMD for each event, one at a time, with the variables above and DDPCTL_EVENT
    (attempt-started restarted contact-lost contact-restored node-ended attempt-ended), DDPCTL_HOST,
    DDPCTL_NODE_RANK, DDPCTL_MESSAGE. A CMD that takes longer than a minute is killed.

    \b
    ddpctl launch hosts.yaml
    ddpctl launch hosts.yaml --detach -- train.py --epochs 90
    ddpctl launch -H gpu1:8,gpu2:8 -- -m trainer --model resnet50
    ddpctl launch hosts.yaml --nodes 2 --wait-limit 8h --detach
    ddpctl launch hosts.yaml -d --on-exit 'mail -s "$DDPCTL_RUN_ID $DDPCTL_STATE" me </dev/null'
    """
    from ..hosts import cluster_of
    from ..ssh.connect import connect_early

    flags = {
        "image": image,
        "dataset": dataset,
        "workdir": workdir,
        "env": parse_env(env or []),
        "env_file": env_file,
        "nproc_per_node": nproc_per_node,
        "master_port": master_port,
        "max_restarts": max_restarts,
        "time_limit": time_limit,
        "command": command or None,
    }
    cluster = cluster_of(options.hosts_of(hosts, host_list), flags, include, exclude)
    if not dry_run:
        connect_early(cluster.hosts)

    from ..plan import render
    from ..plan.plan import LaunchOptions
    from ..runs.record import document
    from ..start import launch as launching

    wanted = LaunchOptions(
        name=name,
        detach=detach,
        push=not no_push,
        check=not no_check,
        hang_timeout=seconds_of("--hang-timeout", hang_timeout),
        wait=wait_seconds(wait, wait_limit),
        nodes=nodes,
        on_exit=on_exit,
        on_event=on_event,
    )
    console = options.console(quiet, verbose, plain, fold)
    first = launching.new_run(cluster, wanted)
    if not dry_run:
        console.document_only = as_json
        outcome = launching.launch(first, console)
        if as_json:
            console.json(document(first.folder.load()))
        return outcome
    plan = launching.dry_run(first)
    if as_json:
        console.json(render.plan_document(plan))
    else:
        console.print(render.plan_text(plan))
    return Exit.DONE


def wait_seconds(wait: bool, limit: str | None) -> int | None:
    """Return the limit of --wait or --wait-limit in seconds; 0: no limit; None: do not wait."""
    if limit is None:
        return 0 if wait else None
    seconds = seconds_of("--wait-limit", limit)
    if seconds == 0:
        raise UsageError(f"--wait-limit {quoted(limit)}: no time", "leave it out to fail at once")
    return seconds


def seconds_of(flag: str, text: str | None) -> int | None:
    """Read the duration that a flag has; None without the flag. Raises UsageError."""
    seconds = None if text is None else seconds_in(text)
    if text is not None and seconds is None:
        raise UsageError(f"{flag} {quoted(text)}: not a duration", duration_remedy(text))
    return seconds


def parse_env(words: list[str]) -> dict[str, str] | None:
    """Parse --env K=V, or --env K for this machine's value of K, as in `docker run`."""
    env = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            if key not in os.environ:
                raise UsageError(
                    f"--env {key}: not set on this machine", f"write --env {key}=VALUE"
                )
            value = os.environ[key]
        env[key] = value
    return env or None
