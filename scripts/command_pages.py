"""Write docs/commands/: one page per command, from the command's own definition.

Run: python scripts/command_pages.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "commands"
sys.path.insert(0, str(ROOT))

import typer.main  # noqa: E402

from launcher.cli import application  # noqa: E402
from launcher.commands.parsing import COMMANDS, GROUPS  # noqa: E402

MADE = "<!-- made by scripts/command_pages.py from the command's definition -->\n"
ALL = """`ddpctl COMMAND -h` explains a command, and `ddpctl --version` prints the version.
`ddpctl --install-completion bash` (or zsh, fish) installs Tab completion, and
`--show-completion` only prints the script.

Results go to stdout, messages and progress to stderr. Colors and the live panel appear only on a
terminal. `NO_COLOR=1` turns off ddpctl's own colors, and where `CI` is set, there is no live panel."""


def pages() -> dict[str, str]:
    """Return every page as file name -> text."""
    group = typer.main.get_command(application())
    commands: dict[str, Any] = vars(group)["commands"]
    made = {f"{name}.md": page(name, commands[name]) for name in COMMANDS}
    return {"README.md": index(commands), **made}


def index(commands: dict[str, Any]) -> str:
    rows = [
        f"| {group} | [`ddpctl {name}`]({name}.md) | {cell(commands[name].get_short_help_str())} |"
        for group, names in GROUPS.items()
        for name in names.split()
    ]
    return "\n".join(
        [MADE, "# Commands", "", "| to | command | does |", "|---|---|---|", *rows, "", ALL, ""]
    )


def page(name: str, command: Any) -> str:
    context = command.context_class(command, info_name=f"ddpctl {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    prose, _, examples = command.help.partition("\b\n")
    parts = [MADE, f"# ddpctl {name}", "", f"    ddpctl {name} {usage}", "", prose.strip(), ""]
    parts += ["## Examples", "", "```", examples, "```", ""]
    parts += ["## Arguments and flags", "", "| | |", "|---|---|"]
    parts += [
        f"| `{cell(name)}` | {cell(meaning)} |" for name, meaning in command.help_rows(context)
    ]
    return "\n".join([*parts, ""])


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, text in pages().items():
        (FOLDER / file).write_text(text)
