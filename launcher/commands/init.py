"""ddpctl init"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from . import complete, options

Ask = Callable[[str, str], str]  # question, default -> answer


def init(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="The file to write.")] = Path(
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
    image: Annotated[str | None, typer.Option("--image", help="Set job.image.")] = None,
    workdir: Annotated[str | None, typer.Option("--workdir", help="Set job.workdir.")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="Set job.dataset.")] = None,
    command: Annotated[
        str | None,
        typer.Option("--command", metavar="LINE", help="Set job.command, split as by a shell."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Write a commented hosts file.

    On a terminal it asks for what the flags leave open.

    \b
    ddpctl init
    ddpctl init --host gpu1.lab --host gpu2.lab --image mine:1 --command 'train.py --epochs 90'
    ddpctl init lab.yaml --ssh-config 'gpu*'
    ddpctl init --hostfile hostfile
    """
    from ..errors import UsageError
    from ..hosts import starter

    if os.path.lexists(file) and not force:
        raise UsageError(f"{file}: already exists; give --force or another name")
    ask = _prompt if options.can_ask() else None
    hosts = _hosts(host, hostfile, ssh_config, ask)
    if host or hostfile or ssh_config:
        ask = None
    default_command = " ".join(starter.DEFAULT_COMMAND)
    if image is None:
        image = ask("Image", starter.DEFAULT_IMAGE) if ask else starter.DEFAULT_IMAGE
    if command is None:
        command = ask("Command for torchrun", default_command) if ask else default_command
    words = _split(command)
    if workdir is None and words[0].endswith(".py"):
        workdir = "."  # the script has to get to the hosts
    answers = starter.Answers(hosts, user, image, workdir, dataset, words)
    text = starter.compose(answers, str(file))
    try:
        with file.open("w" if force else "x") as out:
            out.write(text)
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror}") from None
    options.console(quiet, verbose).say(f"wrote {file}; next: `ddpctl check {file}`")
    return 0


def _hosts(
    named: list[str] | None, hostfile: str | None, pattern: str | None, ask: Ask | None
) -> tuple[tuple[str, int | None], ...]:
    import fnmatch

    from ..errors import UsageError
    from ..hosts import load
    from ..hosts.starter import hosts_in, ssh_aliases
    from ..state import expanded

    config = expanded("~/.ssh/config")
    found: list[tuple[str, int | None]] = [(name, None) for name in named or []]
    if hostfile is not None:
        found += hosts_in(load(hostfile, job_files=False))
    if pattern is not None:
        names = fnmatch.filter(ssh_aliases(config), pattern)
        if not names:
            raise UsageError(f"--ssh-config {pattern!r}: matches no Host of {config}")
        found += [(name, None) for name in names]
    if found:
        return tuple(found)
    if ask is None:
        raise UsageError("no hosts: give --host, --hostfile or --ssh-config, or use a terminal")
    known = ssh_aliases(config)[:8]
    hint = f" (~/.ssh/config has {', '.join(known)})" if known else ""
    answer = ask(f"Hosts, as ssh takes them, or local{hint}", " ".join(known) or "local")
    return tuple((name, None) for name in answer.replace(",", " ").split())


def _split(command: str) -> tuple[str, ...]:
    import shlex

    from ..errors import UsageError

    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"--command {command!r}: {str(error).lower()}; fix the quotes") from None
    if not words:
        raise UsageError("--command: empty; give a script, or -m and a module")
    return words


def _prompt(question: str, default: str) -> str:
    return str(typer.prompt(question, default=default, err=True))
