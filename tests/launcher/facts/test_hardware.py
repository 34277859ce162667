"""The facts that only `check` asks for: the script in any shell, and how its output is parsed."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections import defaultdict
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from launcher.engines.engine_info import EngineInfo
from launcher.facts.facts import SCRIPT
from launcher.facts.facts import parse as parse_script
from launcher.facts.hardware import Details, Disk
from launcher.facts.network import Interface, IpRoute
from launcher.facts.nvidia import GpuState, Nvidia, Process, number, parse_nvidia
from launcher.hosts import parse
from launcher.preflight import check as run
from launcher.ssh.host_connection import HostConnection

SAMPLE = """
@@user
uid=7(ann) gid=8(staff) groups=8(staff)

@@writable
yes

@@disk
path /home/u/.ddpctl
Filesystem     1024-blocks      Used Available Capacity Mounted on
/dev/sda1   1000000 400000 600000      40% /home
Filesystem        Inodes    IUsed    IFree IUse% Mounted on
/dev/sda1   65536 1000 64536    2% /home
path /var/lib/docker
Filesystem     1024-blocks      Used Available Capacity Mounted on
/dev/sdb with space  2000000 400000 1600000      20% /var/lib/docker data
Filesystem        Inodes    IUsed    IFree IUse% Mounted on
-   0 0 0    - /var/lib/docker data
path /gone

@@memory
MemTotal:       24684084 kB
MemAvailable:   24327088 kB

@@memlock
unlimited

@@interfaces
eth0 1500 up 25000 plain
docker0 1500 down -1 bridge
wlan0 1500 up  plain
tun0 1420 unknown 10 plain

@@boot
boot

@@network
net:[1]

@@net
Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	FE00000A	0003	0	0	0	00000000	0	0	0
eth0	0000000A	00000000	0001	0	0	0	00FFFFFF	0	0	0
eth0	0300000A	0100000A	0007	0	0	0	FFFFFFFF	0	0	0

@@resolved
127.0.1.1       STREAM gpu1

@@subuids
ubuntu:100000:65536

@@logout
ends all

@@firewall
ufw

@@holder
eve\t99\tpython serve.py

@@driver
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build

@@nvswitch
/dev/nvidia-nvswitch0
/dev/nvidia-nvswitch1

@@fabricmanager

@@toolkit
/usr/bin/nvidia-ctk

@@cdi

@@nvidia

@@gpuowners

@@end
1.5
"""

NVIDIA = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>550.54.15</driver_version><cuda_version>12.4</cuda_version>
  <gpu id="00000000:18:00.0">
    <ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>
    <mig_mode><current_mig>Disabled</current_mig></mig_mode>
    <fb_memory_usage><used>30004 MiB</used></fb_memory_usage>
    <processes>
      <process_info><pid>4711</pid><type>C</type><process_name>/usr/bin/python3</process_name>
        <used_memory>30000 MiB</used_memory></process_info>
      <process_info><pid>12</pid><type>G</type><process_name>Xorg</process_name>
        <used_memory>900 MiB</used_memory></process_info>
    </processes>
  </gpu>
</nvidia_smi_log>
"""


def read(text: str) -> Details:
    return parse_script(text).details


def test_the_output_as_values() -> None:
    assert read(SAMPLE) == Details(
        disks=(
            Disk("/home/u/.ddpctl", "/home", 1000000, 600000, 64536),
            Disk("/var/lib/docker", "/var/lib/docker data", 2000000, 1600000, None),
        ),
        memory_kib=24684084,
        memory_available_kib=24327088,
        resolved="127.0.1.1",
        firewalls=("ufw",),
        holder="python serve.py (user eve, pid 99)",
        kernel_driver="550.54.15",
        open_driver=True,
        nvswitches=2,
        toolkit=True,
        subuids=True,
        lingers=False,
    )


def test_the_command_that_holds_the_port_is_cut_and_printable() -> None:
    command = "python \x1b]0;owned\x07\x1b[2J--password " + "x" * 500
    holder = read(SAMPLE.replace("python serve.py", command)).holder
    assert holder.isprintable() and len(holder) < 110
    assert holder.startswith("python --password xx")
    assert holder.endswith("x... (user eve, pid 99)")
    assert read(SAMPLE.replace("99\tpython serve.py", "")).holder == "a process (user eve)"
    assert read(SAMPLE.replace("eve\t99\tpython serve.py", "")).holder == ""


@pytest.mark.parametrize(
    ("text", "value"), [("12 MiB", 12), (" 7", 7), ("N/A", 0), ("", 0), ("\x1f 7", 7)]
)
def test_a_number_is_read_after_any_space_even_one_that_int_refuses(text: str, value: int) -> None:
    assert number(text) == value


def test_interfaces_and_routes_as_values() -> None:
    host = parse_script(SAMPLE)
    assert host.interfaces == (
        Interface("eth0", 1500, "up", 25000),
        Interface("docker0", 1500, "down", 0, "bridge"),
        Interface("wlan0", 1500, "up", 0),
        Interface("tun0", 1420, "unknown", 0),
    )
    assert host.network_stack == "boot net:[1]"
    assert host.routes == (
        IpRoute(IPv4Network("10.0.0.3/32"), "10.0.0.1", "eth0"),
        IpRoute(IPv4Network("10.0.0.0/24"), "", "eth0"),
        IpRoute(IPv4Network("0.0.0.0/0"), "10.0.0.254", "eth0"),
    )


def test_a_truncated_output_is_refused() -> None:
    with pytest.raises(ValueError, match="did not finish"):
        read(SAMPLE[: SAMPLE.index("@@holder")])


def nvidia(xml: str, **sections: list[str]) -> Nvidia:
    return parse_nvidia(defaultdict(list, nvidia=xml.split("\n"), **sections))


def test_nvidia_smi() -> None:
    owners = [f"4711\teve\t{'c' * 64}\t\t1\tpython3", "12\troot\t"]
    found = nvidia(NVIDIA, gpuowners=owners)
    assert (found.driver, found.cuda) == ("550.54.15", (12, 4))
    eve = Process(4711, 30000, "python3", "eve", "c" * 64, started=1.0)
    assert found.gpus == (GpuState(0, "Enabled", "Disabled", pci="0000:18:00", processes=(eve,)),)
    assert nvidia("No devices were found").gpus == ()
    assert nvidia(NVIDIA[:300]).gpus == ()


@pytest.mark.parametrize("user", ["maximilian.mustermann@ad.university.example", r"CORP\ann smith"])
def test_a_process_of_an_account_with_a_long_name_is_known(user: str) -> None:
    run = "20261122-101500-ab12"
    found = nvidia(NVIDIA, gpuowners=[f"4711\t{user}\t{'a' * 64}\t{run}\t1\tpython"])
    [process] = found.gpus[0].processes
    assert (process.user, process.container, process.run_id) == (user, "a" * 64, run)


def test_a_host_cannot_define_xml_entities_that_fill_the_memory() -> None:
    entities = '<!DOCTYPE x [<!ENTITY a "yyyyyyyy"><!ENTITY b "&a;&a;&a;&a;">]>'
    for root in ("<nvidia_smi_log>", "<nvidia_smi_log z=''>"):
        text = f"{entities}{root}<driver_version>&b;</driver_version></nvidia_smi_log>"
        assert nvidia(text).driver is None


def test_errors_of_the_driver_in_the_kernels_log() -> None:
    lines = [
        "[ 7.1] NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', GPU has fallen off the bus.",
        "Nov 22 10:00:00 gpu1 kernel: NVRM: Xid (PCI:0000:3B:00): 48, pid=1, name=python",
        "NVRM: Xid (PCI:$(reboot)): 48, x",
        "NVRM: Xid (PCI:0000:18:00): 99999, x",
        "NVRM: GPU at PCI:0000:18:00: GPU-a",
    ]
    xids = (("0000:18:00", 79), ("0000:3b:00", 48))
    assert nvidia(NVIDIA, xid=lines).xids == xids
    assert nvidia("No devices were found", xid=lines) == Nvidia(xids=xids)


HEALTH = """<nvidia_smi_log>
  <gpu>
    <pci><pci_gpu_link_info><link_widths>
      <max_link_width>16x</max_link_width><current_link_width>8x</current_link_width>
    </link_widths></pci_gpu_link_info></pci>
    <clocks_event_reasons>
      <clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>
      <clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown>
    </clocks_event_reasons>
    <ecc_errors>
      <volatile><sram_correctable>9</sram_correctable>
        <sram_uncorrectable_parity>1</sram_uncorrectable_parity>
        <dram_uncorrectable>2</dram_uncorrectable></volatile>
      <aggregate><dram_uncorrectable>50</dram_uncorrectable></aggregate>
    </ecc_errors>
    <remapped_rows><remapped_row_pending>Yes</remapped_row_pending>
      <remapped_row_failure>Yes</remapped_row_failure></remapped_rows>
  </gpu>
  <gpu>
    <clocks_throttle_reasons>
      <clocks_throttle_reason_hw_power_brake_slowdown>Active</clocks_throttle_reason_hw_power_brake_slowdown>
    </clocks_throttle_reasons>
    <ecc_errors><volatile><double_bit><total>4</total></double_bit></volatile></ecc_errors>
    <retired_pages><pending_retirement>Yes</pending_retirement></retired_pages>
  </gpu>
  <gpu>
    <pci><pci_gpu_link_info><link_widths>
      <max_link_width>16x</max_link_width><current_link_width>N/A</current_link_width>
    </link_widths></pci_gpu_link_info></pci>
    <clocks_event_reasons>
      <clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>
    </clocks_event_reasons>
    <ecc_errors><volatile><dram_uncorrectable>N/A</dram_uncorrectable></volatile></ecc_errors>
    <remapped_rows><remapped_row_pending>No</remapped_row_pending></remapped_rows>
  </gpu>
</nvidia_smi_log>"""


def test_the_health_of_gpus_of_new_and_old_drivers() -> None:
    new, old, well = nvidia(HEALTH).gpus
    assert (new.uncorrectable, new.repair_pending, new.repair_failed) == (3, True, True)
    assert (new.slowed, new.narrow) == (True, True)
    assert (old.uncorrectable, old.repair_pending, old.slowed) == (4, True, True)
    assert well == GpuState(2, "", "", 0)


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "busybox"])
def test_the_script_runs_in_any_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    argv = [shell, "sh"] if shell == "busybox" else [shell]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        done = subprocess.run(
            [*argv, "-c", SCRIPT, "sh", "gpus", "check", "/", str(port), "/gone/a b", "/"],
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    host, found = parse_script(done.stdout), read(done.stdout)
    assert found.home_error == ""
    assert found.missing == ("/gone/a b",)
    assert re.fullmatch(r"[0-9a-f-]{36} net:\[\d+\]", host.network_stack)
    assert not list((tmp_path / ".ddpctl").iterdir())
    home = found.disk(f"{tmp_path}/.ddpctl")
    assert home is not None and home.kib > 0
    assert found.disk("/") is not None
    assert found.memory_kib > 0
    assert host.interface("lo") is not None
    assert found.holder.endswith(f", pid {os.getpid()})")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount /proc")
@pytest.mark.parametrize("hidepid", [0, 1, 2])
def test_a_fabric_manager_is_not_missed_where_proc_hides_other_users(hidepid: int) -> None:
    mounted = f"mount -t proc -o hidepid={hidepid} proc /proc && exec setpriv --reuid 65534"
    script = f'{mounted} --regid 65534 --clear-groups sh -c "$0" sh gpus check "" ""'
    argv = ["unshare", "-m", "sh", "-c", script, SCRIPT]
    env = {**os.environ, "HOME": "/none"}
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd="/", env=env)
    assert read(done.stdout).fabric_manager == (hidepid > 0)


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / ".ddpctl").write_text("a file where the folder should be")
    done = subprocess.run(
        ["sh", "-c", SCRIPT, "sh", "check", "", ""],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "exists" in read(done.stdout).home_error


@pytest.mark.parametrize(
    ("owner", "has_ids"), [("LAB+ann", True), (str(os.getuid()), True), ("someone", False)]
)
def test_subordinate_ids_belong_to_a_name_or_a_number(
    tmp_path: Path, owner: str, has_ids: bool
) -> None:
    (tmp_path / "subuid").write_text(f"{owner}:100000:65536\n")
    text = SCRIPT.replace("/etc/subuid", f"{tmp_path}/subuid").replace("getsubids", "false")
    text = text.replace("id -un", "echo LAB+ann")  # as Samba's winbind may name an account
    env = {**os.environ, "HOME": str(tmp_path)}
    argv = ["sh", "-c", text, "sh", "check", "", ""]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert read(done.stdout).subuids is has_ids


def test_an_unusual_docker_root_is_asked_for_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = tmp_path / "docker root"
    root.mkdir()
    engine = EngineInfo(version="", storage="", cgroup_driver="", root=str(root))

    class Engine:
        def engine_info(self, image: str) -> EngineInfo:
            return engine

    monkeypatch.setattr(run, "engine_of", lambda *_: Engine())
    monkeypatch.setattr(run, "nodes_on", lambda *_: [])
    monkeypatch.setenv("HOME", str(tmp_path))
    job = {"image": "any:1", "command": ["train.py"], "mounts": ["/no/such:/data"]}
    job |= {"devices": ["/dev/no-such:/dev/x:r", "/dev/null"]}
    cluster = parse(json.dumps({"hosts": ["local"], "job": job}), "hosts.yaml")
    connection = HostConnection(cluster.hosts[0])
    found = run.examine("here", {0: connection}, cluster.job).details
    assert found.disk(str(root)) is not None
    assert found.missing == ("/no/such", "/dev/no-such")
