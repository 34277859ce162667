"""The JSON schema with which editors check a hosts file, and every hosts file that we show."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from launcher.errors import HostsFileError
from launcher.hosts import Host, parse
from launcher.hosts.init import compose
from launcher.hosts.schema import FILE, SCHEMA

ROOT = Path(__file__).parents[3]
EDITOR = jsonschema.Draft7Validator(SCHEMA)
FILES = ["hosts.example.yaml", "examples/*/hosts.yaml", "compose/head/hosts.yaml"]
PAGES = ["README.md", "CONTRIBUTING.md", "docs/**/*.md", "examples/*/README.md"]
BLOCK = re.compile(r"^```(?:ya?ml|console)\n(?:\$ cat \S+\n)?(.*?)^```", re.DOTALL | re.MULTILINE)


def shown() -> dict[str, str]:
    """Every hosts file in the repository and in the code blocks of its pages."""
    files = {path: path.read_text() for pattern in FILES for path in ROOT.glob(pattern)}
    found = {str(path.relative_to(ROOT)): text for path, text in files.items()}
    for page in (path for pattern in PAGES for path in ROOT.glob(pattern)):
        for match in BLOCK.finditer(text := page.read_text()):
            if re.search("^hosts:", match[1], re.MULTILINE):
                line = text.count("\n", 0, match.start()) + 1
                found[f"{page.relative_to(ROOT)}:{line}"] = match[1]
    return found


SHOWN = shown()


def test_the_schema_is_one_that_editors_read_and_is_published() -> None:
    EDITOR.check_schema(SCHEMA)
    assert (ROOT / "docs" / "schema" / "hosts.json").read_text() == FILE.read_text()


@pytest.mark.parametrize("document", ["run", "plan"])
def test_a_run_and_a_plan_have_each_engine_that_a_hosts_file_can_name(document: str) -> None:
    schema = json.loads((ROOT / "docs" / "schema" / f"{document}.json").read_text())
    engines = SCHEMA["properties"]["job"]["properties"]["engine"]["enum"]
    assert sorted(schema["properties"]["engine"]["enum"]) == sorted(engines)


def test_the_pages_show_hosts_files() -> None:
    pages = {name.partition(":")[0] for name in SHOWN}
    assert {"hosts.example.yaml", "README.md", "docs/hosts-file.md", "docs/tour.md"} < pages
    assert {path.parent.name for path in map(Path, pages) if path.parts[0] == "examples"} == {
        path.name for path in (ROOT / "examples").iterdir() if path.is_dir()
    }


@pytest.mark.parametrize("name", SHOWN)
def test_a_hosts_file_that_we_show_loads_and_has_no_error_in_an_editor(name: str) -> None:
    parse(SHOWN[name], name)
    EDITOR.validate(yaml.safe_load(SHOWN[name]))


@pytest.mark.parametrize(
    "text",
    [
        "job: {}",
        "hosts: []",
        "hosts: [a]\nspare: [b]",
        "hosts: [{port: 22}]",
        "hosts: [{host: a, prot: 22}]",
        "hosts: [{host: a, port: 0}]",
        "hosts: [{host: a, gpus: some}]",
        "hosts: [{host: a, gpus: []}]",
        "hosts: [{host: a, gpus: [0, 0]}]",
        "hosts: [a]\ndefaults: {host: b}",
        "hosts: [a]\njob: {engine: podman}",
        "hosts: [a]\njob: {master_port: any}",
        "hosts: [a]\njob: {command: train.py}",
        "hosts: [a]\njob: {command: []}",
        "hosts: [a]\njob: {env: [A=1]}",
        "hosts: [a]\njob: {stop_timeout: 1m}",
        "hosts: [{host: a, interface: 'ib0,ib1'}]",
        "hosts: [a]\njob: {image: Foo/Bar}",
        "hosts: [a]\njob: {mounts: [/a]}",
        "hosts: [a]\njob: {mounts: ['/a/../b:/c']}",
        "hosts: [a]\njob: {devices: [fuse]}",
        "hosts: [a]\njob: {ulimits: {nofiles: 1}}",
        "hosts: [a]\njob: {tmpfs: {scratch: 1g}}",
        "hosts: [a]\njob: {user: bob}",
        "hosts: [a]\njob: {metrics_dir: relative}",
    ],
)
def test_the_editor_and_ddpctl_refuse_the_same_mistakes(text: str) -> None:
    assert not EDITOR.is_valid(yaml.safe_load(text))
    with pytest.raises(HostsFileError):
        parse(text, "hosts.yaml")


def test_init_tells_the_editor_where_the_schema_is() -> None:
    first = compose([Host("a")], {}, "hosts.yaml").splitlines()[0]
    assert first == f"# yaml-language-server: $schema=file://{FILE}"
