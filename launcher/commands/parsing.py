"""Command-line parsing: commands in groups, a missing `--`, and hints for likely mistakes."""

import shlex
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from ..errors import UsageError
from ..text import nearest, quoted, seconds_in

# The base class of the errors that typer's parser raises. typer does not export it.
ParserError: Any = typer.BadParameter.__mro__[1]

GROUPS = {  # each command is a function in commands/, in the file of the same name
    "Set up": "init image check push",
    "Run": "launch resume kill",
    "Look": "ps logs attach fetch",
    "Investigate": "sanity stacks exec report",
    "Clean up": "clean",
}
COMMANDS = " ".join(GROUPS.values()).split()
OTHER_TOOLS = {  # what users of other tools type
    "launch": "run start up train submit srun sbatch torchrun apply exp",
    "kill": "stop cancel down scancel abort terminate rm delete",
    "ps": "status list ls top jobs queue squeue runs nodes gpus",
    "attach": "follow watch sattach join",
    "logs": "log tail show output",
    "fetch": "download pull get cp copy results",
    "push": "sync upload deploy send",
    "image": "build containerize",
    "check": "doctor verify validate preflight test ping",
    "resume": "restart continue rerun requeue retry",
    "exec": "ssh shell bash enter",
    "stacks": "stack dump py-spy trace debug hang",
    "sanity": "bench benchmark nccl nccl-test nccl-tests netcheck",
    "init": "setup new create configure config generate",
    "clean": "cleanup prune purge remove uninstall gc",
}
# Other spellings of flags. Each applies to commands that have only the flag on the right.
SPELLINGS = {
    "-f": "--hosts",
    "--host": "--hosts",
    "--hostfile": "--hosts",
    "--inventory": "--hosts",
    "--nodes": "--per-node",
    "--all": "--all-nodes",
    "--time": "--time-limit",
    "--job-name": "--name",
    "-o": "--to",
    "--out": "--to",
    "--output": "--out",
}
STARTERS = ("python", "python3", "torchrun")
HINTS = {  # for flags that ddpctl does not have
    "--gpus": "set `gpus:` in the hosts file, or pass --nproc-per-node",
    "--nnodes": "every host in the hosts file is a node; pass --nodes N for any N free hosts",
    "-n": "pass --nodes N for any N free hosts, or --nproc-per-node N for N processes on each",
    "--node-rank": "remove it: the order of the hosts is the order of the nodes",
    "--master-addr": "remove it: the first host is node 0, the master",
    "--password": "install your key with `ssh-copy-id HOST`: ddpctl uses no passwords",
}


class Command(TyperCommand):
    """A command with readable help. Also accepts flags as some other tools spell them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ours = list(self._as_we_spell(args[:end]))
        if not self.takes_command:
            return super().parse_args(ctx, [*ours, *args[end:]])
        if not ctx.resilient_parsing:  # not during Tab completion
            self._refuse_script(ctx, ours, args[end + 1 :], has_separator=end < len(args))
        rest = super().parse_args(ctx, ours)
        ctx.params["command"] = args[end + 1 :]
        return rest

    @property
    def takes_command(self) -> bool:
        """Whether this command takes everything after `--` as its parameter `command`."""
        return any(param.name == "command" for param in self._arguments)

    @property
    def _arguments(self) -> list[Any]:
        return [param for param in self.params if isinstance(param, TyperArgument)]

    @property
    def _flags(self) -> list[Any]:
        return [param for param in self.params if not isinstance(param, TyperArgument)]

    def _as_we_spell(self, args: list[str]) -> Iterator[str]:
        flags = {name for flag in self._flags for name in flag.opts}
        for word, following in zip(args, [*args[1:], ""], strict=False):
            name, equals, value = word.partition("=")
            other = SPELLINGS.get(name)
            is_limit = bool(equals or seconds_in(following) or following.isdecimal())
            if name == "--wait" and "--wait-limit" in flags and is_limit:
                yield f"--wait-limit{equals}{value}"
            else:
                use_other = name not in flags and other in flags
                yield f"{other}{equals}{value}" if use_other else word

    def _refuse_script(
        self, ctx: Any, args: list[str], command: list[str], *, has_separator: bool
    ) -> None:
        """Raise UsageError with the correct line if `args` has a script, which belongs after `--`.

        The first word that is neither a flag nor the value of one is HOSTS or RUN, unless it ends in
        .py, it is one of STARTERS, or -H gives the hosts. Later words belong to the script, except for
        our own flags.
        """
        only_flags = TyperCommand(None, params=self._flags)
        ctx.ignore_unknown_options = True
        given, script, _ = only_flags.make_parser(ctx).parse_args(list(args))
        ctx.ignore_unknown_options = False
        has_hosts = self._arguments[0].name == "hosts" and "host_list" in given
        is_command = has_hosts or (script and (script[0] in STARTERS or script[0].endswith(".py")))
        if script and not (is_command or script[0].startswith("-")):
            script = script[1:]
        if not script or (script[0].startswith("-") and script[0] not in ("-m", "--no-python")):
            return  # the parser reports unknown flags
        ours = args[::-1]
        for word in script[::-1]:
            if word in ours:  # the parser takes `-x` out of `-xd`, which remains in `ours`
                ours.remove(word)
        ours.reverse()
        if {"--env", "-e"} & {*ours} and "=" in script[0]:
            raise UsageError(f"{quoted(script[0])}: not a flag", "repeat --env for each variable")
        if has_separator and not script[0].endswith(".py") and not script[0].startswith("-"):
            what = f"{quoted(script[0])}: one argument too many"
            raise UsageError(what, f"pass several hosts as in `{ctx.command_path} -H gpu1,gpu2`")
        line = shlex.join([*ours, "--", *script, *command])
        raise UsageError(f"put `--` before the command: {ctx.command_path} {line}")

    # --- help ----------------------------------------------------------------------------------

    def get_short_help_str(self, limit: int = 200) -> str:  # typer's default of 45 is too short
        return str(super().get_short_help_str(limit))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        command = [param.metavar for param in self._arguments if param.name == "command"]
        others = [param.metavar for param in self._arguments if param.name != "command"]
        return [*others, "[FLAGS]", *command]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows = self.help_rows(ctx)
        count = len(self._arguments)
        for title, section in (("Arguments", rows[:count]), ("Flags", rows[count:])):
            if section:
                with formatter.section(title):
                    formatter.write_dl(section)

    def help_rows(self, ctx: Any) -> list[tuple[str, str]]:
        """Return (spelling, meaning) for each parameter, arguments first."""
        arguments = [(param.metavar, param.help) for param in self._arguments]
        flags = [p for p in self.get_params(ctx) if not isinstance(p, TyperArgument)]
        return [*arguments, *filter(None, (flag.get_help_record(ctx) for flag in flags))]


class CommandGroup(TyperGroup):
    """The commands, listed in groups. Also accepts the words `help` and `version`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args[:1] == ["help"]:
            args = [*args[1:2], "--help"]
        elif args == ["version"]:
            args = ["--version"]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name.replace("_", "-") not in self.commands and not ctx.resilient_parsing:
            raise UsageError(f"no command {quoted(name)}", self._meant(name))
        return super().resolve_command(ctx, args)

    def _meant(self, name: str) -> str:
        if name.endswith(".py"):
            return "put a script after `ddpctl launch --`"
        if name.endswith((".yaml", ".yml")):
            return "put a hosts file after a command, as in `ddpctl check hosts.yaml`"
        synonyms = {word: own for own, words in OTHER_TOOLS.items() for word in words.split()}
        meant = synonyms.get(name.lower()) or nearest(name, self.commands)
        meant = meant or synonyms.get(nearest(name, synonyms) or "")
        return (
            f"did you mean `ddpctl {meant}`?" if meant else "run `ddpctl help` to list the commands"
        )

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        longest = max(map(len, self.commands))
        for title, listed in GROUPS.items():
            with formatter.section(title):
                commands = ((name, self.commands[name]) for name in listed.split())
                formatter.write_dl((f"{n:{longest}}", c.get_short_help_str()) for n, c in commands)


def usage_error(error: Any) -> UsageError:
    """Convert an error of typer's parser. The remedy suggests what the user probably meant."""
    command: Any = error.ctx.command if error.ctx else None
    remedy = f"see `{error.ctx.command_path} -h`" if command else "see `ddpctl help`"
    flag = getattr(error, "option_name", "") if hasattr(error, "possibilities") else ""
    if not flag:
        message = error.format_message().rstrip(".")
        return UsageError(message[0].lower() + message[1:], remedy)
    meant = nearest(flag, [name for p in command.params for name in p.opts if name[:2] == "--"])
    if hint := HINTS.get(flag.replace("_", "-")):
        remedy = hint
    elif meant:
        remedy = f"did you mean {meant}?"
    elif getattr(command, "takes_command", False):
        remedy = "put the script's flags after `--`"
    return UsageError(f"no flag {quoted(flag)}", remedy)
