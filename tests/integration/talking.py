"""Ranks that print a lot, and what became of their lines. Used by the tests and by benchmarks/logs.py."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

# How many lines, in how many bursts, and the seconds between two. All ranks begin together, once
# all are there. A line is one write, because by hand the ranks of a node share a pipe. With a fourth
# argument, the lines come in that many parts, each of which waits for a file: `part-0`, `part-1`, ...
SCRIPT = """
import os, socket, sys, time
count, bursts, pause = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
parts, begun = int((sys.argv[4:] or [0])[0]), 0
rank, size, port = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 29600
if rank == 0:
    with socket.create_server(("", port)) as server:
        others = [server.accept()[0] for _ in range(size - 1)]
    for other in others:
        other.send(b"go")
else:
    while True:
        try:
            there = socket.create_connection((os.environ["MASTER_ADDR"], port))
            break
        except OSError:
            time.sleep(0.02)
    assert there.recv(2) == b"go"
said = 0
for burst in range(bursts):
    while begun < parts and burst >= bursts * begun // parts:
        if os.path.exists(os.path.join(os.environ["DDPCTL_OUTPUT_DIR"], "part-%d" % begun)):
            begun += 1
        time.sleep(0.02)
    while said < count * (burst + 1) // bursts:
        os.write(1, b"@%d/%d %s\\n" % (rank, said, b"x" * 40))
        said += 1
    time.sleep(pause)
"""
LINE = re.compile(rb"(?:\[node\d+:(\d+)\] )?@(\d+)/(\d+) x{40}")


@dataclass(frozen=True)
class Heard:
    """How many of all ranks' lines are missing, repeated, torn or out of order."""

    lost: int
    doubled: int
    torn: int
    disordered: int


def heard(text: bytes, ranks: int, count: int) -> Heard:
    """Check the lines in `text`, as a launch or `docker logs` shows them. count: lines per rank."""
    seen = [bytearray(count) for _ in range(ranks)]
    last = [-1] * ranks
    doubled = torn = disordered = 0
    for line in text.split(b"\n"):
        if b"@" not in line and b"xxxx" not in line:
            continue  # torchrun's own; in a traceback of C++, it has `__cxx11`
        match = LINE.fullmatch(line)
        if not match or (match[1] and match[1] != match[2]):
            torn += 1
            continue
        rank, number = int(match[2]), int(match[3])
        doubled += seen[rank][number]
        disordered += number < last[rank]
        seen[rank][number], last[rank] = 1, number
    return Heard(ranks * count - sum(map(sum, seen)), doubled, torn, disordered)


def peak(pid: int) -> int:
    """Return the peak memory of a process in KiB, or 0 if it has ended.

    The kernel's own value at the end also counts what the parent had at the fork.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) if found else 0


class Progress:
    """How many of the ranks' lines a growing file has, and when the first and last arrived."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self.lines = 0
        self.began = self.moved = 0.0  # time.monotonic()

    def look(self) -> int:
        while data := self._file.read(1 << 20):
            found = data.count(b"@")
            self.lines += found
            if found:
                self.moved = time.monotonic()
                self.began = self.began or self.moved
        return self.lines

    def close(self) -> None:
        self._file.close()
