"""Measure how fast a push is, compared with one by hand: `python -m benchmarks.push` as root.

Hosts are network namespaces behind one bridge, each with its own sshd and home folder. Every link,
including the sender's, carries RATE Mbit/s each way (tc tbf, no added latency). Baselines and
ddpctl run one after the other in the same setup. All times are wall-clock seconds and include process start
and SSH; ratios are relative to bytes / link rate. `--write` writes the results into RESULTS.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.needs import need_root_and
from benchmarks.results import write_section

PREFIX = f"dp{os.getpid() % 10000}"
SSH_PORT = "2222"
DDPCTL = [sys.executable, "-m", "launcher"]
SOURCE = Path(__file__).parents[1]


def sh(*argv: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in argv],
        check=True,
        text=True,
        capture_output=True,
        **options,  # type: ignore[call-overload]
    )


@dataclass
class Net:
    """The network: the sender is number 0, and the hosts are 1 to count."""

    folder: Path
    count: int
    rate: int  # Mbit/s
    servers: list[subprocess.Popen[bytes]]

    def name(self, number: int) -> str:
        return f"{PREFIX}n{number}"

    def address(self, number: int) -> str:
        return f"10.213.77.{number + 1}"

    def home(self, number: int) -> Path:
        return self.folder / f"home{number}"

    def inside(self, number: int, *argv: str | Path) -> list[str]:
        return ["ip", "netns", "exec", self.name(number), *[str(word) for word in argv]]

    def limit(self, number: int, rate: int) -> None:
        """Set the rate of one link in both directions."""
        shape = ["root", "tbf", "rate", f"{rate}mbit", "burst", "128kb", "latency", "50ms"]
        sh(*self.inside(number, "tc", "qdisc", "replace", "dev", "eth0", *shape))
        sh(
            "ip",
            "netns",
            "exec",
            f"{PREFIX}sw",
            "tc",
            "qdisc",
            "replace",
            "dev",
            f"p{number}",
            *shape,
        )

    def cut(self, number: int) -> None:
        """Cut a host off silently: no connection is closed."""
        sh("ip", "netns", "exec", f"{PREFIX}sw", "ip", "link", "set", f"p{number}", "down")

    def restore(self, number: int) -> None:
        sh("ip", "netns", "exec", f"{PREFIX}sw", "ip", "link", "set", f"p{number}", "up")

    def clean(self) -> None:
        for number in range(1, self.count + 1):
            shutil.rmtree(self.home(number), ignore_errors=True)
            self.home(number).mkdir()

    def ssh(self, number: int) -> list[str]:
        options = [
            "-F",
            "none",
            "-p",
            SSH_PORT,
            "-i",
            self.folder / "key",
            "-c",
            "aes128-gcm@openssh.com",
        ]
        options += ["-o", f"UserKnownHostsFile={self.folder}/known_hosts", "-o", "LogLevel=ERROR"]
        return [str(word) for word in ["ssh", *options, f"root@{self.address(number)}"]]


@contextmanager
def network(count: int, rate: int) -> Iterator[Net]:
    folder = Path(tempfile.mkdtemp(prefix="ddpctl-bench."))
    net = Net(folder, count, rate, [])
    sh("mount", "-t", "tmpfs", "-o", "size=16g", "tmpfs", folder)  # so that no disk limits the rate
    try:
        _wire(net)
        _servers(net)
        yield net
    finally:
        for server in net.servers:
            server.kill()
            server.wait()
        for name in [net.name(number) for number in range(count + 1)] + [f"{PREFIX}sw"]:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        sh("umount", "-l", folder)
        folder.rmdir()


def _wire(net: Net) -> None:
    switch = f"{PREFIX}sw"
    sh("ip", "netns", "add", switch)
    sh("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
    sh("ip", "-n", switch, "link", "set", "br0", "up")
    for number in range(net.count + 1):
        name = net.name(number)
        sh("ip", "netns", "add", name)
        sh("ip", "-n", name, "link", "set", "lo", "up")
        sh(
            "ip",
            "-n",
            name,
            "link",
            "add",
            "eth0",
            "type",
            "veth",
            "peer",
            "name",
            f"p{number}",
            "netns",
            switch,
        )
        sh("ip", "-n", name, "addr", "add", f"{net.address(number)}/24", "dev", "eth0")
        sh("ip", "-n", name, "link", "set", "eth0", "up")
        sh("ip", "-n", switch, "link", "set", f"p{number}", "master", "br0", "up")
        net.limit(number, net.rate)


def _servers(net: Net) -> None:
    sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", net.folder / "key")
    sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", net.folder / "host")
    Path("/run/sshd").mkdir(exist_ok=True)
    host_key = (net.folder / "host.pub").read_text().split()[:2]
    known = [f"[{net.address(n)}]:{SSH_PORT} {' '.join(host_key)}" for n in range(1, net.count + 1)]
    (net.folder / "known_hosts").write_text("\n".join(known) + "\n")
    for number in range(net.count + 1):
        (net.home(number) / ".ssh").mkdir(parents=True)
    shutil.copy(net.folder / "known_hosts", net.home(0) / ".ssh" / "known_hosts")
    sshd = shutil.which("sshd") or "/usr/sbin/sshd"
    for number in range(1, net.count + 1):
        config = net.folder / f"sshd{number}"
        config.write_text(
            f"Port {SSH_PORT}\nListenAddress {net.address(number)}\nHostKey {net.folder}/host\n"
            f"AuthorizedKeysFile {net.folder}/key.pub\nStrictModes no\nUsePAM no\nPidFile none\n"
            f"MaxStartups 100\nSetEnv HOME={net.home(number)}\n"
        )
        argv = net.inside(number, sshd, "-D", "-e", "-f", config)
        net.servers.append(subprocess.Popen(argv, stderr=subprocess.DEVNULL))
    for number in range(1, net.count + 1):
        until(lambda n=number: subprocess.run(net.inside(0, *net.ssh(n), "true")).returncode == 0)


def until(true, seconds: float = 20.0) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "the hosts do not answer"
        time.sleep(0.1)


# measurements


@dataclass
class Measured:
    seconds: float
    document: dict[str, object]
    memory: int  # peak memory of the launcher in bytes
    code: int

    def slowest(self, without: Sequence[int] = ()) -> float:
        rows = self.document["hosts"]
        assert isinstance(rows, list)
        return max(row["seconds"] for n, row in enumerate(rows, 1) if n not in without)


def push(net: Net, data: Path, *, during=None) -> Measured:  # type: ignore[no-untyped-def]
    """Run `ddpctl push --dataset --json` to all hosts, and `during` at the same time."""
    hosts = "\n".join(f"  - host: {net.address(n)}" for n in range(1, net.count + 1))
    file = net.folder / "hosts.yaml"
    file.write_text(
        f"defaults: {{user: root, port: {SSH_PORT}, identity_file: {net.folder}/key}}\n"
        f"hosts:\n{hosts}\njob: {{dataset: {data}}}\n"
    )
    environment = {**os.environ, "HOME": str(net.home(0)), "PYTHONPATH": str(SOURCE)}
    environment["XDG_CACHE_HOME"] = str(net.folder / "cache")
    argv = net.inside(0, "/usr/bin/env", *DDPCTL, "push", file, "--dataset", "--json")
    beside = threading.Thread(target=during) if during else None
    if beside:
        beside.start()
    began = time.monotonic()
    read, write = os.pipe()
    wrapped = [sys.executable, "-c", WAIT, str(write), *argv]
    done = subprocess.run(
        wrapped, env=environment, capture_output=True, text=True, pass_fds=[write]
    )
    seconds = time.monotonic() - began
    os.close(write)
    memory = int(os.read(read, 100)) * 1024
    os.close(read)
    if beside:
        beside.join()
    if not done.stdout:
        raise SystemExit(done.stderr)
    sys.stderr.write("".join(f"    {line}\n" for line in done.stderr.splitlines()[-4:]))
    return Measured(seconds, json.loads(done.stdout), memory, done.returncode)


# a separate process, so that its peak memory is that of one push
WAIT = """
import os, resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
os.write(int(sys.argv[1]), str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss).encode())
sys.exit(code)
"""


def check(net: Net, data: Path, numbers: Sequence[int]) -> None:
    """Compare the received data with the sent data, byte for byte."""
    for number in numbers:
        (tree,) = (net.home(number) / ".ddpctl" / "datasets").glob("[!.]*")
        sh("diff", "-r", data, tree)


def timed(commands: Sequence[str], *, at_once: bool) -> float:
    began = time.monotonic()
    running = []
    for command in commands:
        running.append(subprocess.Popen(["bash", "-c", f"set -o pipefail; {command}"]))
        if not at_once:
            assert running[-1].wait() == 0
    assert not any(process.wait() for process in running)
    return time.monotonic() - began


def pipes(net: Net, file: Path, numbers: Sequence[int]) -> list[str]:
    """Send what `docker save | ssh HOST docker load` would send, without the engines."""
    words = []
    for number in numbers:
        ssh = " ".join(net.inside(0, *net.ssh(number)))
        words.append(f"{ssh} 'cat > $HOME/image' < {file}")
    return words


def rsyncs(net: Net, folder: Path, numbers: Sequence[int]) -> list[str]:
    words = []
    for number in numbers:
        ssh = " ".join(net.ssh(number)[:-1])
        target = f"root@{net.address(number)}:{net.home(number)}/rsync"
        inside = " ".join(net.inside(0))
        words.append(f"{inside} rsync -aW -e '{ssh}' {folder}/ {target}/")
    return words


@dataclass
class Row:
    what: str
    seconds: float | None
    value: float  # compared with the bar
    bar: float | None  # maximum, or minimum if `least`
    unit: str = "x limit"
    least: bool = False

    def text(self) -> str:
        seconds = "" if self.seconds is None else f"{self.seconds:.2f}"
        bar, verdict = "", ""
        if self.bar is not None:
            good = self.value >= self.bar if self.least else self.value <= self.bar
            bar = f"{'>=' if self.least else '<='} {self.bar:g}"
            verdict = "met" if good else "MISSED"
        return f"| {self.what} | {seconds} | {self.value:.2f} {self.unit} | {bar} | {verdict} |"


def big_file(net: Net, megabytes: int) -> Path:
    data = net.folder / f"data{megabytes}"
    data.mkdir()
    with (data / "big").open("wb") as file:
        for _ in range(megabytes):
            file.write(os.urandom(10**6))
    return data


def fan_out(net: Net, megabytes: int, baseline: int) -> list[Row]:
    everyone = range(1, net.count + 1)
    link = net.rate / 8  # MB/s
    rows = []
    small = big_file(net, baseline)
    for label, commands, at_once in (
        ("save, ssh, load: host by host", pipes(net, small / "big", everyone), False),
        ("save, ssh, load: in parallel", pipes(net, small / "big", everyone), True),
        ("rsync -aW in parallel", rsyncs(net, small, everyone), True),
    ):
        seconds = timed(commands, at_once=at_once)
        rows.append(Row(f"{label} ({baseline} MB)", seconds, seconds * link / baseline, None))
        print(rows[-1].text(), flush=True)
        net.clean()
    data = big_file(net, megabytes)
    limit = megabytes / link
    best = push(net, data)
    check(net, data, everyone)
    rows.append(Row(f"ddpctl push ({megabytes} MB)", best.seconds, best.seconds / limit, 1.2))
    sent = int(str(best.document["sent_bytes"])) / 1e6 / megabytes
    rows.append(Row("its bytes on the uplink", None, sent, 1.05, "x payload"))
    rows.append(Row("its memory", None, best.memory / 1e6, 150, "MB"))
    again = push(net, data)
    assert again.document["sent_bytes"] == 0
    rows.append(Row("pushed again, unchanged", again.seconds, again.seconds, 3.0, "s"))
    net.clean()
    dead = min(4, net.count)
    cut = push(net, data, during=lambda: (time.sleep(4), net.cut(dead)))
    net.restore(dead)
    others = [number for number in everyone if number != dead]
    check(net, data, others)
    slowest = cut.slowest(without=[dead])
    rows.append(Row(f"host {dead} silent after 4 s: the others", slowest, slowest / limit, 1.6))
    assert cut.code != 0
    until(lambda: subprocess.run(net.inside(0, *net.ssh(dead), "true")).returncode == 0)
    for slow in (3, 1):
        net.clean()
        net.limit(slow, net.rate // 10)
        lame = push(net, data)
        net.limit(slow, net.rate)
        check(net, data, everyone)
        slowest = lame.slowest(without=[slow])
        label = f"host {slow} at a tenth of the speed: the others"
        rows.append(Row(label, slowest, slowest / limit, 1.6))
    net.clean()
    return rows


def small_files(net: Net, count: int) -> list[Row]:
    data = net.folder / "small"
    for number in range(count):
        if number % 500 == 0:
            (data / f"class{number // 500}").mkdir(parents=True)
        size = 2000 + number * 7919 % 2000
        (data / f"class{number // 500}" / f"{number}.jpg").write_bytes(os.urandom(size))
    ssh = [" ".join(net.inside(0, *net.ssh(number))) for number in range(1, net.count + 1)]
    tar = timed(
        [f"tar -C {data} -cf - . | {ssh[0]} 'mkdir $HOME/t && tar -xf - -C $HOME/t'"], at_once=False
    )
    net.clean()
    one = Net(net.folder, 1, net.rate, [])
    alone = push(one, data)
    check(net, data, [1])
    net.clean()
    everyone = push(net, data)
    check(net, data, range(1, net.count + 1))
    again = push(net, data)
    (data / "class0" / "0.jpg").write_bytes(b"changed")
    changed = push(net, data)
    return [
        Row(f"{count} files of 3 KB: tar, ssh, tar to one host", tar, 1.0, None, "x tar"),
        Row(
            "ddpctl push to one host", alone.seconds, tar / alone.seconds, 0.7, "x tar", least=True
        ),
        Row(
            f"ddpctl push to {net.count} hosts",
            everyone.seconds,
            tar / everyone.seconds,
            None,
            "x tar",
        ),
        Row("its memory", None, everyone.memory / 1e6, 150, "MB"),
        Row("pushed again, unchanged", again.seconds, again.seconds, 3.0, "s"),
        Row("pushed again, one file changed", changed.seconds, changed.seconds, None, "s"),
    ]


def last_layer(megabytes: int) -> list[Row]:
    """Push between two engines on loopback an image of `megabytes` MB whose last tenth changes."""
    for folder in ("helpers", "launcher/push"):
        sys.path.insert(0, str(SOURCE / "tests" / folder))
    import engines
    from sshd_server import Sshd

    if reason := engines.missing():
        print(f"images were not measured: {reason}", file=sys.stderr)
        return []
    folder = Path(tempfile.mkdtemp(prefix="ddpctl-bench."))
    name = f"ddpctl-bench-{os.getpid()}"
    (folder / "home" / ".ssh").mkdir(parents=True)
    made, servers, hosts = [], [], []
    for number in range(2):
        made.append(engines.Engine(folder / f"d{number}").start())
        (folder / f"host{number}").mkdir()
        environment = f"HOME={folder}/host{number} DOCKER_HOST={made[-1].address}"
        address = f"127.0.0.{number + 1}"
        options = {"SetEnv": environment}
        server = Sshd(folder / f"sshd{number}", folder / "home", address=address, options=options)
        server.know()
        servers.append(server.start())
        host = server.host()
        hosts.append(
            f"  - {{host: {host.host}, port: {host.port}, identity_file: {host.identity_file}}}"
        )
    (folder / "hosts.yaml").write_text("\n".join(["hosts:", *hosts, f"job: {{image: {name}}}"]))
    try:
        return _layer_rows(folder, name, megabytes)
    finally:
        for each in [*servers, *made]:
            each.stop()
        listed = sh("docker", "image", "ls", "-q", "--filter", f"label=test={name}").stdout
        for image in set(listed.split()):
            subprocess.run(["docker", "rmi", "-f", image], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _layer_rows(folder: Path, name: str, megabytes: int) -> list[Row]:
    context = folder / "context"
    context.mkdir()
    lines = ["FROM scratch", f"LABEL test={name}", "COPY base /base", "COPY top /top"]
    (context / "Dockerfile").write_text("\n".join(lines))
    (context / "base").write_bytes(os.urandom(megabytes * 900_000))
    rows = []
    for label in ("an image for the first time", "its last layer changed", "unchanged"):
        if label != "unchanged":
            text = os.urandom(megabytes * 25_000).hex().encode()  # compresses to half its size
            (context / "top").write_bytes(text * 2)
        environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
        sh("docker", "build", "-q", "-t", name, context, env=environment)
        environment = {**os.environ, "HOME": str(folder / "home"), "PYTHONPATH": str(SOURCE)}
        environment["XDG_CACHE_HOME"] = str(folder / "cache")
        argv = [*DDPCTL, "push", folder / "hosts.yaml", "--image", "--json"]
        began = time.monotonic()
        document = json.loads(sh(*argv, env=environment).stdout)
        seconds = time.monotonic() - began
        moved = max(host["received_bytes"] for host in document["hosts"])
        layer = len(gzip.compress((context / "top").read_bytes(), 6))
        if label == "its last layer changed":
            rows.append(Row(f"{label} (2 hosts, {megabytes} MB)", seconds, moved / layer, 1.05))
            rows[-1].unit = "x its gzip size to a host"
        elif label == "unchanged":
            rows.append(Row(f"the image {label}", seconds, seconds, 3.0, "s"))
        else:
            rows.append(Row(f"{label} (2 hosts, {megabytes} MB)", seconds, seconds, None, "s"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rate", type=int, default=200, help="Mbit/s of every link")
    parser.add_argument("--size", type=int, default=500, help="MB of the large file")
    parser.add_argument("--baseline", type=int, default=100, help="MB for the baselines")
    parser.add_argument("--only", choices=("large", "small", "image"))
    parser.add_argument("--files", type=int, default=50000)
    parser.add_argument("--write", action="store_true", help="write into RESULTS.md")
    given = parser.parse_args()
    need_root_and("push", "ip", "tc", "sshd", "ssh", "ssh-keygen", "docker")
    rows: list[Row] = []
    load = os.getloadavg()[0]
    if given.only in (None, "image"):
        rows += last_layer(100)
    with network(given.hosts, given.rate) as net:
        if given.only in (None, "large"):
            rows += fan_out(net, given.size, given.baseline)
        if given.only in (None, "small"):
            rows += small_files(net, given.files)
    text = "\n".join(
        [
            f"{given.hosts} hosts, {given.rate} Mbit/s each way on every link, "
            f"{os.cpu_count()} cores for sender and hosts together, load average "
            f"{load:.0f} before and {os.getloadavg()[0]:.0f} after",
            "",
            "| what | seconds | value | bar | |",
            "|---|---|---|---|---|",
            *(row.text() for row in rows),
        ]
    )
    print(text)
    if given.write:
        command = shlex.join(["python", "-m", "benchmarks.push", *sys.argv[1:]])
        write_section("push", command, text)


if __name__ == "__main__":
    main()
