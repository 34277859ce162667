"""ddpctl init"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.commands import complete, options

if TYPE_CHECKING:
    from collections.abc import Callable


def init(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="What to write.")] = Path(
        "hosts.yaml"
    ),
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="As `ssh` takes it, or local; repeatable.",
            autocompletion=complete.host_names,
        ),
    ] = None,
    hostfile: Annotated[
        str | None,
        typer.Option("--hostfile", metavar="FILE", help="Hosts of a DeepSpeed or MPI hostfile."),
    ] = None,
    ssh_config: Annotated[
        str | None,
        typer.Option(
            "--ssh-config", metavar="PATTERN", help="Hosts of ~/.ssh/config, such as 'gpu*'."
        ),
    ] = None,
    user: Annotated[str | None, typer.Option("--user", help="The SSH user of all hosts.")] = None,
    image: Annotated[str | None, typer.Option("--image", help="job.image.")] = None,
    workdir: Annotated[str | None, typer.Option("--workdir", help="job.workdir.")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="job.dataset.")] = None,
    command: Annotated[
        str | None,
        typer.Option("--command", metavar="LINE", help="job.command, as a shell splits it."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write over a file that is there.")
    ] = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Write a commented hosts file. Asks for what the flags do not say, on a terminal only.

    \b
    ddpctl init
    ddpctl init --host gpu1.lab --host gpu2.lab --image mine:1 --command 'train.py --epochs 90'
    ddpctl init lab.yaml --ssh-config 'gpu*'
    ddpctl init --hostfile hostfile
    """
    import sys

    from launcher.errors import UsageError
    from launcher.hosts import starter as making

    if file.exists() and not force:
        raise UsageError(f"{file}: is there already; give --force or another name")
    ask = prompt if sys.stdin.isatty() and sys.stderr.isatty() else None
    hosts = _hosts(host, hostfile, ssh_config, ask)
    asking = ask if not (host or hostfile or ssh_config) else None
    if image is None:
        image = asking("Image", making.DEFAULT_IMAGE) if asking else making.DEFAULT_IMAGE
    if command is None:
        default = " ".join(making.DEFAULT_COMMAND)
        command = asking("What torchrun runs", default) if asking else default
    words = split(command)
    answers = making.Answers(
        hosts=hosts,
        user=user,
        image=image,
        # a script of one's own has to get there
        workdir=workdir if workdir is not None else "." if words[0].endswith(".py") else None,
        dataset=dataset,
        command=words,
    )
    text = making.compose(answers, str(file))
    try:
        with file.open("w" if force else "x") as out:
            out.write(text)
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror}") from None
    options.console(quiet, verbose).say(f"wrote {file}; next: `ddpctl check {file}`")
    return 0


def _hosts(
    named: list[str] | None,
    hostfile: str | None,
    pattern: str | None,
    ask: Callable[[str, str], str] | None,
) -> tuple[tuple[str, int | None], ...]:
    import fnmatch

    from launcher.errors import UsageError
    from launcher.hosts import load
    from launcher.hosts.starter import hosts_in, ssh_aliases
    from launcher.state import home_folder

    config = home_folder() / ".ssh" / "config"
    found: list[tuple[str, int | None]] = [(name, None) for name in named or []]
    if hostfile is not None:
        found += hosts_in(load(hostfile, job_files=False))
    if pattern is not None:
        names = fnmatch.filter(ssh_aliases(config), pattern)
        if not names:
            raise UsageError(f"--ssh-config {pattern!r}: no Host of {config} is like that")
        found += [(name, None) for name in names]
    if found:
        return tuple(found)
    if ask is None:
        raise UsageError("no hosts: give --host, --hostfile or --ssh-config, or use a terminal")
    known = ssh_aliases(config)
    hint = f" (~/.ssh/config has {', '.join(known[:8])})" if known else ""
    said = ask(f"Hosts, as ssh takes them, or local{hint}", " ".join(known[:8]) or "local")
    return tuple((name, None) for name in said.replace(",", " ").split())


def split(command: str) -> tuple[str, ...]:
    import shlex

    from launcher.errors import UsageError

    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"--command {command!r}: {str(error).lower()}; mend the quotes") from None
    if not words:
        raise UsageError("--command: empty; give a script, or -m and a module")
    return words


def prompt(question: str, default: str) -> str:
    return str(typer.prompt(question, default=default, err=True))
