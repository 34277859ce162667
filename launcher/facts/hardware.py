"""What the checks need to know of a host beyond `launcher.facts.script`: one `sh` script, one round trip.

As there: a shell and coreutils are enough, and what a host cannot tell is left empty. What the shell
can do itself, it does: a process costs a host with two cores and ten interfaces more than all the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, ip_address

from launcher.facts.nvidia import Nvidia, parse_nvidia

SCRIPT = r"""
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; export PATH LC_ALL=C
s() { printf '\n@@%s\n' "$1"; }
s writable
t="$HOME/.ddpctl/.check.$$"
if [ -d "$HOME/.ddpctl" ] || mkdir -p "$HOME/.ddpctl" 2>&1; then
  { true > "$t"; } 2>&1 && rm -f "$t" && echo yes
fi
s disk
room() {
  echo room; printf 'path %s\n' "$@"
  blocks=$(df -Pk "$@" 2>/dev/null) || return
  printf 'blocks\n%s\ninodes\n' "$blocks"; df -Pi "$@" 2>/dev/null || :
}
disks() {
  for d; do shift; if [ -n "$d" ] && [ -e "$d" ]; then set -- "$@" "$d"; fi; done
  room "$@" || for d; do room "$d"; done
}
disks "$HOME/.ddpctl" "$HOME" "$1" /dev/shm
s memory; { read -r total; read -r _; read -r available; } < /proc/meminfo
printf '%s\n' "$total" "$available"
s memlock; ulimit -l
s interfaces
for d in /sys/class/net/*; do
  mtu='' state='' speed=''
  { read -r mtu < "$d/mtu"; read -r state < "$d/operstate"; read -r speed < "$d/speed"; } 2>/dev/null
  if [ -d "$d/bridge" ]; then kind=bridge; else kind=plain; fi
  printf '%s %s %s %s %s\n' "${d##*/}" "$mtu" "$state" "${speed:--1}" "$kind"
done
s network
read -r boot < /proc/sys/kernel/random/boot_id && echo "$boot"; readlink /proc/self/ns/net
s routes; while IFS= read -r line; do printf '%s\n' "$line"; done < /proc/net/route
s ibports
for d in /sys/class/infiniband/*/ports/*; do
  [ -e "$d/state" ] && printf '%s %s\n' "$d" "$(cat "$d/state")"
done
s ibdevices; [ -d /dev/infiniband ] && ls /dev/infiniband
s resolved; read -r name < /proc/sys/kernel/hostname; getent ahostsv4 "$name" 2>/dev/null
s tools; for c in bash python3 perl tar docker ss; do command -v "$c"; done 2>/dev/null
s firewall; for f in ufw firewalld; do [ -e "/usr/sbin/$f" ] && echo "$f"; done
s holder
if [ -n "$2" ]; then
  hex=$(printf '%04X' "$2")
  cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | while read -r _ local _ st _ _ _ uid _ inode _; do
    if [ "$st" = 0A ] && [ "${local##*:}" = "$hex" ]; then
      user=$(id -nu "$uid" 2>/dev/null || echo "$uid")
      pid=$(ls -l /proc/[0-9]*/fd 2>/dev/null | while read -r line; do
        case $line in
          /proc/*:) p=${line#/proc/}; p=${p%%/*} ;;
          *"socket:[$inode]"*) echo "$p"; break ;;
        esac
      done)
      printf '%s\t%s\t' "$user" "$pid"
      [ -n "$pid" ] && tr '\0' ' ' < "/proc/$pid/cmdline" 2>/dev/null
      echo
      break
    fi
  done
fi
with_gpus=$3
s missing
[ $# -gt 3 ] && { shift 3; for d; do [ -e "$d" ] || printf '%s\n' "$d"; done; }
if [ "$with_gpus" = gpus ]; then
  s driver; cat /proc/driver/nvidia/version 2>/dev/null
  s nvswitch; ls -d /dev/nvidia-nvswitch[0-9]* 2>/dev/null
  s fabricmanager; cat /proc/[0-9]*/comm 2>/dev/null | grep nv-fabricmanage
  s toolkit
  for c in nvidia-container-runtime-hook nvidia-container-runtime nvidia-ctk; do command -v "$c"; done
  s cdi; ls /etc/cdi /var/run/cdi 2>/dev/null | grep -i nvidia
  s nvidia
  command -v nvidia-smi >/dev/null 2>&1 && timeout 20 nvidia-smi -q -x 2>/dev/null
  s gpuowners
  for pid in $(timeout 20 nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null); do
    case $pid in *[!0-9]*|'') continue ;; esac
    uid=$(grep '^Uid:' "/proc/$pid/status" 2>/dev/null | cut -f 2)
    printf '%s %s %s\n' "$pid" "$(id -nu "$uid" 2>/dev/null || echo "$uid")" \
      "$(grep -Eo '[0-9a-f]{64}' "/proc/$pid/cgroup" 2>/dev/null | tail -n 1)"
  done
fi
s end
"""
"""Run as `sh -c SCRIPT sh DOCKER_ROOT MASTER_PORT gpus FOLDER...`; the first three may be empty, and the
last of them left out."""


@dataclass(frozen=True)
class Disk:
    """kib: 1024 bytes. inodes_free is None where the file system has no such limit."""

    path: str
    mount: str
    kib: int
    kib_free: int
    inodes_free: int | None


@dataclass(frozen=True)
class Interface:
    name: str
    mtu: int
    state: str
    speed: int  # Mbit/s, 0 when it does not say
    is_bridge: bool


@dataclass(frozen=True)
class Holder:
    """Who listens on the master port. pid 0: not ours to see."""

    user: str
    pid: int
    command: str


@dataclass(frozen=True)
class Details:
    disks: tuple[Disk, ...] = ()
    memory_kib: int = 0
    memory_available_kib: int = 0
    memlock: str = "unlimited"
    interfaces: tuple[Interface, ...] = ()
    network: str = ""  # one network stack: two names of one machine have the same
    gateways: tuple[tuple[IPv4Network, str], ...] = ()  # where its routes do not go straight
    infiniband_ports: tuple[tuple[str, str], ...] = ()  # (device and port, state)
    infiniband_devices: tuple[str, ...] = ()
    resolved: str | None = None  # what the host's own name stands for there
    missing: tuple[str, ...] = ()  # of the folders that were asked for
    home_error: str = ""  # why ~/.ddpctl cannot be written
    tools: frozenset[str] = frozenset()
    firewalls: tuple[str, ...] = ()
    holder: Holder | None = None
    kernel_driver: str | None = None  # version of the loaded NVIDIA module
    nvswitches: int = 0
    fabric_manager: bool = False
    toolkit: tuple[str, ...] = ()
    cdi: bool = False
    nvidia: Nvidia = field(default_factory=Nvidia)

    def disk(self, path: str) -> Disk | None:
        return next((disk for disk in self.disks if disk.path == path), None)

    def interface(self, name: str) -> Interface | None:
        return next((i for i in self.interfaces if i.name == name), None)

    def gateway_to(self, ip: str) -> str | None:
        """Through whom the host sends to an address; None when straight, or nobody knows."""
        there = ip_address(ip)
        routes = [(network, via) for network, via in self.gateways if there in network]
        return max(routes, key=lambda route: route[0].prefixlen)[1] or None if routes else None


def parse(text: str) -> Details:
    """The script's output. Raises ValueError when it is not that, or not all of it."""
    found = _sections(text)
    if "end" not in found:
        raise ValueError("the check script did not run to its end")

    def first(name: str) -> str:
        return next(iter(found.get(name, [])), "")

    memory = dict(re.findall(r"(\w+):\s+(\d+)", "\n".join(found.get("memory", []))))
    writable = found.get("writable", [])
    driver = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", first("driver"))
    return Details(
        disks=_disks(found.get("disk", [])),
        memory_kib=int(memory.get("MemTotal", 0)),
        memory_available_kib=int(memory.get("MemAvailable", 0)),
        memlock=first("memlock") or "unlimited",
        interfaces=_interfaces(found.get("interfaces", [])),
        network=" ".join(found.get("network", [])),
        gateways=_gateways(found.get("routes", [])),
        infiniband_ports=_infiniband(found.get("ibports", [])),
        infiniband_devices=tuple(found.get("ibdevices", [])),
        resolved=first("resolved").partition(" ")[0].strip() or None,
        missing=tuple(found.get("missing", [])),
        home_error="" if "yes" in writable else (writable or ["it cannot be written"])[0],
        tools=frozenset(line.rsplit("/", 1)[-1] for line in found.get("tools", [])),
        firewalls=tuple(found.get("firewall", [])),
        holder=_holder(first("holder")),
        kernel_driver=driver[1] if driver else None,
        nvswitches=len(found.get("nvswitch", [])),
        fabric_manager=bool(found.get("fabricmanager")),
        toolkit=tuple(line.rsplit("/", 1)[-1] for line in found.get("toolkit", [])),
        cdi=bool(found.get("cdi")),
        nvidia=parse_nvidia("\n".join(found.get("nvidia", [])), found.get("gpuowners", [])),
    )


def _sections(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("@@"):
            lines = found.setdefault(line[2:], [])
        elif line.strip():
            lines.append(line.rstrip())
    return found


def _disks(lines: list[str]) -> tuple[Disk, ...]:
    """`room`, a `path` line for each path that df was asked for, and a row of df's for each of them."""
    disks: list[Disk] = []
    for part in re.split(r"^room\n", "\n".join(lines), flags=re.MULTILINE):
        said, _, inodes = part.partition("\ninodes\n")
        said, _, blocks = said.partition("\nblocks\n")
        paths = [line[5:] for line in said.splitlines()]
        rows, counts = _df(blocks), _df(inodes)
        if len(counts) != len(paths):
            counts = [("0", "0", "")] * len(paths)
        if len(rows) == len(paths):
            disks += [_disk(*each) for each in zip(paths, rows, counts, strict=True)]
    return tuple(disk for disk in disks if disk.kib)


def _df(text: str) -> list[tuple[str, str, str]]:
    """Total, free and mount point of each row that df -P printed."""
    row = re.compile(r"\s(\d+|-)\s+(?:\d+|-)\s+(-?\d+|-)\s+(?:\d+%|-)\s+(/.*)$")
    found = (row.search(line) for line in text.splitlines())
    return [(match[1], match[2], match[3]) for match in found if match]


def _disk(path: str, blocks: tuple[str, str, str], inodes: tuple[str, str, str]) -> Disk:
    total, free, mount = blocks
    # btrfs and NFS count no inodes
    limited = inodes[0] not in ("0", "-") and inodes[1].isdigit()
    known = total != "-" and free != "-"  # or else 0: /proc and its like
    kib, kib_free = (int(total), max(0, int(free))) if known else (0, 0)
    return Disk(path, mount, kib, kib_free, int(inodes[1]) if limited else None)


def _interfaces(lines: list[str]) -> tuple[Interface, ...]:
    found = []
    for line in lines:
        name, mtu, state, speed, kind = (line.split() + [""] * 5)[:5]
        if mtu.isdigit():
            mbits = int(speed) if speed.isdigit() and int(speed) < 2**31 - 1 else 0
            found.append(Interface(name, int(mtu), state, mbits, kind == "bridge"))
    return tuple(found)


def _gateways(lines: list[str]) -> tuple[tuple[IPv4Network, str], ...]:
    """/proc/net/route; "" for a network that is reached without a gateway."""
    found = []
    for words in map(str.split, lines):
        if len(words) > 7 and all(re.fullmatch(r"[0-9A-F]{8}", words[i]) for i in (1, 2, 7)):
            # in the byte order of the processor, which is little on all that Docker runs on but s390
            to, via, mask = (IPv4Address(bytes.fromhex(words[i])[::-1]) for i in (1, 2, 7))
            found.append((IPv4Network(f"{to}/{mask}"), str(via) if int(via) else ""))
    return tuple(found)


def _infiniband(lines: list[str]) -> tuple[tuple[str, str], ...]:
    found = []
    for line in lines:
        match = re.match(r"/sys/class/infiniband/([^/]+)/ports/(\d+) (?:\d+: )?(\w+)", line)
        if match:
            found.append((f"{match[1]} port {match[2]}", match[3]))
    return tuple(found)


def _holder(line: str) -> Holder | None:
    user, _, rest = line.partition("\t")
    pid, _, command = rest.partition("\t")
    if not user:
        return None
    return Holder(user, int(pid) if pid.strip().isdigit() else 0, command.strip())
