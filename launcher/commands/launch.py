"""ddpctl launch"""

from __future__ import annotations

from typing import Annotated

import typer

from . import options


def launch(
    context: typer.Context,
    hosts: options.Hosts = None,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="Override job.command: what torchrun runs."),
    ] = None,
    host_list: options.HostList = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    name: Annotated[str, typer.Option("--name", help="Name the run; part of its id.")] = "",
    detach: options.Detach = False,
    no_push: Annotated[bool, typer.Option("--no-push", help="Skip the push.")] = False,
    no_check: Annotated[bool, typer.Option("--no-check", help="Skip the checks.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and contact no host.")
    ] = False,
    max_restarts: Annotated[
        int | None,
        typer.Option(
            "--max-restarts",
            help="Override job.max_restarts: after a lost host or a killed rank, not an exception.",
        ),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="Add to job.env.")
    ] = None,
    env_file: Annotated[
        str | None, typer.Option("--env-file", metavar="FILE", help="Override job.env_file.")
    ] = None,
    image: options.Image = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="Override job.dataset.")] = None,
    workdir: Annotated[str | None, typer.Option("--workdir", help="Override job.workdir.")] = None,
    nproc_per_node: Annotated[
        int | None, typer.Option("--nproc-per-node", help="Override job.nproc_per_node.")
    ] = None,
    master_port: Annotated[
        str | None,
        typer.Option("--master-port", metavar="PORT", help="Override job.master_port."),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option("--time-limit", metavar="D", help="Override job.time_limit, such as 2h30m."),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(
            "--wait",
            metavar="[DURATION]",
            help="Wait in line while other runs have the GPUs; give up after DURATION.",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", min=1, metavar="N", help="Run on any N of the hosts whose GPUs are free."
        ),
    ] = None,
    hang_timeout: Annotated[
        float | None,
        typer.Option(
            "--hang-timeout",
            metavar="SECONDS",
            help="Stop the run after this long without progress; 0: never. Default: 1800 for "
            "`-m trainer`, never for other scripts.",
        ),
    ] = None,
    as_json: options.Json = False,
    on_exit: options.OnExit = None,
    on_event: options.OnEvent = None,
    fold: options.Folded = False,
    plain: options.Plain = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Check, push, start torchrun on every node and follow the logs.

    Your script saves to $DDPCTL_CHECKPOINT_DIR, which a resume finds again, and to
    $DDPCTL_OUTPUT_DIR; `ddpctl fetch` copies both here.

    --on-exit runs CMD once with `sh -c` when the run has ended, with the outcome in its
    environment: DDPCTL_RUN_ID, DDPCTL_NAME, DDPCTL_STATE (SUCCEEDED FAILED CANCELLED UNKNOWN),
    DDPCTL_EXIT_CODE, DDPCTL_ATTEMPT, DDPCTL_RUN_DIR, DDPCTL_FIRST_FAILURE, DDPCTL_FAILED_HOST.
    If the run was detached, this machine's recorder runs CMD. If CMD fails, you get a warning.

    --on-event runs CMD for each event, one at a time, with the variables above and DDPCTL_EVENT
    (attempt-started contact-lost contact-restored node-ended attempt-ended), DDPCTL_HOST,
    DDPCTL_NODE_RANK, DDPCTL_MESSAGE. A CMD that takes longer than a minute is killed.

    \b
    ddpctl launch hosts.yaml
    ddpctl launch hosts.yaml --detach -- train.py --epochs 90
    ddpctl launch -H gpu1:8,gpu2:8 -- -m trainer --model resnet50
    ddpctl launch hosts.yaml --nodes 2 --wait 8h --detach
    ddpctl launch hosts.yaml -d --on-exit 'mail -s "$DDPCTL_RUN_ID $DDPCTL_STATE" me </dev/null'
    """
    from ..hosts import cluster_of
    from ..plan import render
    from ..plan.options import LaunchOptions
    from ..start import launch as launching

    given = list(command or [])
    if host_list and hosts:  # with -H, everything that is not a flag is the command
        given, hosts = [hosts, *given], None
    given += context.args  # what follows `--`
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
        "command": given or None,
    }
    cluster = cluster_of(options.hosts_of(hosts, host_list), flags, include, exclude)
    wanted = LaunchOptions(
        name=name,
        detach=detach,
        push=not no_push,
        check=not no_check,
        hang_timeout=hang_timeout,
        wait=wait_seconds(wait),
        nodes=nodes,
        on_exit=on_exit,
        on_event=on_event,
    )
    console = options.console(quiet, verbose, plain, fold)
    first = launching.new_run(cluster, wanted)
    if not dry_run:
        return launching.launch(first, console)
    plan = launching.dry_run(first)
    if as_json:
        console.json(render.plan_document(plan))
    else:
        console.print(render.plan_text(plan))
    return 0


def wait_seconds(text: str | None) -> int | None:
    """As LaunchOptions.wait."""
    from ..errors import UsageError
    from ..hosts import seconds_in

    if text is None or text == options.FOREVER:
        return None if text is None else 0
    seconds = seconds_in(text)
    if not seconds:
        raise UsageError(f"--wait {text}: write for example 2h30m, or no duration to wait on")
    return seconds


def parse_env(words: list[str]) -> dict[str, str] | None:
    """--env K=V, or --env K for this machine's value of K, as in `docker run`."""
    import os

    from ..errors import UsageError

    env = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            if key not in os.environ:
                raise UsageError(f"--env {key}: not set on this machine; write --env {key}=VALUE")
            value = os.environ[key]
        env[key] = value
    return env or None
