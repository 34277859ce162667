from __future__ import annotations

import fnmatch
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..errors import DdpctlError, UsageError
from ..state import expanded
from ..terminal.console import Console
from ..text import names, names_in, quoted
from . import complete, options
from .options import flag, option

if TYPE_CHECKING:
    from ..hosts.init import Answers, HostLine

SSH_CONFIG = "~/.ssh/config"


def init(
    file: Path = typer.Argument(
        Path("hosts.yaml"),
        help="The file to write (default: hosts.yaml).",
        metavar="[FILE]",
        show_default=False,
    ),
    named: list[str] | None = options.hosts_option(
        "Add hosts as `ssh` takes them, or local: a list such as gpu1,gpu2; repeatable.",
        complete.host_names,
    ),
    source: str | None = option(
        "--from",
        "FILE",
        "Add the hosts of a hosts file, an Ansible inventory, a dstack fleet or SkyPilot node pools.",
    ),
    ssh_config: str | None = option(
        "--ssh-config", "PATTERN", "Add hosts from ~/.ssh/config, such as 'gpu*'."
    ),
    user: str | None = option("--user", "NAME", "SSH user for all hosts."),
    key: str | None = option("--identity-file", "FILE", "SSH key for all hosts."),
    gpus: str | None = option("--gpus", "GPUS", "all, a count, ids such as 0,1, or 0 for CPU."),
    image: str | None = option("--image", "IMAGE", "Set job.image."),
    workdir: str | None = option("--workdir", "DIR", "Set job.workdir."),
    dataset: str | None = option("--dataset", "DIR", "Set job.dataset."),
    command: str | None = option("--command", "LINE", "Set job.command, split as a shell would."),
    force: bool = flag("--force", "Overwrite an existing file."),
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> None:
    """Write a commented hosts file.

    On a terminal, without --hosts, --from or --ssh-config, it asks you for the hosts and then
    asks the hosts for their GPUs. A host that does not answer stays in the file, with a comment.

    \b
    ddpctl init
    ddpctl init -H gpu1.lab,gpu2.lab --image mine:1 --command 'train.py --epochs 90'
    ddpctl init lab.yaml --ssh-config 'gpu*'
    ddpctl init --from inventory.ini
    """
    from ..hosts import Job
    from ..hosts import init as starter

    if os.path.lexists(file) and not force:
        raise UsageError(f"{file}: already exists", "pass --force or another name")
    console = options.console(quiet, verbose)
    asks = not (named or source or ssh_config) and options.can_ask()
    ask = _prompt if asks else lambda _, default: default
    hosts = _asked_hosts() if asks else _hosts(named or [], source, ssh_config)
    answers = starter.Answers(hosts, user, key, gpus=gpus or "all")
    if asks:
        answers = _ask_about_hosts(answers, file, console, ask_gpus=gpus is None)
    if image is None:
        image = _asked_image(Job.image, console) if asks else Job.image
    if workdir is None:  # the hosts need a copy of the script
        has_script = asks and any(Path().glob("*.py"))
        if command is not None:
            has_script = command.split(" ")[0].endswith(".py")
        workdir = ask("Folder with your code, or none", "." if has_script else "none")
        workdir = None if workdir == "none" else workdir
    if dataset is None:
        dataset = ask("Folder with your data, or none", "none")
        dataset = None if dataset == "none" else dataset
    line = ask("Command for torchrun", " ".join(Job.command)) if command is None else command
    words = _words(line)
    if asks and command is None and (why := _not_found(words, workdir)):
        console.say(why)
        words = _words(ask("Command for torchrun", shlex.join(words)))
    answers = replace(answers, image=image, workdir=workdir, dataset=dataset, command=words)
    text = starter.compose(answers, str(file))
    try:
        with file.open("w" if force else "x") as out:
            out.write(text)
    except OSError as error:
        what = f"{file}: cannot be written: {error.strerror}"
        raise UsageError(what, "write it to another folder") from None
    console.say(f"wrote {file}; next: `ddpctl check {file}`")


def _words(line: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(line))
    except ValueError as error:
        what = f"--command {quoted(line)}: {str(error).lower()}"
        raise UsageError(what, "correct the quotes") from None
    if not words:
        raise UsageError("--command: empty", "pass a script, or -m and a module")
    return words


def _not_found(command: tuple[str, ...], workdir: str | None) -> str:
    """Return what is wrong with the script of the command, or ""."""
    from ..hosts import Job
    from ..start.check_command import check_command

    try:
        return check_command(Job(command=command, workdir=workdir)) or ""
    except UsageError as error:
        return str(error)


def _ask_about_hosts(answers: Answers, file: Path, console: Console, *, ask_gpus: bool) -> Answers:
    """Add the login and the GPUs. The defaults come from `ssh` and from the hosts."""
    from ..hosts import parse
    from ..hosts.init import compose
    from ..preflight.first_look import look, ssh_login

    name = str(file)
    remote = [host for host in parse(compose(answers, name), name).hosts if not host.is_local]
    if remote:
        user, key = ssh_login(remote[0])
        if answers.user is None and (answer := _prompt("SSH user", user)) != user:
            answers = replace(answers, user=answer)
        if answers.identity_file is None and (answer := _prompt("SSH key", key)) != key:
            answers = replace(answers, identity_file=answer)
    hosts = parse(compose(answers, name), name).hosts
    lines = look(hosts, console)
    if unknown := [line.host for line in lines if line.new_key]:
        question = (
            f"Accept the host keys of {names(unknown)} and add them to known_hosts? Whoever answers "
            "at these addresses now is then trusted; a key that changes later is refused"
        )
        if typer.confirm(question, err=True):
            answers = replace(answers, host_keys="accept-new")
            hosts = parse(compose(answers, name), name).hosts
            lines = look(hosts, console)
    for host, line in zip(hosts, lines, strict=True):
        if line.gpus is not None:
            console.say(f"{host.name}: {line.note}")
    gpus = answers.gpus
    if ask_gpus:
        none_has = {line.gpus for line in lines} - {None} == {0}
        gpus = _prompt("GPUs per host", "0" if none_has else "all")
    entries = tuple(
        entry._replace(gpus=0 if line.gpus == 0 and gpus != "0" else None, note=line.note)
        for entry, line in zip(answers.hosts, lines, strict=True)
    )
    return replace(answers, hosts=entries, gpus=gpus)


def _hosts(named: list[str], source: str | None, pattern: str | None) -> tuple[HostLine, ...]:
    from ..hosts import Host, load
    from ..hosts.init import HostLine, ssh_aliases

    words = re.split(r",(?![^\[]*\])", ",".join(named))
    lines = [HostLine(name) for word in words for name in names_in(word) if word]
    if source is not None:
        for host in load(source, job_files=False, convert=True).hosts:
            settings = vars(host).items()
            keys = {key: value for key, value in settings if value != getattr(Host, key, "")}
            lines.append(HostLine(keys.pop("host"), keys=keys))
    if pattern is not None:
        config = expanded(SSH_CONFIG)
        names = fnmatch.filter(ssh_aliases(config), pattern)
        if not names:
            what = f"--ssh-config {quoted(pattern)}: matches no Host of {config}"
            raise UsageError(what, "name them with -H")
        lines += [HostLine(name) for name in names]
    if not lines:
        raise UsageError("no hosts", "pass -H, --from or --ssh-config, or use a terminal")
    return tuple(lines)


def _asked_hosts() -> tuple[HostLine, ...]:
    from ..hosts.init import HostLine, ssh_aliases

    known = ssh_aliases(expanded(SSH_CONFIG))[:8]
    hint = f" (~/.ssh/config has {', '.join(known)})" if known else ""
    answer = _prompt(f"Hosts, as ssh takes them, or local{hint}", " ".join(known) or "local")
    words = re.sub(r",(?![^\[]*\])", " ", answer).split()
    return tuple(HostLine(name) for word in words for name in names_in(word))


def _asked_image(default: str, console: Console) -> str:
    """Ask for the image. Offer to build one if this folder lists the packages that it needs."""
    from ..push.image.build_image import build_image
    from ..push.image.recipe import find_source, recipe_of

    try:
        source = find_source(Path())
    except UsageError:
        return _prompt("Image", default)
    answer = _prompt(f"Image, or `build` to make one from {source.name}", default)
    try:
        return build_image(recipe_of(source, None, None), console) if answer == "build" else answer
    except DdpctlError as error:
        console.error(str(error))
        return _prompt("Image", default)


def _prompt(question: str, default: str) -> str:
    return str(typer.prompt(question, default=default, err=True))
