"""The facts script: what real machines print, and what is made of it."""

from __future__ import annotations

import getpass
import os
import platform
import socket
import subprocess
import time

import pytest

from launcher.facts.script import SCRIPT, Address, parse

ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0002A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
ib0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0
ib0.8\t0001000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
FIB = """Main:
  +-- 0.0.0.0/0 3 0 5
           |-- 10.0.1.7
              /32 host LOCAL
           |-- 127.0.0.1
              /32 host LOCAL
           |-- 172.17.0.1
              /32 host LOCAL
           |-- 192.168.2.0
              /24 link UNICAST
           |-- 192.168.2.40
              /32 host LOCAL
           |-- 192.168.2.255
              /32 link BROADCAST
"""


def output(**sections: str) -> str:
    said = {
        "clock": "1.5",
        "user": "uid=7(ann) gid=8(staff) groups=8(staff)",
        "home": "/home/ann",
        "cores": "4",
    } | sections
    return "".join(f"\n@@{name}\n{text}" for name, text in said.items()) + "\n@@end\n"


def test_this_machine_answers_with_everything() -> None:
    done = subprocess.run(["sh", "-c", SCRIPT, "sh", "gpus"], capture_output=True, text=True)
    found = parse(done.stdout)
    assert abs(found.clock - time.time()) < 5
    assert found.cores >= 1
    assert Address("127.0.0.1", "lo") in found.addresses
    assert found.home
    assert (found.uid, found.gid, found.hostname) == (os.getuid(), os.getgid(), platform.node())
    assert found.kernel == " ".join(os.uname()[i] for i in (0, 2, 4))
    assert (found.user or str(found.uid)) in (getpass.getuser(), str(os.getuid()))


def test_addresses_go_with_the_interface_of_the_narrowest_network() -> None:
    found = parse(output(net=ROUTES + FIB))
    assert found.addresses == (
        Address("10.0.1.7", "ib0.8"),
        Address("127.0.0.1", "lo"),
        Address("172.17.0.1", "docker0"),
        Address("192.168.2.40", "eth0"),
    )
    assert found.interface_of("192.168.2.40") == "eth0"
    assert found.interface_of("10.9.9.9") is None


def test_ipv6_addresses_without_link_local_ones() -> None:
    lines = (
        "fe80000000000000020c29fffe000001 02 40 20 80     eth0\n"
        "fd000000000000000000000000000002 02 40 00 80     eth0\n"
    )
    assert parse(output(net=ROUTES + FIB + lines)).addresses[4:] == (Address("fd00::2", "eth0"),)


def test_who_one_is_there() -> None:
    found = parse(output(system="Linux node1 6.1.0 x86_64"))
    assert (found.uid, found.user, found.gid) == (7, "ann", 8)
    assert (found.hostname, found.kernel) == ("node1", "Linux 6.1.0 x86_64")
    nameless = parse(output(user="uid=4711 gid=0(root) groups=0(root)"))
    assert (nameless.uid, nameless.user, nameless.gid) == (4711, "", 0)
    with pytest.raises(ValueError, match="`id` said ''"):  # and not taken for root
        parse(output(user=""))


def test_listening_ports() -> None:
    lines = (
        "   0: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n"
        "   1: 00000000000000000000000000000000:0016 00000000:0000 0A 00000000:00000000\n"
    )
    assert parse(output(listening=lines)).listening == {29500, 22}


def test_ports_are_told_to_who_asks_for_them() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for asked, listening in ((["ports"], True), ([], False), (["ports", "gpus"], True)):
            done = subprocess.run(
                ["sh", "-c", SCRIPT, "sh", *asked], capture_output=True, text=True
            )
            assert (port in parse(done.stdout).listening) is listening, asked


def test_gpus_and_what_nvidia_smi_says_instead() -> None:
    good = parse(output(gpus="0, GPU-a, NVIDIA H100, 81559\n1, GPU-b, NVIDIA H100, 81559\n"))
    assert [(g.index, g.uuid, g.memory_mib) for g in good.gpus] == [
        (0, "GPU-a", 81559),
        (1, "GPU-b", 81559),
    ]
    bad = parse(output(gpus="Failed to initialize NVML: Driver/library version mismatch\n"))
    assert bad.gpus == ()
    assert bad.gpu_error == "Failed to initialize NVML: Driver/library version mismatch"


def test_a_clock_without_nanoseconds() -> None:
    assert parse(output(clock="1795236370.%N")).clock == 1795236370.0


def test_the_addresses_of_the_ssh_connection() -> None:
    found = parse(output(ssh="10.0.0.9 51234 10.0.0.1 22"))
    assert (found.ssh_client_ip, found.ssh_server_ip) == ("10.0.0.9", "10.0.0.1")


def test_a_shell_that_did_not_run_the_script() -> None:
    with pytest.raises(ValueError, match="to its end"):
        parse("This account is currently not available.\n")
