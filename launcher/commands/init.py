from __future__ import annotations

import fnmatch
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..errors import DdpctlError, UsageError
from ..own_folders import expanded
from ..terminal import ask
from ..terminal.console import Console
from ..text import names, names_in, quoted
from . import complete, options
from .options import flag, option

if TYPE_CHECKING:
    from ..hosts import Host

SSH_CONFIG = "~/.ssh/config"


def init(
    file: Path = typer.Argument(
        Path("hosts.yaml"),
        help="The file to write (default: hosts.yaml).",
        metavar="[FILE]",
        show_default=False,
    ),
    named: list[str] | None = options.hosts_option(
        "Add hosts: names that `ssh` accepts, or `local`, separated by commas; repeatable.",
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
    gpus: str | None = option(
        "--gpus", "GPUS", "GPUs per host: all, a count, ids such as 0,1, or 0 for CPU."
    ),
    image: str | None = option("--image", "IMAGE", "Set job.image."),
    workdir: str | None = option("--workdir", "DIR", "Set job.workdir."),
    dataset: str | None = option("--dataset", "DIR", "Set job.dataset."),
    command: str | None = option("--command", "LINE", "Set job.command, split as a shell would."),
    force: bool = flag("--force", "Overwrite an existing file."),
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> None:
    """Write a commented hosts file.

    On a terminal, without --hosts, --from or --ssh-config, it asks for the hosts and the job, and
    looks up the hosts' GPUs. A host that does not answer is still written to the file, with a comment.

    \b
    ddpctl init
    ddpctl init -H gpu1.lab,gpu2.lab --image mine:1 --command 'train.py --epochs 90'
    ddpctl init lab.yaml --ssh-config 'gpu*'
    ddpctl init --from inventory.ini
    """
    from ..hosts.init import compose

    if os.path.lexists(file) and not force:
        raise UsageError(f"{file}: already exists", "pass --force or another name")
    console = options.console(quiet, verbose)
    flags = {"user": user, "identity_file": key, "gpus": gpus, "image": image}
    flags |= {"workdir": workdir, "dataset": dataset}
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    if command is not None:
        given["command"] = _words(command)
    notes: dict[str, str] = {}
    if named or source or ssh_config or not ask.can_ask():
        hosts = _hosts(named or [], source, ssh_config)
        if command is not None and given["command"][0].endswith(".py"):
            given.setdefault("workdir", ".")  # the hosts need a copy of the script
    else:
        hosts, notes = _ask_about_hosts(_asked_hosts(), given, str(file), console)
        _ask_about_job(given, console)
    text = compose(hosts, given, str(file), notes)
    try:
        with file.open("w" if force else "x", encoding="utf-8") as out:
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
    """Return the problem with the command's script, or "" if there is none."""
    from ..hosts import Job
    from ..start.check_command import check_command

    try:
        return check_command(Job(command=command, workdir=workdir)) or ""
    except UsageError as error:
        return str(error)


def _named(text: str) -> list[Host]:
    """Return the hosts of a list such as `gpu[1-2,5],login`."""
    from ..hosts import Host

    words = re.split(r",(?![^\[]*\])", text)
    return [Host(name) for word in words for name in names_in(word) if word]


def _hosts(named: list[str], source: str | None, pattern: str | None) -> list[Host]:
    from ..hosts import Host, load
    from ..hosts.init import ssh_aliases

    hosts = _named(",".join(named))
    if source is not None:
        hosts += load(source, job_files=False, convert=True).hosts
    if pattern is not None:
        config = expanded(SSH_CONFIG)
        names = fnmatch.filter(ssh_aliases(config), pattern)
        if not names:
            what = f"--ssh-config {quoted(pattern)}: no Host in {config} matches"
            raise UsageError(what, "name the hosts with -H")
        hosts += [Host(name) for name in names]
    if not hosts:
        raise UsageError(
            "no hosts given", "pass -H, --from or --ssh-config, or run `ddpctl init` in a terminal"
        )
    return hosts


def _asked_hosts() -> list[Host]:
    from ..hosts.init import ssh_aliases

    known = ssh_aliases(expanded(SSH_CONFIG))[:8]
    hint = f"; ~/.ssh/config has {', '.join(known)}" if known else ""
    answer = _prompt(f"Hosts (names for ssh, or `local`{hint})", " ".join(known) or "local")
    return _named(",".join(answer.split()))


def _ask_about_hosts(
    hosts: list[Host], given: dict[str, Any], name: str, console: Console
) -> tuple[list[Host], dict[str, str]]:
    """Ask for the login and the GPUs, and add them to `given`. Return the hosts, and notes by host.

    The default answers come from `ssh` and from the hosts.
    """
    from ..hosts import parse
    from ..hosts.init import compose
    from ..preflight.first_look import look, ssh_login

    def read() -> tuple[Host, ...]:
        return parse(compose(hosts, given, name), name).hosts

    if remote := [host for host in read() if not host.is_local]:
        user, identity_file = ssh_login(remote[0])
        asked = (("user", "SSH user", user), ("identity_file", "SSH key", identity_file))
        for key, question, default in asked:
            if key not in given and (answer := _ask(key, question, default, console)) != default:
                given[key] = answer
    looks = look(read(), console)
    if unknown := [one.host for one in looks if one.new_key]:
        question = (
            f"Accept the host keys of {names(unknown)} and add them to known_hosts? ddpctl then trusts "
            "whoever answers at these addresses now, and refuses a key that changes later"
        )
        if typer.confirm(question, err=True):
            given["host_keys"] = "accept-new"
            looks = look(read(), console)
    for one in looks:
        if one.gpus is not None:
            console.say(f"{one.host}: {one.note}")
    if "gpus" not in given:
        none_has = {one.gpus for one in looks} - {None} == {0}
        given["gpus"] = _ask("gpus", "GPUs per host", "0" if none_has else "all", console)
    looked_at = [*zip(hosts, looks, strict=True)]
    notes = {host.host: one.note for host, one in looked_at}
    if given["gpus"] != "0":
        hosts = [replace(host, gpus=0) if one.gpus == 0 else host for host, one in looked_at]
    return hosts, notes


def _ask_about_job(given: dict[str, Any], console: Console) -> None:
    """Ask for the image, workdir, dataset or command that `given` lacks. Add the answers to `given`."""
    from ..hosts import Job

    if "image" not in given:
        given["image"] = _asked_image(Job.image, console)
    scripts = [path.name for path in Path().glob("*.py")]
    has_script = bool(scripts)
    if "command" in given:
        has_script = given["command"][0].endswith(".py")
    code = "." if has_script else "none"
    for key, what, default in (("workdir", "code", code), ("dataset", "data", "none")):
        question = f"Folder with your {what}, or none"
        if key not in given and (answer := _ask(key, question, default, console)) != "none":
            given[key] = answer
    if "command" not in given:
        default = "train.py" if "train.py" in scripts else " ".join(Job.command)
        words = _ask("command", "Command for torchrun", default, console)
        if why := _not_found(words, given.get("workdir")):
            console.say(why)
            words = _ask("command", "Command for torchrun", shlex.join(words), console)
        given["command"] = words


def _asked_image(default: str, console: Console) -> str:
    """Ask for the image and return it. Offer to build one if a file here lists packages to install."""
    from ..push.image.build_image import build_image
    from ..push.image.recipe import find_source, recipe_of

    try:
        source = find_source(Path())
    except UsageError:
        return str(_ask("image", "Image", default, console))
    question = f"Image, or `build` to make one from {source.name}"
    answer = str(_ask("image", question, default, console))
    try:
        return build_image(recipe_of(source, None, None), console) if answer == "build" else answer
    except DdpctlError as error:
        console.error(str(error))
        return str(_ask("image", "Image", default, console))


def _ask(key: str, question: str, default: str, console: Console) -> Any:
    """Ask for the value of a key in the hosts file until the answer is valid, and return it."""
    from ..hosts import Host
    from ..hosts.init import compose

    while True:
        answer = _prompt(question, default)
        try:
            value = _words(answer) if key == "command" else answer
            if answer not in (default, "none"):
                compose([Host("local")], {key: value}, "hosts.yaml")
            return value
        except UsageError as error:
            console.error(str(error))


def _prompt(question: str, default: str) -> str:
    return str(typer.prompt(question, default=default, err=True))
