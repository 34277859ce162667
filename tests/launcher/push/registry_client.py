"""What an engine sends to the registry on loopback that a push opens."""

from __future__ import annotations

import hashlib
import http.client
import json


def port(repository: str) -> int:
    return int(repository.partition("/")[0].partition(":")[2])


def ask(repository: str, method: str, path: str, body: bytes = b"") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port(repository), timeout=5)
    connection.request(method, path, body)
    answer = connection.getresponse()
    if method != "HEAD":
        answer.read()
    return answer


def upload(repository: str, data: bytes) -> int:
    """The status of the last step of an upload as the engine does it."""
    name = repository.partition("/")[2]
    begun = ask(repository, "POST", f"/v2/{name}/blobs/uploads/")
    if begun.status != 202:
        return begun.status
    digest = digest_of(data)
    return ask(repository, "PUT", f"{begun.headers['Location']}?digest={digest}", data).status


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def push_manifest(repository: str, config: bytes, *layers: bytes) -> None:
    rows = [{"digest": digest_of(layer), "size": len(layer)} for layer in layers]
    text = json.dumps({"config": {"digest": digest_of(config)}, "layers": rows}).encode()
    path = f"/v2/{repository.partition('/')[2]}/manifests/push"
    assert ask(repository, "PUT", path, text).status == 201
