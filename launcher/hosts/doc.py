"""Prints docs/hosts-file.md from the schema and hosts.example.yaml.

python -m launcher.hosts.doc > docs/hosts-file.md
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .schema import DEFAULTS, HOST, JOB, SECTIONS, Key

_PAGE = """\
# The hosts file

<!-- Printed by `python -m launcher.hosts.doc` from launcher/hosts/schema.py; edit it there. -->

A YAML file lists your machines and the job that they run. `ddpctl` checks the whole file before it
contacts any host, and reports every problem at once, one per line:

    hosts.yaml:7: hosts[1].prot: found an unknown key; allowed: gpus, ...; did you mean 'port'?

Relative paths are relative to the file; `~` is your home folder on this machine. Unknown keys,
duplicate keys and impossible values are errors (exit code 2).

## `defaults`

{SECTIONS[defaults]} Keys: {defaults}, as under `hosts`.

## `hosts`

{SECTIONS[hosts]}

{host_keys}
## `spares`

{SECTIONS[spares]}

## `job`

{SECTIONS[job]}

{job_keys}
## Other ways to list hosts

Every command that takes a hosts file also takes a DeepSpeed or MPI hostfile, where each slot is a
GPU:

    # comment
    gpu1 slots=8
    gpu2 slots=8

and a list, `gpu1:8,gpu2:8` (or `-H gpu1:8,gpu2:8`). The job is then the defaults above and the
flags of the command line.

`--include` and `--exclude` on `launch`, `check`, `push` and `sanity` select from what is listed, in
DeepSpeed's spelling: `--include gpu1@gpu2:0,2` is all of gpu1, and GPUs 0 and 2 of gpu2.

## Completion and errors in your editor

A JSON schema of this file comes with ddpctl, for editors that use yaml-language-server: VS Code with
the YAML extension, Neovim, Helix and others. A file that `ddpctl init` wrote names it in its first
line. In other files, copy that line; in a file that several people edit, name a copy of
[schema/hosts.json](schema/hosts.json):

    # yaml-language-server: $schema=hosts.schema.json

## A complete example

```yaml
{example}```
"""


def document(example: str) -> str:
    """The page; example is the text of hosts.example.yaml."""
    return _PAGE.format(
        SECTIONS=SECTIONS,
        defaults=", ".join(f"`{name}`" for name in DEFAULTS),
        host_keys=_table(HOST),
        job_keys=_table(JOB),
        example=example,
    )


def _table(keys: Mapping[str, Key]) -> str:
    rows = [
        f"| `{name}` | {_cell(key.meaning)} | {_cell(key.allowed)} | {_cell(key.default)} |\n"
        for name, key in keys.items()
    ]
    return "| key | meaning | value | default |\n|---|---|---|---|\n" + "".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    root = Path(__file__).parents[2]
    print(document((root / "hosts.example.yaml").read_text()), end="")
