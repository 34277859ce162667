"""docs/schema/ against what the commands really print: no key is missing in either."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from quick_torchrun import python_with_quick_torchrun

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "schema"
COMMANDS = {  # schema: what prints such a document, after a run that failed; its exit code
    "check": ("check hosts.yaml --json", 0),
    "push": ("push hosts.yaml --json", 0),
    "plan": ("launch hosts.yaml --dry-run --json", 0),
    "ps": ("ps hosts.yaml --all --json", 0),
    "fetch": ("fetch --json", 0),
    "strays": ("kill hosts.yaml --strays --json", 0),
    "clean": ("clean hosts.yaml --json", 0),
    "kill": ("kill hosts.yaml --json -y", 0),
    "sanity": ("sanity two.yaml --json --max-size 1k --pairwise", 0),
}
NAMES = ("run", *COMMANDS, "stacks")
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
KNOWN = {"type", "const", "enum", "required", "properties", "items", "additionalProperties"}
SAID = {"$schema", "title", "description"}


def violations(value: Any, schema: dict[str, Any], at: str = "$") -> list[str]:
    """Where a value is not as the schema says; a key that the schema does not name counts."""
    assert set(schema) <= KNOWN | SAID, f"{at}: this test does not know all of {sorted(schema)}"
    if "const" in schema:
        return [] if value == schema["const"] else [f"{at}: {value!r}"]
    wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    fits = (
        isinstance(value, TYPES[t]) and (t == "boolean") == isinstance(value, bool) for t in wanted
    )
    if not any(fits):
        return [f"{at}: {value!r} is no {wanted}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{at}: {value!r} is none of {schema['enum']}"]
    if isinstance(value, list):
        items = schema.get("items")
        found = [violations(v, items, f"{at}[{i}]") for i, v in enumerate(value)] if items else []
        return [line for lines in found for line in lines]
    if not isinstance(value, dict):
        return []
    known = schema.get("properties", {})
    lines = [f"{at}.{key}: missing" for key in schema.get("required", ()) if key not in value]
    for key, item in value.items():
        inner = known.get(key) or schema.get("additionalProperties")
        if inner:
            lines += violations(item, inner, f"{at}.{key}")
        elif at.endswith("].container"):
            continue  # the plan's containers may say more than is promised
        else:
            lines.append(f"{at}.{key}: not in the schema")
    return lines


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One document for each schema, from real commands after a real run that failed."""
    folder = tmp_path_factory.mktemp("documents")
    quick = python_with_quick_torchrun(folder)
    (folder / "home").mkdir()
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text("raise ValueError('boom')\n")
    job = {"engine": "process", "nproc_per_node": 1, "master_port": "auto", "workdir": "code"}
    hosts = {"hosts": [{"host": "local", "gpus": 0}], "job": {**job, "command": ["train.py"]}}
    (folder / "hosts.yaml").write_text(json.dumps(hosts))
    two = {"hosts": [*hosts["hosts"], *hosts["hosts"]], "job": job}
    (folder / "two.yaml").write_text(json.dumps(two))
    state = folder / "state"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DDPCTL_", "PET_"))}
    env |= {"HOME": str(folder / "home"), "XDG_STATE_HOME": str(state), "PYTHONPATH": str(ROOT)}

    def run(line: str, code: int) -> str:
        python = sys.executable if line.startswith("sanity") else quick  # its ranks need torchrun
        argv = [python, "-m", "launcher", *line.split()]
        done = subprocess.run(
            argv, env=env, cwd=folder, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    run("launch hosts.yaml --no-check", 1)
    (record,) = state.glob("ddpctl/runs/*/run.json")
    made = {"run": json.loads(record.read_text())}
    made |= {n: json.loads(run(line, code)) for n, (line, code) in COMMANDS.items()}
    return {**made, **living(folder, run)}


def living(folder: Path, run: Callable[[str, int], str]) -> dict[str, Any]:
    """What is told of a run that is alive, and of none that has ended."""
    threads = "import threading, time\nthreading.Thread(target=time.sleep, args=[300]).start()\n"
    (folder / "code" / "train.py").write_text(threads + "time.sleep(300)\n")
    run("launch hosts.yaml --no-check --detach", 0)
    end = time.monotonic() + 120
    try:
        while True:
            told = json.loads(run("stacks --json --all-threads", 0))
            if told["groups"] and told["nodes"][0]["ranks"][0]["threads"]:
                return {"stacks": told}
            assert time.monotonic() < end, told
    finally:
        run("kill -y", 0)


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_json_document_matches_its_schema(documents: dict[str, Any], name: str) -> None:
    assert violations(documents[name], schema(name)) == []


def test_each_json_document_has_its_content(documents: dict[str, Any]) -> None:
    assert documents["run"]["attempts"][0]["first_failure"]["kind"]
    assert documents["ps"]["runs"][0]["nodes"] and documents["kill"]["runs"][0]["hosts"]
    assert documents["stacks"]["nodes"][0]["ranks"][0]["frames"][-1]["text"] == "time.sleep(300)"
    assert documents["sanity"]["sizes"] and documents["sanity"]["pairs"]
    assert documents["clean"]["hosts"][0]["parts"] and documents["plan"]["nodes"]


def test_every_schema_is_tested() -> None:
    hosts_file = {"hosts"}  # tested by tests/launcher/hosts/test_json_schema.py
    assert {path.stem for path in FOLDER.glob("*.json")} == set(NAMES) | hosts_file


def test_documents_that_break_their_schema_are_detected() -> None:
    ps = schema("ps")
    good = {"version": 1, "runs": [], "gpus": [], "unseen": [{"host": "a", "error": "b"}]}
    assert violations(good, ps) == []
    for bad in (
        {**good, "version": 2},
        {**good, "more": 1},
        {"version": 1, "runs": []},
        {**good, "unseen": [{"host": 1, "error": "b"}]},
        {**good, "runs": {}},
    ):
        assert violations(bad, ps)
