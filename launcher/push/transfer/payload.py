"""A payload to send to hosts, and the errors of hosts that fail."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...errors import DdpctlError, PushFailed
from ...ssh.host_connection import HostConnection
from ...text import duration

Failures = dict[HostConnection, DdpctlError]
TIMEOUT = 600.0  # seconds without progress of a transfer
SLOWEST_DISK = 5e6  # bytes/s at which an engine unpacks a layer, which shows no progress
LONGEST_UNPACKING = 3600.0  # seconds

REMEDIES = {
    "no space left": "free up space on that host's disk, then push again",
    "quota exceeded": "free up space in the user's quota on that host, then push again",
    "permission denied": "let the SSH user write to that path on the host, then push again",
    "read-only file system": (
        "on that host, check `dmesg` for disk errors and remount it read-write, then push again"
    ),
    "failed to establish a new connection": (
        "check the connection to the package index, then try again"
    ),
    "no matching distribution": (
        "name a version that has a wheel for this Python, or add `--find-links FOLDER` with such a "
        "wheel in FOLDER"
    ),
    "no module named": "install that Python module on the host, or set job.python to another Python",
    "file name too long": "shorten the name; .ddpctlignore can exclude the file from a workdir",
}


@dataclass(frozen=True)
class Payload:
    """A byte stream for the stdin of a command on each host. Each call of `chunks` yields all of it."""

    part: str  # image, wheel, dataset, workdir
    command: Callable[[HostConnection], Sequence[str]]
    size: int | None  # approximate bytes; None if unknown
    chunks: Callable[[], Iterator[bytes]]


def without(
    connections: Iterable[HostConnection], others: Collection[HostConnection]
) -> list[HostConnection]:
    return [connection for connection in connections if connection not in others]


def end_timeout(size: int) -> float:
    """Return how many seconds a disk or an engine may take to process `size` received bytes."""
    return TIMEOUT + min(size / SLOWEST_DISK, LONGEST_UNPACKING)


def stuck(host: str, part: str, timeout: float) -> PushFailed:
    return PushFailed(
        f"{part}: no progress for {duration(timeout)}",
        "check whether a disk or the engine is hanging on that host, then push again",
        host=host,
    )


def script_output(
    connection: HostConnection,
    part: str,
    script: str,
    *arguments: str,
    stdin: bytes = b"",
    timeout: float,
) -> str:
    """Run a script on a host. Return its output. Raises PushFailed with its stderr if it fails."""
    done = connection.script(script, *arguments, stdin=stdin, timeout=timeout)
    if done.code != 0:
        raise failed(
            connection.name, part, done.stderr.decode(errors="replace") or f"exit {done.code}"
        )
    return done.stdout.decode(errors="replace")


def failed(host: str, part: str, stderr: str) -> PushFailed:
    """Return an error with the most informative line of stderr, and a remedy."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    lines = lines or ["failed without a message"]
    for symptom, remedy in REMEDIES.items():
        for line in lines:
            if symptom in line.lower():
                return PushFailed(f"{part}: {line}", remedy, host=host)
    telling = [line for line in lines if "exiting now" not in line.lower()]
    remedy = "try again; `ddpctl check HOSTS` may show why"
    return PushFailed(f"{part}: {(telling or lines)[-1]}", remedy, host=host)
