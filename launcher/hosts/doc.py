"""Prints docs/hosts-file.md from the schema and hosts.example.yaml.

python -m launcher.hosts.doc > docs/hosts-file.md
"""

from __future__ import annotations

from pathlib import Path

from .schema import DEFAULTS, HOST, JOB, SECTIONS, Key

_HEAD = """\
# The hosts file

<!-- Printed by `python -m launcher.hosts.doc` from launcher/hosts/schema.py; edit it there. -->

One YAML file names the machines and what they run together. `ddpctl` reads all of it before it
contacts any host, and says everything that is wrong at once, one line a problem:

    hosts.yaml:7: hosts[1].prot: found an unknown key; allowed: gpus, ...; did you mean 'port'?

Relative paths are relative to the file. `~` is the home folder on this machine. Unknown keys,
keys written twice and values that cannot be are errors (exit code 2).
"""

_TAIL = """\
## Other ways to name hosts

Wherever a hosts file is expected, a DeepSpeed or MPI hostfile serves too; each slot is a GPU:

    # comment
    gpu1 slots=8
    gpu2 slots=8

and so does a list, `gpu1:8,gpu2:8` (also as `-H gpu1:8,gpu2:8`). The job is then what the command
line says, over the defaults above.

## The whole of it

```yaml
{example}```
"""


def document(example: str) -> str:
    """The page; example is the text of hosts.example.yaml."""
    defaults = ", ".join(f"`{key.name}`" for key in DEFAULTS)
    parts = [
        _HEAD,
        f"## `defaults`\n\n{SECTIONS['defaults']} Keys: {defaults}, as under `hosts`.\n",
        f"## `hosts`\n\n{SECTIONS['hosts']}\n\n{_table(HOST)}",
        f"## `spares`\n\n{SECTIONS['spares']}\n",
        f"## `job`\n\n{SECTIONS['job']}\n\n{_table(JOB)}",
        _TAIL.format(example=example),
    ]
    return "\n".join(parts)


def _table(keys: tuple[Key, ...]) -> str:
    rows = [
        f"| `{key.name}` | {_cell(key.meaning)} | {_cell(key.allowed)} | {_cell(key.default)} |\n"
        for key in keys
    ]
    return "| key | meaning | value | default |\n|---|---|---|---|\n" + "".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    root = Path(__file__).parents[1]
    print(document((root / "hosts.example.yaml").read_text()), end="")
