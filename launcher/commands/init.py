"""ddpctl init"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import complete, options

if TYPE_CHECKING:
    from ..hosts.starter import Answers, Entry
    from ..terminal.console import Console

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
    key: Annotated[
        str | None,
        typer.Option("--identity-file", metavar="FILE", help="The SSH key for all hosts."),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", help="all, a count, ids such as 0,1, or 0 for CPU.")
    ] = None,
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

    Without --host, --hostfile and --ssh-config it asks you on a terminal. It then also asks the
    hosts for their GPUs; a host that does not answer stays in the file, with a comment.

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
    console = options.console(quiet, verbose)
    by_flags = bool(host or hostfile or ssh_config)
    ask = None if by_flags or not options.can_ask() else _prompt
    answers = starter.Answers(_hosts(host, hostfile, ssh_config, ask), user, key, gpus or "all")
    if ask:
        answers = _ask_about_hosts(answers, file, ask, console, ask_gpus=gpus is None)
    default_command = " ".join(starter.DEFAULT_COMMAND)
    if image is None:
        image = ask("Image", starter.DEFAULT_IMAGE) if ask else starter.DEFAULT_IMAGE
    if command is None:
        command = ask("Command for torchrun", default_command) if ask else default_command
    words = _split(command)
    if workdir is None:
        workdir = "." if words[0].endswith(".py") else None  # the script has to get to the hosts
        if ask:
            answer = ask("Folder with your code, for the hosts", workdir or "none")
            workdir = None if answer == "none" else answer
    answers = dataclasses.replace(
        answers, image=image, workdir=workdir, dataset=dataset, command=words
    )
    text = starter.compose(answers, str(file))
    try:
        with file.open("w" if force else "x") as out:
            out.write(text)
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror}") from None
    console.say(f"wrote {file}; next: `ddpctl check {file}`")
    return 0


def _ask_about_hosts(
    answers: Answers, file: Path, ask: Ask, console: Console, *, ask_gpus: bool
) -> Answers:
    """Adds the login and the GPUs. What `ssh` or the hosts say is the default of each question."""
    from ..hosts.starter import named_hosts
    from ..preflight.first_look import look, ssh_login

    remote = [host for host in named_hosts(answers, str(file)) if not host.is_local]
    if remote:
        user, key = ssh_login(remote[0])
        if answers.user is None and (answer := ask("SSH user", user)) != user:
            answers = dataclasses.replace(answers, user=answer)
        if answers.identity_file is None and (answer := ask("SSH key", key)) != key:
            answers = dataclasses.replace(answers, identity_file=answer)
    hosts = named_hosts(answers, str(file))
    found = look(hosts, console)
    for host, seen in zip(hosts, found, strict=True):
        if seen.gpus is not None:
            console.say(f"{host.name}: {seen.note}")
    counts = [seen.gpus for seen in found if seen.gpus is not None]
    gpus = answers.gpus
    if ask_gpus:
        gpus = ask("GPUs of each host", "0" if counts and not any(counts) else "all")
    entries = tuple(
        entry._replace(gpus=0 if seen.gpus == 0 and gpus != "0" else None, note=seen.note)
        for entry, seen in zip(answers.hosts, found, strict=True)
    )
    return dataclasses.replace(answers, hosts=entries, gpus=gpus)


def _hosts(
    named: list[str] | None, hostfile: str | None, pattern: str | None, ask: Ask | None
) -> tuple[Entry, ...]:
    import fnmatch

    from ..errors import UsageError
    from ..hosts import load
    from ..hosts.starter import Entry, hosts_in, ssh_aliases
    from ..state import expanded

    config = expanded("~/.ssh/config")
    found = [Entry(name) for name in named or []]
    if hostfile is not None:
        found += hosts_in(load(hostfile, job_files=False))
    if pattern is not None:
        names = fnmatch.filter(ssh_aliases(config), pattern)
        if not names:
            raise UsageError(f"--ssh-config {pattern!r}: matches no Host of {config}")
        found += [Entry(name) for name in names]
    if found:
        return tuple(found)
    if ask is None:
        raise UsageError("no hosts: give --host, --hostfile or --ssh-config, or use a terminal")
    known = ssh_aliases(config)[:8]
    hint = f" (~/.ssh/config has {', '.join(known)})" if known else ""
    answer = ask(f"Hosts, as ssh takes them, or local{hint}", " ".join(known) or "local")
    return tuple(Entry(name) for name in answer.replace(",", " ").split())


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
