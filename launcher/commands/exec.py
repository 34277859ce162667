import sys

from ..errors import UsageError
from . import options
from .options import argument, flag, number, option


def exec(
    run: str | None = options.RUN,
    command: list[str] | None = argument("-- COMMAND...", "The command to run."),
    hosts: str | None = options.LOOK_ON,
    node: int | None = option(
        "--node", "K", "Run the command on node K (default: 0).", reader=number(0)
    ),
    rank: int | None = option(
        "--rank", "R", "Run the command on the node that has rank R.", reader=number(0)
    ),
    on_all: bool = flag(
        "--all-nodes", "Run the command on every node; prefix each line with its host."
    ),
    stdin: bool = flag("--interactive", "Forward stdin to the command.", "-i"),
    tty: bool = flag("--tty", "Connect this terminal to the command; implies -i.", "-t"),
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> int:
    """Run a command on a node of a live run, in the node's container if it has one.

    The command has the node's environment and working directory. The exit code is the command's;
    with --all-nodes, the first non-zero one in node order. With -t, Ctrl-C goes to the command;
    otherwise, it ends only ddpctl.

    \b
    ddpctl exec -- nvidia-smi
    ddpctl exec --rank 5 -t -- bash
    ddpctl exec 20261121 --hosts hosts.yaml --all-nodes -- df -h /dev/shm
    """
    from ..look.exec import ExecOptions, exec_in_run
    from ..runs.find import find

    if not command:
        raise UsageError("no command", "put it after `--`, as in `ddpctl exec -- nvidia-smi`")
    if (node is not None) + (rank is not None) + on_all > 1:
        raise UsageError("--node, --rank and --all-nodes cannot be combined", "pass one of them")
    if on_all and (stdin or tty):
        raise UsageError("--all-nodes: several commands cannot share stdin", "drop -i and -t")
    if tty and not sys.stdin.isatty():
        raise UsageError("-t: stdin is not a terminal", "pass -i instead to forward stdin")
    console = options.console(quiet, verbose)
    how = ExecOptions(tuple(command), node, rank, on_all, stdin or tty, tty)
    return exec_in_run(find(run, hosts, console), how, console)
