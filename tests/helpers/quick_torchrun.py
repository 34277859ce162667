"""A torchrun that starts in milliseconds. The real one imports torch, which takes two seconds per node.

It starts, redirects, stops and reports the ranks of one node as torchrun does, but waits for no other
node. For tests of the launcher, whose ranks are plain scripts; other tests run the real one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path


def python_with_quick_torchrun(folder: Path) -> str:
    """Return this Python in a new environment, in which `torchrun` is this file."""
    programs = folder / "quick" / "bin"
    programs.mkdir(parents=True)
    python = programs / "python"
    python.symlink_to(Path(sys.executable).resolve())
    settings = Path(sys.prefix) / "pyvenv.cfg"
    if settings.exists():
        shutil.copy(settings, programs.parent)
        (programs.parent / "lib").symlink_to(Path(sys.prefix) / "lib")
    text = f'#!/bin/sh\nexec {python} -I -S {Path(__file__).resolve()} "$@"\n'
    (programs / "torchrun").write_text(text)
    (programs / "torchrun").chmod(0o755)
    return str(python)


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("nnodes", "node-rank", "nproc-per-node", "master-port", "max-restarts"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--master-addr", required=True)
    parser.add_argument("--no-python", action="store_true")
    split = sys.argv.index("--")
    args = parser.parse_args(sys.argv[1:split])
    ranks: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}

    told = []

    def stop(*_: object) -> None:
        told.append(True)
        for pid, (_, process) in ranks.items():
            if process.poll() is None:
                os.write(2, f"Sending process {pid} closing signal SIGTERM\n".encode())
                process.terminate()

    signal.signal(signal.SIGTERM, stop)
    for local_rank in range(args.nproc_per_node):
        process = start(args, local_rank, sys.argv[split + 1 :])
        ranks[process.pid] = (local_rank, process)
    if told:  # while a rank was being started
        stop()
    return wait_for(ranks, args.node_rank * args.nproc_per_node, stop)


def start(args: argparse.Namespace, local_rank: int, command: list[str]) -> subprocess.Popen[bytes]:
    logs = Path(os.environ["PET_LOG_DIR"], "quick", "attempt_0", str(local_rank))
    logs.mkdir(parents=True)
    env = {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "RANK": str(args.node_rank * args.nproc_per_node + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(args.nnodes * args.nproc_per_node),
        "LOCAL_WORLD_SIZE": str(args.nproc_per_node),
        "GROUP_RANK": str(args.node_rank),
        "GROUP_WORLD_SIZE": str(args.nnodes),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "MASTER_ADDR": args.master_addr,
        "MASTER_PORT": str(args.master_port),
        "TORCHELASTIC_ERROR_FILE": str(logs / "error.json"),
    }
    program = [] if args.no_python else [sys.executable, "-u"]
    out, err = ((logs / f"{name}.log").open("wb") for name in ("stdout", "stderr"))
    return subprocess.Popen([*program, *command], env=env, stdout=out, stderr=err)


def wait_for(ranks: dict[int, tuple[int, subprocess.Popen[bytes]]], first_rank: int, stop) -> int:  # type: ignore[no-untyped-def]
    """Stop all ranks when one fails. Report failures in the format of torchrun's summary."""
    failures: list[str] = []
    ended: set[int] = set()
    while len(ended) < len(ranks):
        time.sleep(0.1)  # as torchrun does: its supervisor may look at a rank before it is reaped
        for pid, (local_rank, process) in ranks.items():
            if pid in ended or process.poll() is None:
                continue
            ended.add(pid)
            if process.returncode:
                place = f"  rank      : {first_rank + local_rank} (local_rank: {local_rank})"
                failures.append(f"{place}\n  exitcode  : {process.returncode} (pid: {pid})")
                stop()
    for failure in reversed(failures):  # the first comes last
        print(failure, file=sys.stderr)
    return bool(failures)


if __name__ == "__main__":
    raise SystemExit(main())
