"""Facts about a host: one POSIX `sh` script, one parser, one frozen value.

The script needs only a shell and coreutils. Values that a host cannot report stay empty. The shell
does as much as possible itself, because starting processes is slow on a small host.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from . import network, rdma
from .gpus import AMD, Gpu, amd_gpus, nvidia_gpus
from .hardware import Details, details
from .network import Address, Interface, IpRoute
from .nvidia import OWNERS, printable
from .rdma import RdmaPort

SCRIPT = (
    AMD
    + rdma.SCRIPT
    + OWNERS
    + r"""
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; export PATH LC_ALL=C
s() { printf '\n@@%s\n' "$1"; }
check() {
root=$1; port=$2; shift 2
s writable
t="$HOME/.ddpctl/.check.$$"
if [ -d "$HOME/.ddpctl" ] || mkdir -p -m 700 "$HOME/.ddpctl" 2>&1; then
  { true > "$t"; } 2>&1 && rm -f "$t" && echo yes
fi
s disk
for d in "$HOME/.ddpctl" "$HOME" "$root" /dev/shm; do
  if [ -n "$d" ] && [ -e "$d" ]; then
    printf 'path %s\n' "$d"; df -Pk "$d" 2>/dev/null && df -Pi "$d" 2>/dev/null
  fi
done
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
s network; readlink /proc/self/ns/net
s resolved; read -r name < /proc/sys/kernel/hostname; getent ahostsv4 "$name" 2>/dev/null
s subuids; { grep "^$(id -un):" /etc/subuid || getsubids "$(id -un)"; } 2>/dev/null
s logout
[ -d /run/systemd/system ] && [ ! -e "/var/lib/systemd/linger/$(id -un)" ] && echo "ends all"
s firewall; for f in ufw firewalld; do [ -e "/usr/sbin/$f" ] && echo "$f"; done
s holder
if [ -n "$port" ]; then
  hex=$(printf '%04X' "$port")
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
s missing; for d; do [ -e "$d" ] || printf '%s\n' "$d"; done
if [ -n "$gpus" ]; then
  s driver; cat /proc/driver/nvidia/version 2>/dev/null
  s nvswitch; ls -d /dev/nvidia-nvswitch[0-9]* 2>/dev/null
  s fabricmanager; cat /proc/[0-9]*/comm 2>/dev/null | grep nv-fabricmanage
  s toolkit
  for c in nvidia-container-runtime-hook nvidia-container-runtime nvidia-ctk; do command -v "$c"; done
  s cdi; ls /etc/cdi /var/run/cdi 2>/dev/null | grep -i nvidia
  s nvidia
  xml=$(command -v nvidia-smi >/dev/null 2>&1 && timeout 20 nvidia-smi -q -x 2>/dev/null)
  printf '%s\n' "$xml"
  s xid  # the first that this user may read
  { dmesg || timeout 5 journalctl -kb -q --no-pager -n 10000; } 2>/dev/null | grep 'NVRM: Xid' | tail -n 64
  s gpuowners
  owners $(printf '%s\n' "$xml" | sed -n 's:.*<pid>\([0-9]*\)</pid>.*:\1:p')
fi
}
s clock; date +%s.%N
s user; id
s home; printf '%s\n' "$HOME"
s folder; readlink -f "$HOME/.ddpctl" 2>/dev/null
s system; uname -nsrm
s ssh; printf '%s\n' "$SSH_CONNECTION"
s boot; read -r boot < /proc/sys/kernel/random/boot_id && echo "$boot"
s cores; nproc 2>/dev/null || grep -c '^processor' /proc/cpuinfo
s net; cat /proc/net/route /proc/net/fib_trie /proc/net/if_inet6 2>/dev/null
s rdma; [ -d /sys/class/infiniband ] && rdma
s infiniband; [ -d /dev/infiniband ] && ls /dev/infiniband
gpus=
while [ $# -gt 0 ]; do
  case $1 in
    ports) s listening; grep -h ' 0A ' /proc/net/tcp /proc/net/tcp6 2>/dev/null ;;
    gpus)
      gpus=yes; s gpus
      if command -v nvidia-smi >/dev/null 2>&1; then
        nvidia-smi --query-gpu=index,uuid,name,memory.total --format=csv,noheader,nounits 2>&1
      fi
      s amd; amd
      s gpugroups; stat -c %g /dev/kfd /dev/dri/renderD* /dev/dri/card* 2>/dev/null ;;
    check) shift; check "$@"; break ;;
  esac
  shift
done
s end; date +%s.%N
"""
)
"""Arguments: [ports] [gpus] [check DOCKER_ROOT MASTER_PORT FOLDER...], in this order.

`ports` lists the listening ports; the kernel walks its whole table for that. `gpus` runs
nvidia-smi, which can take seconds. `check` gathers `Details`; DOCKER_ROOT and MASTER_PORT may be
empty.
"""


_BOOT_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Facts:
    user: str
    uid: int
    gid: int
    home: str
    hostname: str
    kernel: str
    cores: int
    clock: float  # unix seconds on this host's clock, midway through the script
    ssh_server_ip: str | None  # the address by which the launching machine reached this host
    ssh_client_ip: str | None  # the launching machine (or the last jump host) as this host sees it
    addresses: tuple[Address, ...]
    listening: frozenset[int]  # TCP ports in state LISTEN, if requested
    infiniband: tuple[str, ...]  # devices, such as uverbs0
    gpus: tuple[Gpu, ...]
    gpu_error: str | None  # what nvidia-smi printed instead of GPUs
    interfaces: tuple[Interface, ...] = ()
    routes: tuple[IpRoute, ...] = ()  # of IPv4, the most specific first
    network_stack: str = ""  # boot id and network namespace: equal if two hosts share addresses
    rdma_ports: tuple[RdmaPort, ...] = ()
    gpu_groups: tuple[int, ...] = ()  # ids of the groups that may use AMD GPUs, except root's
    boot_id: str = ""  # equal if two hosts are one machine; "" if unknown
    seconds: float = 0.0  # run time of the script
    clock_skew: float = 0.0  # seconds by which this clock is ahead of the launching machine's
    clock_error: float = 0.0  # maximum error of clock_skew: half the network time
    details: Details | None = None  # if requested
    resolved: str = ""  # ~/.ddpctl without symlinks: on NFS, root may be unable to follow them

    @property
    def folder(self) -> str:
        """The path of ~/.ddpctl on the host; "" if unknown."""
        return self.resolved or (self.home and f"{self.home}/.ddpctl")

    @property
    def has_amd_gpus(self) -> bool:
        return any(gpu.vendor == "amd" for gpu in self.gpus)

    def roce_settings(self, ip: str, user_sets: Collection[str]) -> Mapping[str, str]:
        """Return `rdma.nccl_settings` for `ip`; empty without RDMA or if the user sets one of them."""
        if not self.infiniband or not rdma.NAMES.isdisjoint(user_sets):
            return {}
        return rdma.nccl_settings(self.rdma_ports, ip)

    def interface_of(self, ip: str) -> str | None:
        return next((a.interface for a in self.addresses if a.ip == ip), None)

    def network_of(self, ip: str) -> str:
        """Return the subnet that contains `ip`, or ""."""
        return next((a.network for a in self.addresses if a.ip == ip), "")

    def interface(self, name: str) -> Interface | None:
        return next((i for i in self.interfaces if i.name == name), None)

    def gateway_to(self, ip: str) -> str | None:
        """Return the gateway on the route to `ip`; None without a gateway or a route."""
        route = next((route for route in self.routes if ip_address(ip) in route.network), None)
        return (route.gateway or None) if route else None


def parse(text: str) -> Facts:
    """Parse the script's output. Raises ValueError for any other text."""
    sections: defaultdict[str, list[str]] = defaultdict(list)
    lines: list[str] = []  # of one section
    for line in filter(str.strip, text.split("\n")):
        if line.startswith("@@"):
            lines = sections[line[2:].strip()]
        else:
            lines.append(printable(line.rstrip()))
    if "end" not in sections:
        raise ValueError("the script did not finish")

    def first(name: str) -> str:
        return next((line.strip().replace("\t", "?") for line in sections[name]), "")

    def clock(name: str) -> float:  # of `date +%s.%N`; busybox prints %N literally
        match = re.match(r"[0-9]{1,12}(\.[0-9]{1,9})?", first(name))
        return float(match[0]) if match else 0.0

    # such as "uid=7(ann) gid=8(staff) groups=..."; a uid may lack a name
    identity = re.match(r"uid=([0-9]{1,10})(?:\((.*?)\))? gid=([0-9]{1,10})", first("user"))
    if not identity:
        raise ValueError(f"`id` printed {first('user')!r}")
    system, hostname, *release = first("system").split() or ["", ""]
    ssh = first("ssh").split()
    gpus, gpu_error = nvidia_gpus(sections["gpus"])
    if not gpus and not gpu_error:
        gpus = amd_gpus(sections["amd"])
    # rows of /proc/net/tcp with ports in hex: "  0: 00000000:1F90 00000000:0000 0A ..."
    ports = (re.match(r"\s*\d+: [0-9A-F]+:([0-9A-F]{4}) ", row) for row in sections["listening"])
    groups = {
        int(row) for row in sections["gpugroups"][:64] if re.fullmatch("[1-9][0-9]{0,8}", row)
    }
    started, ended = clock("clock"), clock("end")
    cores, boot, namespace = first("cores"), first("boot"), first("network")
    return Facts(
        user=identity[2] or "",
        uid=int(identity[1]),
        gid=int(identity[3]),
        home=first("home"),
        hostname=hostname,
        kernel=" ".join([system, *release]),
        cores=int(cores) if re.fullmatch("[0-9]{1,7}", cores) else 1,
        clock=(started + ended) / 2,
        ssh_server_ip=ssh[2] if len(ssh) == 4 else None,
        ssh_client_ip=ssh[0] if len(ssh) == 4 else None,
        addresses=network.addresses(sections["net"]),
        listening=frozenset(int(port[1], 16) for port in ports if port),
        infiniband=tuple(sections["infiniband"]),
        gpus=gpus,
        gpu_error=gpu_error,
        interfaces=network.interfaces(sections["interfaces"]),
        routes=network.routes(sections["net"]),
        network_stack=f"{boot} {namespace}" if boot and namespace else "",
        rdma_ports=rdma.rdma_ports(sections["rdma"]),
        gpu_groups=tuple(sorted(groups)),
        boot_id=boot if _BOOT_ID.fullmatch(boot) else "",
        seconds=max(0.0, ended - started),
        details=details(sections) if "disk" in sections else None,
        resolved=folder if (folder := first("folder")).startswith("/") else "",
    )
