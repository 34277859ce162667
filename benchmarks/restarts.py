"""Faults of runs that restart: the seconds to the first line of the next start, and where it runs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import hand
from launcher.supervisor.failure_kinds import KINDS, Restart

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

from cluster import USER, Cluster, Home, until
from faults import (
    FAULTS,
    LOOP,
    SLOW_DEEDS,
    VICTIM,
    Fault,
    Run,
    cut_host,
    kill_container,
    kill_host,
    launch,
    small_disk,
    steps,
    stop_engine,
    verdict,
    write_job,
)

CAP = 40.0  # seconds
LONGEST = 240.0  # seconds for a restart by the launcher, which waits for hosts
WAIT = Fault(0, "", (), 0, rank=None)
# After a restart, the script prints its first line before it loads torch.
PATIENT = ("--no-check", "--hang-timeout", "30s")
DISK_FULL = Fault(0, "", ("disk-full",), 0, rank=None)
CLOCK = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
    char text[32] = "";
    int file = open("/clock/offset", O_RDONLY);
    if (file >= 0) { if (read(file, text, 31) < 0) text[0] = 0; close(file); }
    return atol(text);
}
int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, id, now);
    if (!failed && id == CLOCK_REALTIME) now->tv_sec += offset();
    return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    now->tv_sec = t.tv_sec; now->tv_usec = t.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *now) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (now) *now = t.tv_sec;
    return t.tv_sec;
}
"""


@dataclass(frozen=True)
class Again:
    """A result. seconds: from each fault to the first line of the next start. wrong: "" if all is well."""

    seconds: tuple[float, ...]
    wrong: str
    told: str

    @property
    def shown(self) -> str:
        return ", ".join(f"{each:.1f} s" for each in self.seconds) or "no restart"


# --- the faults that also end a run without restarts ----------------------------------------------


def next_start(cluster: Cluster, folder: Path, fault: Fault) -> Again:
    """Inflict a fault that ends other runs on one that may restart and has a spare."""
    hosts = with_spare(cluster) if fault.act in (stop_engine, kill_host, cut_host) else {}
    with small_disk(cluster, fault):
        run = start(cluster, folder, fault, max_restarts=1, options=PATIENT, **hosts)
        if fault.before:
            fault.before(run)
        (fault.act or Run.done_by_script)(run)
        if fault.deed in SLOW_DEEDS:
            until(lambda: rank_died(cluster), 90, "the rank ends")
            run.now()
        if KINDS[fault.kinds[0]].restart is not Restart.NEVER:
            return finish(run, fault.kinds)
        code = run.wait()
        wrong = verdict(run, fault) or ("restarted" if starts_again(run) or code != 1 else "")
        return Again((), wrong, f"{fault.kinds[0]} ends the run")


def alone(cluster: Cluster, folder: Path, fault: Fault) -> str:
    """Measure the same with torchrun's own --max-restarts and two ranks on one node."""
    put = "cat > /tmp/loop.py; mkdir -p ~/.ddpctl/runs"
    cluster.exec(VICTIM, "sh", "-c", put, user=USER, stdin=LOOP.encode())
    docker = ["docker", "run", "--rm", "--network=host", "--init", "--env=OMP_NUM_THREADS=1"]
    docker += ["-v/tmp/loop.py:/tmp/loop.py", "-v/home/ddp/.ddpctl/runs:/checkpoints"]
    torchrun = ["torchrun", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    argv = [*docker, cluster.engine_has, *torchrun, "/tmp/loop.py", fault.deed, "1"]
    out = folder / "out"
    with small_disk(cluster, fault), out.open("wb") as stdout:
        login = subprocess.Popen(
            hand.ssh(cluster, VICTIM, argv), stdout=stdout, stderr=subprocess.STDOUT
        )
        run = Run(cluster, Home(folder, folder), login, out, out, ranks=2)
        try:
            run.working()
            if fault.before:
                fault.before(run)
            run.done_by_script()
            if fault.deed in SLOW_DEEDS:
                until(lambda: rank_died(cluster), 90, "the rank ends")
                run.now()
            with contextlib.suppress(AssertionError):
                until(lambda: starts_again(run) or login.poll() is not None, CAP, "it goes on")
            if lines := starts_again(run):
                return f"{lines[0] - run.fault_at:.1f} s"
            return "no restart" if login.poll() is not None else f"> {CAP:.0f} s"
        finally:
            login.kill()


def rank_died(cluster: Cluster) -> bool:
    ranks = [line for line in cluster.processes(VICTIM) if "loop.py" in line]
    return sum("torchrun" not in line and "docker" not in line for line in ranks) < 2


# --- the faults of the night ----------------------------------------------------------------------


def sick_gpu(cluster: Cluster, folder: Path) -> Again:
    fault = replace(WAIT, deed="ecc", rank=3)
    run = start(cluster, folder, fault, max_restarts=1, **with_spare(cluster))
    run.done_by_script()
    return finish(run, "gpu-failed", f"node2 replaces {VICTIM}")


def dead_spare(cluster: Cluster, folder: Path) -> Again:
    hosts = with_spare(cluster, {"host": "127.0.0.1", "port": 1})
    run = start(cluster, folder, WAIT, max_restarts=1, **hosts)
    kill_host(run)
    return finish(run, "host-lost", f"node2 replaces {VICTIM}")


def check_fails(cluster: Cluster, folder: Path) -> Again:
    """Kill the container; the host's disk is full when the restart checks the host."""
    where = "/home/ddp/.ddpctl"
    mount = f"mkdir -p {where} && mount -t tmpfs -o size=20g,mode=700 tmpfs {where} && chown ddp: {where}"
    cluster.exec(VICTIM, "sh", "-c", mount)
    hosts = with_spare(cluster)
    run = start(cluster, folder, WAIT, options=(), max_restarts=1, **hosts)
    cluster.exec(
        VICTIM, "sh", "-c", f"mount -o remount,size=1m {where} || fallocate -l 19g {where}/x"
    )
    kill_container(run)
    return finish(run, "container-killed", f"node2 replaces {VICTIM}")


def lost_twice(cluster: Cluster, folder: Path) -> Again:
    run = start(cluster, folder, replace(WAIT, deed="stay"), max_restarts=3)
    seconds = []
    for attempt in (2, 3):
        kill_host(run)
        later(5, lambda: cluster.start_host(VICTIM))
        run.ranks += 6
        run.working(LONGEST)
        seconds.append(starts_again(run)[6 * (attempt - 2)] - run.fault_at)
    return replace(finish(run, "host-lost"), seconds=tuple(seconds))


def flapping(cluster: Cluster, folder: Path) -> Again:
    """Cut a host off for 12 s, three times. After the second time, the spare takes over."""
    run = start(cluster, folder, WAIT, max_restarts=3, **with_spare(cluster))
    rules = ("INPUT ! -i lo -j DROP", "OUTPUT ! -o lo -j DROP")

    def change(how: str) -> None:
        command = "; ".join(f"iptables {how} {rule}" for rule in rules)
        cluster.exec(VICTIM, "sh", "-c", command)

    run.now()
    for _ in range(3):
        change("-I")
        time.sleep(12)  # the fault
        change("-D")
        time.sleep(12)
    again = finish(run, ("host-lost", "network-cut"), f"node2 replaces {VICTIM}")
    restarts = restarts_of(run)
    return again if len(restarts) <= 2 else replace(again, wrong=f"{len(restarts)} restarts")


def asleep(cluster: Cluster, folder: Path) -> Again:
    """Stop the launcher before each fault of a rank, and wake it up when nothing is running anymore."""
    seconds, wrong = [], ""
    for number in (1, 2, 3, 4, 6, 10, 11, 14):
        [fault] = [fault for fault in FAULTS if fault.number == number]
        cluster.reset()
        run = start(cluster, folder / str(number), fault, max_restarts=1)
        run.process.send_signal(signal.SIGSTOP)
        try:
            if fault.before:
                fault.before(run)
            until(lambda: not any(map(cluster.ranks, cluster.nodes)), LONGEST, "the run ends")
        finally:
            run.process.send_signal(signal.SIGCONT)
        code = run.wait()
        run.done_by_script()
        if lines := starts_again(run):
            bad = (
                "" if code == 0 and restarts_of(run)[0]["cause"] in fault.kinds else f"exit {code}"
            )
            seconds.append(lines[0] - run.fault_at)
        else:
            bad = verdict(run, fault)
        print(f"asleep, {number}: {seconds[-1:] if lines else 'no restart'} {bad}", flush=True)
        wrong = wrong or (bad and f"{number}: {bad}")
    return Again((max(seconds),), wrong, "1, 2, 11: no restart; 3, 4, 6, 10, 14: in place")


def full_disk(cluster: Cluster, folder: Path) -> Again:
    """Fill the disk with the run's folders on one node, then kill a rank there: no restart."""
    with small_disk(cluster, replace(WAIT, deed="disk")):
        run = start(cluster, folder, WAIT, max_restarts=1)
        where = "/home/ddp/.ddpctl/runs"
        cluster.exec(VICTIM, "sh", "-c", f"cat /dev/zero > {where}/full 2>/dev/null; true")
        kill_rank(run)
        run.wait()
        return Again((), verdict(run, DISK_FULL), "disk-full ends the run")


def clock_jump(cluster: Cluster, folder: Path) -> Again:
    """Let the time jump an hour ahead for all processes in the containers of one host."""
    source = folder / "clock.c"
    source.write_text(CLOCK)
    library = folder / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    for node in cluster.nodes:
        put = "mkdir -p /tmp/clock; echo 0 > /tmp/clock/offset; cat > /tmp/clock/clock.so"
        cluster.exec(node, "sh", "-c", put, stdin=library.read_bytes())
    run = start(
        cluster,
        folder,
        WAIT,
        options=("--no-check", "--hang-timeout", "60s"),
        max_restarts=1,
        mounts=["/tmp/clock:/clock"],
        env={"LD_PRELOAD": "/clock/clock.so"},
    )
    cluster.exec(VICTIM, "sh", "-c", "echo 3600 > /tmp/clock/offset")
    until_it_works_on(run)
    kill_rank(run)
    return finish(run, "killed")  # the first line is from a node with the right time


def dns_gone(cluster: Cluster, folder: Path) -> Again:
    """Silence every host's name server, then kill a rank."""
    run = start(cluster, folder, WAIT, max_restarts=1)
    keep = "cp /etc/resolv.conf /tmp/resolv.conf; echo nameserver 192.0.2.1 > /etc/resolv.conf"
    for node in cluster.nodes:
        cluster.exec(node, "sh", "-c", keep)
        for each in cluster.containers(node, all=False):
            cluster.engine(node, "exec", "-u0", each["Id"], "sh", "-c", keep)
    try:
        until_it_works_on(run)
        kill_rank(run)
        return finish(run, "killed")
    finally:
        for node in cluster.nodes:
            cluster.exec(node, "sh", "-c", "cat /tmp/resolv.conf > /etc/resolv.conf")


def gpu_missing(cluster: Cluster, folder: Path) -> Again:
    """Restart a host's engine with one GPU fewer, which ends the host's container."""
    for node in cluster.nodes:
        cluster.give_gpus(node, 2)
    run = start(cluster, folder, WAIT, max_restarts=1, gpus=2, **with_spare(cluster))
    run.now()
    cluster.give_gpus(VICTIM, 1)
    kinds = ("terminated", "container-killed", "host-lost")
    return finish(run, kinds, f"node2 replaces {VICTIM}: lost 1 of this run's 2 GPUs")


def fewer_nodes(cluster: Cluster, folder: Path) -> Again:
    run = start(cluster, folder, WAIT, max_restarts=1, min_nodes=2)
    kill_host(run)
    return finish(run, "host-lost", "WORLD_SIZE 6 -> 4")


def recorder_stopped(cluster: Cluster, folder: Path) -> Again:
    """Detach, stop the recorder for two minutes and kill a rank: each line must be kept once."""
    home = cluster.home_at(folder / "state")
    file = write_job(cluster, folder, "talk", None, max_restarts=1)
    out, err = folder / "out", folder / "err"
    with err.open("wb") as stderr:
        launcher = home.start("launch", file, "--no-check", "--detach", stderr=stderr)
    run = Run(cluster, home, launcher, out, err)
    assert run.wait() == 0, err.read_text()
    logs = lambda: home.ddpctl("logs").stdout  # noqa: E731
    until(lambda: logs().count("WORKING") == 6, 120, "ranks work", 2)
    [recorder] = recorders(home)
    os.kill(recorder, signal.SIGSTOP)
    try:
        kill_rank(run)
        time.sleep(120)  # the fault
        ended = not any(map(cluster.ranks, cluster.nodes))
    finally:
        os.kill(recorder, signal.SIGCONT)
    until(lambda: not recorders(home), 60, "the recorder has ended")
    out.write_text(logs())
    again = finish(run, "killed")
    if not ended or run.record["attempts"][-1]["state"] != "SUCCEEDED":
        return replace(again, wrong=f"not ended: {run.record['attempts'][-1]['state']}")
    for rank in range(6):
        starts = re.sub(r" (?=1 )", "\n", " ".join(map(str, steps(run, rank)))).splitlines()
        whole = [" ".join(map(str, range(1, len(each.split()) + 1))) for each in starts]
        if starts != whole or len(starts) != 2:
            return replace(again, wrong=f"lines of rank {rank} are lost or doubled")
    return again


NIGHT: dict[int, tuple[str, Callable[[Cluster, Path], Again]]] = {
    17: ("sick GPU: an ECC error on rank 3, a spare stands by", sick_gpu),
    18: ("host killed; the first spare is dead, too", dead_spare),
    19: ("container killed; its host fails the check of the restart", check_fails),
    20: ("host lost twice, back after 5 s, no spare", lost_twice),
    21: ("flapping host: off the network for 12 s, three times", flapping),
    22: ("launching machine asleep before each of 1-4, 6, 10, 11, 14", asleep),
    23: ("disk of the checkpoints full on one node, then SIGKILL of a rank", full_disk),
    24: ("clock of one node jumps an hour, then SIGKILL of a rank", clock_jump),
    25: ("no DNS anymore, then SIGKILL of a rank", dns_gone),
    26: ("engine back after a restart with one GPU fewer, a spare stands by", gpu_missing),
    27: ("host killed, no spare, `min_nodes: 2` of three", fewer_nodes),
    28: ("recorder stopped for two minutes, and a rank killed", recorder_stopped),
}


# --- parts ----------------------------------------------------------------------------------------


def start(cluster: Cluster, folder: Path, fault: Fault, **how: Any) -> Run:
    return launch(cluster, cluster.home_at(folder / "state"), folder, fault, **how)


def recorders(home: Home) -> list[int]:
    """Return the pids of the recorders of this launching machine."""
    argv = ["pgrep", "-f", f"start.recorder.*{home.state}"]
    found = subprocess.run(argv, capture_output=True, text=True).stdout
    return [int(pid) for pid in found.split()]


def with_spare(cluster: Cluster, *before: object) -> dict[str, Any]:
    return {"hosts": cluster.nodes[:2], "spares": [*before, *cluster.nodes[2:]]}


def later(seconds: float, act: Callable[[], object]) -> None:
    threading.Timer(seconds, act).start()


def kill_rank(run: Run) -> None:
    run.now()
    run.cluster.exec(VICTIM, "pkill", "-KILL", "-o", "-f", "^[^ ]*python[^ ]* -u loop.py")


def until_it_works_on(run: Run) -> None:
    time.sleep(3)  # lets the fault take effect
    assert run.process.poll() is None, run.err.read_text()


def starts_again(run: Run) -> list[float]:
    return sorted(float(line.split()[-1]) for line in run.lines() if "AGAIN" in line)


def restarts_of(run: Run) -> list[dict[str, Any]]:
    return [each for attempt in run.record["attempts"] for each in attempt["restarts"]]


def finish(run: Run, kinds: str | tuple[str, ...], says: str = "") -> Again:
    """Wait for the run to end. It is wrong unless it restarted for such a kind and printed `says`."""
    code, restarts = run.wait(LONGEST), restarts_of(run)
    causes = [each["cause"] for each in restarts]
    left = [
        node for node in run.cluster.nodes if is_up(run.cluster, node) and run.cluster.ranks(node)
    ]
    wrong = ""
    if code or not causes or not {*causes} <= {*([kinds] if isinstance(kinds, str) else kinds)}:
        wrong = f"exit {code}, {causes}, {json.dumps(run.failure)[:300]}"
    elif says not in run.err.read_text() + run.out.read_text(errors="replace"):
        wrong = f"not told: {says}"
    elif left:
        wrong = f"left on {', '.join(left)}"
    lines, where = starts_again(run), "in place"
    if restarts and restarts[-1]["kind"] != "in-place":
        where = says or "by the launcher"
    seconds = (lines[0] - run.fault_at,) if lines else ()
    return Again(seconds, wrong, f"{', '.join(dict.fromkeys(causes))}; {where}")


def is_up(cluster: Cluster, node: str) -> bool:
    with contextlib.suppress(AssertionError):
        return bool(cluster.exec(node, "true") == "")
    return False
