import os

from ..errors import UsageError
from ..outcomes import Exit, Outcome
from . import options
from .options import argument, flag, number, option, seconds, some_seconds


def launch(
    hosts: str | None = options.HOSTS,
    command: list[str] | None = argument(
        "[-- COMMAND...]", "What torchrun runs: a script, or -m MODULE (default: job.command)."
    ),
    host_list: str | None = options.HOST_LIST,
    include: str | None = options.INCLUDE,
    exclude: str | None = options.EXCLUDE,
    job: str | None = options.JOB,
    name: str = option("--name", "NAME", "Name the run; its id will begin with NAME.", default=""),
    detach: bool = options.DETACH,
    no_push: bool = flag("--no-push", "Skip the push."),
    no_check: bool = flag("--no-check", "Skip the checks."),
    dry_run: bool = flag("--dry-run", "Print the plan without contacting any host."),
    max_restarts: str | None = option(
        "--max-restarts",
        "N",
        "Override job.max_restarts: how often the run may restart after a failure.",
    ),
    env: list[str] | None = option(
        "--env", "K=V", "Add to job.env; K alone takes this machine's value. Repeatable.", "-e"
    ),
    env_file: str | None = option("--env-file", "FILE", "Override job.env_file."),
    image: str | None = options.IMAGE,
    dataset: str | None = option("--dataset", "DIR", "Override job.dataset."),
    workdir: str | None = option("--workdir", "DIR", "Override job.workdir."),
    nproc_per_node: str | None = option("--nproc-per-node", "N", "Override job.nproc_per_node."),
    master_port: str | None = option("--master-port", "PORT", "Override job.master_port."),
    time_limit: str | None = option(
        "--time-limit", "D", "Override job.time_limit, such as 2h30m or 24:00:00."
    ),
    wait: bool = flag("--wait", "Wait in line while other runs use the GPUs or the port."),
    wait_limit: int | None = option(
        "--wait-limit", "D", "Wait in line for at most D, such as 8h.", reader=some_seconds
    ),
    nodes: int | None = option(
        "--nodes", "N", "Run on any N hosts whose GPUs are free.", reader=number(1)
    ),
    hang_timeout: int | None = option(
        "--hang-timeout",
        "D",
        "Stop the run after D without progress; 0: never. Default: 30m for `-m trainer`, never for "
        "other scripts.",
        reader=seconds,
    ),
    as_json: bool = options.JSON,
    on_exit: str | None = options.ON_EXIT,
    on_event: str | None = options.ON_EVENT,
    fold: bool = options.FOLD,
    plain: bool = options.PLAIN,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> Outcome | Exit:
    """Check and push, then start torchrun on every node and follow the logs.

    Your script should save checkpoints to $DDPCTL_CHECKPOINT_DIR, where a resumed run finds them, and
    other files to $DDPCTL_OUTPUT_DIR; `ddpctl fetch` copies both to this machine.

    docs/metrics.md lists the environment variables that --on-exit and --on-event commands get.

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
    cluster = cluster_of(options.hosts_of(hosts, host_list), flags, include, exclude, job_file=job)
    if not dry_run:
        connect_early(cluster.hosts)

    # imported while the logins are in progress
    from ..engines.choose import engine_traits
    from ..plan import render
    from ..plan.launch_options import LaunchOptions
    from ..runs.record import document
    from ..ssh.background import in_background
    from ..start.launch import new_run, plan_without_hosts, run_with_restarts

    # imports the Docker SDK; the hosts can report their facts without waiting for that
    in_background(engine_traits, cluster.job.engine)
    how = LaunchOptions(
        name=name,
        detach=detach,
        push=not no_push,
        check=not no_check,
        hang_timeout=hang_timeout,
        wait=wait_limit or (0 if wait else None),
        nodes=nodes,
        on_exit=on_exit,
        on_event=on_event,
    )
    console = options.console(quiet, verbose, plain, fold, results=dry_run or not as_json)
    request = new_run(cluster, how, console)
    if dry_run:
        plan = plan_without_hosts(request)
        if as_json:
            console.json(render.plan_document(plan))
        else:
            console.print(render.plan_text(plan))
        return Exit.DONE
    outcome = run_with_restarts(request, console)
    if as_json:
        console.json(document(request.folder.load()))
    return outcome


def parse_env(words: list[str]) -> dict[str, str] | None:
    """Parse --env K=V, or --env K for this machine's value of K, as `docker run` does.

    Return None if --env is not given.
    """
    env = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            if key not in os.environ:
                what = f"--env {key}: not set on this machine"
                raise UsageError(what, f"pass --env {key}=VALUE")
            value = os.environ[key]
        env[key] = value
    return env or None
