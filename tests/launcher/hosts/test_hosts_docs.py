"""The example file, the schema and the documentation say the same."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml
from hosts_page import document

from launcher.hosts import Host, Job, parse
from launcher.hosts.schema import DEFAULTS, HOST, JOB, SCHEMA, SECTIONS

ROOT = Path(__file__).parents[3]
EXAMPLE = (ROOT / "hosts.example.yaml").read_text()
CLUSTERS = (ROOT / "docs" / "your-cluster.md").read_text()
PAGE = (ROOT / "docs" / "hosts-file.md").read_text()


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", CLUSTERS, re.DOTALL))
def test_the_hosts_file_of_each_kind_of_cluster_is_one(text: str) -> None:
    made = parse(text, "docs/your-cluster.md")
    assert made.nnodes > 1 and made.job.command


def test_the_schema_has_the_keys_of_the_types() -> None:
    assert set(HOST) == {field.name for field in dataclasses.fields(Host)}
    assert set(JOB) == {field.name for field in dataclasses.fields(Job)}


def test_the_example_shows_every_key_and_no_other() -> None:
    shown = yaml.safe_load(EXAMPLE)
    assert set(shown) == set(SECTIONS)
    assert set(shown["defaults"]) == set(DEFAULTS)
    of_processes = re.findall(r"^  # (\w+): .* # with engine: process", EXAMPLE, re.MULTILINE)
    assert {*shown["job"], *of_processes} == set(JOB)
    hosts = [host for host in shown["hosts"] if isinstance(host, dict)]
    assert set().union(*hosts) | set(shown["defaults"]) == set(HOST)


def test_the_example_is_a_hosts_file() -> None:
    made = parse(EXAMPLE, "hosts.example.yaml")
    assert (made.nnodes, len(made.spares)) == (6, 1)


def test_the_page_says_what_the_schema_says() -> None:
    assert document(PAGE, EXAMPLE) == PAGE, "run: python scripts/hosts_page.py"
    assert all(section["description"] in PAGE for section in SCHEMA["properties"].values())
    assert f"Keys: {', '.join(f'`{name}`' for name in DEFAULTS)}, as under `hosts`." in PAGE


def test_the_page_has_a_row_for_every_key_and_no_other() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted([*HOST, *JOB])


def test_the_default_in_words_is_the_default_in_fact() -> None:
    job = {name: key["x-default"] for name, key in JOB.items()}
    facts = parse("hosts: [a]", "x").job
    assert parse(f"hosts: [a]\njob: {{image: '{job['image']}'}}", "x").job == facts
    for name in ("engine", "master_port", "shm_size", "user", "max_restarts", "stop_timeout"):
        assert parse(f"hosts: [a]\njob: {{{name}: {job[name]}}}", "x").job == facts
