from __future__ import annotations

import json
import tracemalloc
import zlib

import pytest

from launcher.budget import Budget, TooManyValues, TooMuch, parse_json, unpack
from launcher.errors import CommandTimeout


def test_what_unpacks_to_gigabytes_is_refused_before_it_has_the_memory() -> None:
    packer = zlib.compressobj(9)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    tracemalloc.start()
    with pytest.raises(ValueError, match="unpacks to more than 1,000,000 bytes"):
        unpack(bomb, 1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000
    assert unpack(zlib.compress(b"x" * 1000), 1000) == b"x" * 1000
    with pytest.raises(ValueError, match="incorrect header"):
        unpack(b"no zlib", 1000)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"9" * 5000, b""])
def test_json_of_a_host_is_a_value_or_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_json_with_too_many_values_is_refused_before_it_is_parsed() -> None:
    text = json.dumps([{}] * 100).encode()
    assert len(parse_json(text, 250)) == 100
    with pytest.raises(TooManyValues, match="more than 150 values"):
        parse_json(text, 150)


class Source:
    """Sends single bytes, and sets the clock ahead by a second before each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.now, self.left = 0.0, count
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def read(self, *, timeout: float | None) -> bytes:
        self.now, self.left = self.now + 1, self.left - 1
        return b"x" if self.left >= 0 else b""


def test_an_answer_that_never_pauses_ends_by_its_size_and_by_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source(monkeypatch, 100)
    with pytest.raises(TooMuch, match="gpu1: `cat` printed more than 1e-05 MB"):
        Budget("`cat`", "gpu1", 10, 60.0).read(source)
    source = Source(monkeypatch, 100)
    with pytest.raises(CommandTimeout, match="gpu1: `cat` did not end within 1m"):
        Budget("`cat`", "gpu1", 1000, 60.0).read(source)
    assert source.now == 60
    source = Source(monkeypatch, 100)
    assert Budget("`cat`", "gpu1", 1000, 60.0, slowest=1).read(source) == b"x" * 100


def test_a_source_that_stops_after_much_data_is_given_up_within_the_given_time() -> None:
    class Stuck:
        data = b"x" * 1000
        waited: float | None = None

        def read(self, *, timeout: float | None) -> bytes:
            if data := self.data:
                self.data = b""
                return data
            self.waited = timeout
            raise TimeoutError

    source = Stuck()
    with pytest.raises(CommandTimeout, match="gpu1: `cat` did not end within 1m"):
        Budget("`cat`", "gpu1", 2000, 60.0, slowest=1).read(source)
    assert source.waited == 60.0
