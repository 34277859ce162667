"""Prints launcher/hosts/hosts.schema.json, the JSON schema with which editors check a hosts file.

python -m launcher.hosts.json_schema > launcher/hosts/hosts.schema.json
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from .schema import DEFAULTS, HOST, JOB, SECTIONS, Key

FILE = Path(__file__).with_name("hosts.schema.json")


def json_schema() -> dict[str, object]:
    """The schema, in the draft that yaml-language-server reads best."""
    hosts: dict[str, object] = {"type": "array", "items": {"$ref": "#/definitions/host"}}
    host = {**_mapping(HOST), "required": ["host"]}
    sections = {
        # A section whose every line is commented out is null.
        "defaults": {**_mapping(DEFAULTS), "type": ["object", "null"]},
        "hosts": {**hosts, "minItems": 1},
        "spares": {**hosts, "type": ["array", "null"]},
        "job": {**_mapping(JOB), "type": ["object", "null"]},
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "ddpctl hosts file",
        "type": "object",
        "required": ["hosts"],
        "additionalProperties": False,
        "properties": {
            name: {"description": meaning, **sections[name]} for name, meaning in SECTIONS.items()
        },
        "definitions": {"host": {"anyOf": [{"type": "string"}, host]}},
    }


def _mapping(keys: Mapping[str, Key]) -> dict[str, object]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: _property(key) for name, key in keys.items()},
    }


def _property(key: Key) -> dict[str, object]:
    words = f"{key.meaning} Value: {key.allowed}. Default: {key.default}."
    return {"description": words, **key.shape}


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
