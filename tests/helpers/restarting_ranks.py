"""Ranks that act as told in each round: `restarting_ranks.py RANK:ROUND:DEED... [--resume]`. No torch.

In a round without deeds, all ranks exit with 0; in other rounds, they wait after their deeds to be ended.
"""

import os
import signal
import sys
import time
from pathlib import Path

LINES = 50


def main() -> None:
    me, now = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    deeds = [word.split(":") for word in sys.argv[1:] if ":" in word]
    mine = [deed for rank, round, deed in deeds if (int(rank), int(round)) == (me, now)]
    told = [word for word in sys.argv[1:] if ":" not in word]
    resume = os.environ.get("DDPCTL_RESUME", "0")
    print(f"round {now} resume {resume} {' '.join(told)}".rstrip(), flush=True)
    for number in range(LINES):
        print(f"{now} {number}", flush=True)
    if "later" in mine or "told" in mine:  # before anything can end this rank
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if any(int(round) == now for _, round, _ in deeds):
        wait_for_all(me, now)
    for deed in mine:
        do(deed, now)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if any(int(round) == now for _, round, _ in deeds):
        time.sleep(120)


def wait_for_all(me: int, now: int) -> None:
    """Wait for all ranks: before one fails, each has printed its lines and was seen by its supervisor."""
    node = Path(os.environ["DDPCTL_CHECKPOINT_DIR"]).parent
    while f'"{me}": {os.getpid()}'.encode() not in (node / "journal").read_bytes():
        time.sleep(0.02)
    here = node.parent / f"round-{now}"
    here.mkdir(exist_ok=True)
    (here / str(me)).touch()
    while len(list(here.iterdir())) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.02)


def do(deed: str, now: int) -> None:
    if deed == "save":
        Path(os.environ["DDPCTL_CHECKPOINT_DIR"], f"step-{now}").write_text("weights")
    if deed == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if deed == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if deed == "raise":
        raise ValueError("boom")
    if deed == "lose":
        raise RuntimeError("Connection closed by peer [127.0.0.1]:1234")
    if deed == "memory":
        raise MemoryError("cannot allocate memory")
    if deed == "later":  # even if the run is being stopped
        time.sleep(0.5)
    while deed == "told" and signal.SIGTERM not in signal.sigpending():  # to stop
        time.sleep(0.02)


if __name__ == "__main__":
    main()
