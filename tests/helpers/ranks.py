"""What the tests' ranks do: `ranks.py DEED [RANK] [...]`. No torch, so that they start at once.

The rank that is named does the deed half a second after all have said `working`; the others go on,
as ranks do that wait for it.
"""

import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path

ME = int(os.environ["RANK"])


def main() -> None:
    deed, *rest = sys.argv[1:]
    if deed == "lines":
        write_lines(int(rest[0]), int(rest[1]))
        return
    if deed == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if deed == "gentle":
        signal.signal(signal.SIGTERM, lambda *_: (print("saved"), sys.exit(0)))
    if deed == "slow-start":
        time.sleep(3)
    print("working", flush=True)
    if deed == "slow-start":
        return
    if rest and int(rest[0]) == ME and deed != "finish":
        time.sleep(0.5)
        misbehave(deed)
    if deed == "finish":
        finish(rest)
        return
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if deed == "chatter":
            print("still here", flush=True)
        time.sleep(0.2)


def finish(rest: list[str]) -> None:
    """The rank that is named works on for five seconds and can be seen to do so."""
    if int(rest[0]) != ME:
        return
    with Path(os.devnull).open("wb", buffering=0) as disk:
        for _ in range(50):
            disk.write(b"x" * 200_000)
            time.sleep(0.1)


def misbehave(deed: str) -> None:
    print("now", flush=True)
    if deed == "raise":
        raise ValueError("boom")
    if deed == "record":
        raise_recorded()
    if deed == "exit":
        sys.exit(7)
    if deed == "zero":
        sys.exit(0)
    if deed == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if deed == "elsewhere":
        select.select([], [], [], 120)
    if deed == "segv":
        ctypes.string_at(0)


def raise_recorded() -> None:
    """As torch's @record does it, without torch."""
    import json

    where = os.environ["TORCHELASTIC_ERROR_FILE"]
    info = {"py_callstack": "Traceback (most recent call last):\nKeyError: 'lost'\n"}
    info["timestamp"] = str(int(time.time()))
    message = {"message": "KeyError: 'lost'", "extraInfo": info}
    Path(where).write_text(json.dumps({"message": message}))
    sys.exit(1)


def write_lines(count: int, width: int) -> None:
    out = sys.stdout.buffer
    for number in range(count):
        out.write(b"%d %d " % (ME, number) + b"x" * width + b"\n")
    out.write(b"\xff\xfe is no text\n")
    out.write(b"torn ")
    out.flush()
    time.sleep(0.3)
    out.write(b"and mended\r\n")
    out.write(b"y" * 1_000_000 + b"\n")
    out.write(b"no newline")
    out.flush()


main()
