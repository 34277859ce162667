"""The ranks of the tests: `ranks.py DEED [RANK] [...]`. They start at once, because they use no torch.

The given rank acts once its supervisor has found it; the others wait, as in a collective.
"""

import json
import os
import select
import signal
import subprocess
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
    print("working", flush=True)
    if rest and int(rest[0]) == ME:
        until_found()
        misbehave(deed)
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if deed == "chatter":
            print("still here", flush=True)
        time.sleep(0.2)


def until_found() -> None:
    """Wait until the supervisor has written the ranks' process ids to its journal."""
    journal = Path(os.environ["PET_LOG_DIR"]).parents[1] / "journal"
    while f'"{ME}": {os.getpid()}' not in journal.read_text(errors="replace"):
        time.sleep(0.02)


def misbehave(deed: str) -> None:
    if deed == "record":
        raise_recorded()
    if deed == "zero":
        sys.exit(0)
    if deed == "slow-disk":
        fail_on_a_slow_disk()
    if deed == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if deed == "straggle":
        select.select([], [], [], 120)


def raise_recorded() -> None:
    """Raise an error and record it as torch's @record does, but without torch."""
    where = os.environ["TORCHELASTIC_ERROR_FILE"]
    info = {"py_callstack": "Traceback (most recent call last):\nKeyError: 'lost'\n"}
    info["timestamp"] = str(int(time.time()))
    message = {"message": "KeyError: 'lost'", "extraInfo": info}
    Path(where).write_text(json.dumps({"message": message}))
    sys.exit(1)


def fail_on_a_slow_disk() -> None:
    """Fail. Whoever reads the recorded error waits four seconds for it."""
    where = os.environ["TORCHELASTIC_ERROR_FILE"]
    os.mkfifo(where)
    subprocess.Popen(
        ["sh", "-c", 'sleep 4; : > "$1"; rm "$1"', "sh", where], start_new_session=True
    )
    sys.exit(1)


def write_lines(count: int, width: int) -> None:
    out = sys.stdout.buffer
    for number in range(count):
        out.write(b"%d %d " % (ME, number) + b"x" * width + b"\n")
    out.write(b"\xff\xfe is no text\n")
    out.write(b"torn ")
    out.flush()
    time.sleep(0.3)  # the supervisor looks several times in between
    out.write(b"and joined\r\n")
    out.write(b"y" * 1_000_000 + b"\n")
    out.write(b"no newline")
    out.flush()


main()
