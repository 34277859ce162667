"""A real, headless Chromium, driven over its DevTools pipe."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --remote-debugging-pipe"


class Page:
    """A browser tab. `complaints` collects its console messages and failed loads."""

    def __init__(self, read: int, write: int) -> None:
        self._in, self._write = os.fdopen(read, "rb"), write
        self._number = 0
        self._session: str | None = None
        self._rest = b""
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Log", "Network", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path: Path, width: int, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, expression: str) -> Any:
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return done["result"].get("value")

    def hover(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self) -> bytes:
        done = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(done["data"])

    def pdf(self) -> bytes:
        done = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        return base64.b64decode(done["data"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = self._in.raw.read(1 << 20)  # type: ignore[attr-defined]
            assert data, "the browser has ended"
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if message.get("method") in ("Log.entryAdded", "Network.loadingFailed"):
            self.complaints.append(json.dumps(message["params"]))
        return message


def executable() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("no chromium: run scripts/test-setup")
        pytest.skip("NO BROWSER: the report was not seen; run scripts/test-setup")
    return found


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """Context manager: a tab of Chromium, which reads commands from descriptor 3 and answers on 4."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    argv = [executable(), *FLAGS.split(), f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "sh", *argv],
        env={**os.environ, "HOME": str(profile)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(to_read, from_write),
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Page(from_read, to_write)
    finally:
        process.kill()
        process.wait()
        os.close(to_write)
