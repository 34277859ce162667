import typer

from ..terminal import ask
from . import options
from .options import flag


def clean(
    hosts: str | None = options.HOSTS,
    host_list: str | None = options.HOST_LIST,
    kill: bool = flag("--kill", "First stop runs that are live, wait in line or may restart."),
    yes: bool = options.YES,
    as_json: bool = options.JSON,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> int:
    """Remove ~/.ddpctl and ddpctl's containers from the hosts. Lists them and asks first.

    This also deletes checkpoints, logs and pushed data on the hosts: use `ddpctl fetch` for what you
    want to keep. Hosts of a run that is live, waits in line or is about to restart are left alone. Images
    and this machine's own records of its runs are kept. Without a terminal or with --json, nothing is
    removed unless you pass -y.

    \b
    ddpctl clean hosts.yaml
    ddpctl clean hosts.yaml --kill -y
    """
    from ..runs.find import hosts_to_ask
    from ..stop import clean as clean_hosts

    console = options.console(quiet, verbose)

    def confirm(total: str) -> bool:
        if yes:
            return True
        if as_json or not ask.can_ask():
            console.say(f"nothing removed; pass -y to remove {total}")
            return False
        if not typer.confirm(f"Remove all of this ({total})?", err=True):
            console.say("nothing removed")
            return False
        return True

    cluster = hosts_to_ask(options.hosts_of(hosts, host_list), console)
    return clean_hosts.clean(cluster, console, kill=kill, as_json=as_json, confirm=confirm)
