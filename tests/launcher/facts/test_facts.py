"""The facts script: what real machines print, and how it is read."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import platform
import re
import socket
import subprocess
import time
from pathlib import Path

import pytest
from host_facts import facts
from hypothesis import example, given
from hypothesis import strategies as st

from launcher.facts.facts import SCRIPT, Facts, parse
from launcher.facts.gather import gather_one
from launcher.facts.gpus import Gpu, core_list
from launcher.facts.network import Address, addresses
from launcher.facts.nvidia import gpu_pairs
from launcher.facts.rdma import Gid, RdmaPort
from launcher.hosts import Host
from launcher.plan.node_address import candidates, node_addresses
from launcher.ssh.host_connection import HostConnection

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


def output(**changed: str) -> str:
    sections = {
        "clock": "1.5",
        "user": "uid=7(ann) gid=8(staff) groups=8(staff)",
        "home": "/home/ann",
        "cores": "4",
    } | changed
    return "".join(f"\n@@{name}\n{text}" for name, text in sections.items()) + "\n@@end\n1.5\n"


def test_this_machine_answers_with_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as in the profiles of many clusters
    done = subprocess.run(["sh", "-c", SCRIPT, "sh", "gpus"], capture_output=True, text=True)
    found = parse(done.stdout, time.time(), time.time())
    assert abs(found.clock_skew) < 5
    assert found.cores == len(os.sched_getaffinity(0))
    assert Address("127.0.0.1", "lo") in found.addresses
    assert found.interface("lo") and found.network_stack
    assert found.home
    assert (found.uid, found.gid, found.hostname) == (os.getuid(), os.getgid(), platform.node())
    assert found.kernel == " ".join(os.uname()[i] for i in (0, 2, 4))
    assert found.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert (found.user or str(found.uid)) in (getpass.getuser(), str(os.getuid()))


@pytest.mark.parametrize("odd", ["", "1", "x" * 36, "0b6c0b3e-6e5c-4a1d-9a52-0c5f6e7d8a9b?"])
def test_a_boot_id_of_another_form_is_unknown(odd: str) -> None:
    known = "0b6c0b3e-6e5c-4a1d-9a52-0c5f6e7d8a9b"
    assert parse(output(boot=known)).boot_id == known
    assert parse(output(boot=odd)).boot_id == ""


def test_the_network_stack_is_known_only_with_its_machine_and_its_namespace() -> None:
    """In containers, several network stacks have one boot id."""
    assert parse(output(boot="b", network="net:[1]")).network_stack == "b net:[1]"
    assert parse(output(boot="b")).network_stack == ""
    assert parse(output(network="net:[1]")).network_stack == ""


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


def test_an_address_without_a_network_is_that_of_the_interface_that_ip_names() -> None:
    """As on Google Cloud, where the router is the only host on the link."""
    table = (
        "ens4\t00000000\t0100800A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "ens4\t0100800A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0\n"
    )
    fib = "|-- 10.128.0.{}\n/32 host LOCAL\n|-- 10.255.0.1\n/32 host LOCAL\n"
    rows = (
        "1: lo    inet 10.255.0.1/32 scope global lo\\       valid_lft forever\n"
        "2: ens4    inet 10.128.0.{}/32 metric 100 scope global dynamic ens4\\       valid_lft 3000sec\n"
    )
    one, two = (parse(output(net=table + (fib + rows).format(n, n))) for n in (2, 3))
    assert one.addresses == (Address("10.128.0.2", "ens4"),)
    assert candidates([Host("a"), Host("b")], [one, two]) == [[*one.addresses], [*two.addresses]]


def test_of_two_interfaces_in_one_network_each_has_its_own_address() -> None:
    """eth2 has an address, but no route: rules send its traffic to another table, as on AWS."""
    table = "".join(
        f"{nic}\t0000090A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n" for nic in ("eth0", "eth1")
    )
    fib = "".join(f"|-- 10.9.0.{n}\n/32 host LOCAL\n" for n in (5, 6, 7, 8))
    rows = "".join(
        f"{n}: {nic}    inet 10.9.0.{n}/24 scope global {nic}\n"
        for n, nic in ((5, "eth0"), (6, "eth1"), (7, "eth2"), (8, "lo"))
    )
    found = parse(output(net=table + fib + rows))
    assert [found.interface_of(f"10.9.0.{n}") for n in (5, 6, 7, 8)] == [
        "eth0",
        "eth1",
        "eth2",
        "eth0",
    ]
    assert {address.network for address in found.addresses} == {"10.9.0.0/24"}
    chosen = candidates([Host("a", interface="eth1"), Host("b")], [found, parse(output())])[0]
    assert chosen == [Address("10.9.0.6", "eth1")]


def test_thousands_of_routes_and_addresses_are_joined_in_a_moment() -> None:
    """What a host may print at most, 2 MB of them, took minutes."""
    routes = [f"e{n} 0000000A 00000000 1 0 0 0 000000FF" for n in range(10_000)]
    own = (f"10.0.{n >> 8}.{n & 255}" for n in range(10_000))
    lines = [line for ip in own for line in (f"|-- {ip}", "/32 host LOCAL")]
    began = time.process_time()
    assert {each.interface for each in addresses([*routes, *lines])} == {"e0"}
    assert time.process_time() - began < 5


def test_ipv6_addresses_without_link_local_ones() -> None:
    lines = (
        "fe80000000000000020c29fffe000001 02 40 20 80     eth0\n"
        "fd000000000000000000000000000002 02 40 00 80     eth0\n"
    )
    found = parse(output(net=ROUTES + FIB + lines))
    assert found.addresses[4:] == (Address("fd00::2", "eth0"),)
    assert found.network_of("fd00::2") == "fd00::/64"


def test_user_and_system() -> None:
    found = parse(output(system="Linux node1 6.1.0 x86_64"))
    assert (found.uid, found.user, found.gid) == (7, "ann", 8)
    assert (found.hostname, found.kernel) == ("node1", "Linux 6.1.0 x86_64")
    nameless = parse(output(user="uid=4711 gid=0(root) groups=0(root)"))
    assert (nameless.uid, nameless.user, nameless.gid) == (4711, "", 0)
    with pytest.raises(ValueError, match="`id` printed ''"):  # and not taken for root
        parse(output(user=""))


def test_listening_ports() -> None:
    lines = (
        "   0: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n"
        "   1: 00000000000000000000000000000000:0016 00000000:0000 0A 00000000:00000000\n"
    )
    assert parse(output(listening=lines)).listening == {29500, 22}


def test_a_port_that_is_listened_on_here_is_listed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = subprocess.run(["sh", "-c", SCRIPT, "sh"], capture_output=True, text=True)
        assert server.getsockname()[1] in parse(done.stdout).listening


def test_gpus_or_the_error_of_nvidia_smi() -> None:
    good = parse(output(gpus="0, GPU-a, NVIDIA H100, 81559\n1, GPU-b, NVIDIA H100, 81559\n"))
    assert [(g.index, g.uuid, g.memory_mib) for g in good.gpus] == [
        (0, "GPU-a", 81559),
        (1, "GPU-b", 81559),
    ]
    bad = parse(output(gpus="Failed to initialize NVML: Driver/library version mismatch\n"))
    assert bad.gpus == ()
    assert bad.gpu_error == "Failed to initialize NVML: Driver/library version mismatch"


def test_a_warning_of_nvidia_smi_hides_no_gpu() -> None:
    rows = "0, GPU-1, NVIDIA A100, 40960\nWARNING: infoROM is corrupted at gpu 0000:B3:00.0"
    found = parse(output(gpus=rows))
    assert ([gpu.uuid for gpu in found.gpus], found.gpu_error) == (["GPU-1"], None)


def test_a_gpu_that_shares_the_memory_of_the_cpu() -> None:
    (spark,) = parse(output(gpus="0, GPU-a, NVIDIA GB10, [N/A]\n")).gpus
    assert (spark.index, spark.name, spark.memory_mib) == (0, "NVIDIA GB10", None)


def answer_below(root: Path, *asked: str) -> Facts:
    """The script's answer with `root` in place of folders of /sys and /dev."""
    below = SCRIPT
    for name in ("class", "bus", "devices"):
        below = below.replace(f"/sys/{name}/", f"{root}/{name}/")
    for name in ("kfd", "dri", "infiniband"):
        below = below.replace(f"/dev/{name}", f"{root}/dev/{name}")
    done = subprocess.run(["sh", "-c", below, "sh", *asked], capture_output=True, text=True)
    assert not done.stderr
    return parse(done.stdout)


def write_tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


def test_amd_gpus_from_sysfs(tmp_path: Path) -> None:
    nodes = "class/kfd/kfd/topology/nodes"
    tree = {f"{nodes}/0/gpu_id": "0", f"{nodes}/0/name": "", "dev/kfd": "", "dev/dri/card0": ""}
    for node, unique, render in ((10, 255, 129), (2, 0, 128)):
        tree |= {
            f"{nodes}/{node}/gpu_id": f"{4000 + node}",
            f"{nodes}/{node}/name": "aldebaran",
            f"{nodes}/{node}/properties": f"simd_count 416\nunique_id {unique}\n"
            f"drm_render_minor {render}\ndomain 0\nlocation_id {unique * 256}",
        }
    tree["class/drm/renderD129/device/mem_info_vram_total"] = str(64 * 2**30)
    tree["bus/pci/drivers/amdgpu/0000:ff:00.0/local_cpulist"] = "0-1,4"
    tree["bus/pci/drivers/amdgpu/0000:ff:00.0/iommu_group/type"] = "DMA-FQ"
    tree["devices/system/cpu/online"] = "0-7"
    tree["class/drm/renderD129/device/hwmon/hwmon3/in0_label"] = "vddgfx"
    write_tree(tmp_path, tree)
    found = answer_below(tmp_path, "gpus")
    assert found.gpus == (
        Gpu(0, "", "AMD aldebaran", None, "amd", pci="0000:00:00"),
        Gpu(1, "GPU-00000000000000ff", "AMD aldebaran", 65536, "amd", False, "0000:ff:00",
            frozenset({0, 1, 4}), "DMA-FQ"),
    )  # fmt: skip
    assert found.all_cores == frozenset(range(8))
    assert found.has_amd_gpus
    assert found.gpu_groups == ((os.getgid(),) if os.getgid() else ())
    assert answer_below(tmp_path).gpus == ()  # not asked for


def test_cores_beyond_what_linux_supports_are_not_read() -> None:
    """64 GPUs, each next to 65,536 cores in 125 ranges, took 23 s and 400 MB."""
    assert len(core_list("0-8191")) == 8192
    assert core_list("0-8192") == frozenset()


def test_an_amd_gpu_that_is_part_of_a_processor_is_told_by_its_voltages(tmp_path: Path) -> None:
    """Its memory may be 512 MiB or 96 GiB, and KFD lists it as any other."""
    node = "class/kfd/kfd/topology/nodes/1"
    device = "class/drm/renderD128/device"
    write_tree(
        tmp_path,
        {
            f"{node}/gpu_id": "4001",
            f"{node}/name": "raphael",
            f"{node}/properties": "cpu_cores_count 0\nsimd_count 4\ndrm_render_minor 128",
            f"{device}/mem_info_vram_total": str(96 * 2**30),
            f"{device}/hwmon/hwmon1/in0_label": "vddgfx",
            f"{device}/hwmon/hwmon1/in1_label": "vddnb",
        },
    )
    [gpu] = answer_below(tmp_path, "gpus").gpus
    assert (gpu.name, gpu.integrated) == ("AMD raphael", True)


def test_of_two_vendors_nvidia_is_used() -> None:
    found = parse(output(gpus="0, GPU-a, NVIDIA H100, 81559", amd="1\t5\t0\traphael"))
    assert [gpu.vendor for gpu in found.gpus] == ["nvidia"]
    broken = parse(output(gpus="NVIDIA-SMI has failed", amd="1\t5\t0\traphael"))
    assert broken.gpus == () and broken.gpu_error


def test_rows_of_amd_gpus_that_make_no_sense_are_skipped() -> None:
    rows = (
        f"1\t{2**64}\t0\tx\n-1\t5\t0\tx\n2\t{'9' * 30}\t0\tx\n2\t5\t0\t{'x' * 99}\n3\t5\n4\t7\t0\t"
    )
    assert parse(output(amd=rows)).gpus == (
        Gpu(0, "", "AMD x", None, "amd"),
        Gpu(1, "GPU-0000000000000007", "AMD GPU", None, "amd"),
    )
    groups = f"44\n0\n{'9' * 30}\n-1\n109\n44"
    assert parse(output(gpugroups=groups)).gpu_groups == (44, 109)


def test_roce_ports_from_sysfs(tmp_path: Path) -> None:
    tree = {"dev/infiniband/uverbs0": ""}
    for device, state, layer in (
        ("mlx5_0", "4: ACTIVE", "Ethernet"),
        ("mlx5_1", "1: DOWN", "InfiniBand"),
    ):
        port = f"class/infiniband/{device}/ports/1"
        tree |= {
            f"{port}/state": state,
            f"{port}/link_layer": layer,
            f"{port}/rate": "2.5 Gb/sec (1X SDR)" if "DOWN" in state else "400 Gb/sec (4X NDR)",
            f"{port}/gids/0": "fe80:0000:0000:0000:0e42:a1ff:fe00:0001",
        }
    port = "class/infiniband/mlx5_0/ports/1"
    for index, version in ((2, "IB/RoCE v1"), (3, "RoCE v2")):
        tree |= {
            f"{port}/gids/{index}": "0000:0000:0000:0000:0000:ffff:0a00:0107",
            f"{port}/gid_attrs/types/{index}": version,
            f"{port}/gid_attrs/ndevs/0": "eth2",
        }
    write_tree(tmp_path, tree)
    found = answer_below(tmp_path)
    gids = (Gid(2, "10.0.1.7", "IB/RoCE v1"), Gid(3, "10.0.1.7", "RoCE v2"))
    assert found.rdma_ports == (
        RdmaPort("mlx5_0:1", "ACTIVE", True, 400, gids, "eth2"),
        RdmaPort("mlx5_1:1", "DOWN", False, 2),
    )
    assert found.infiniband == ("uverbs0",)
    assert found.rdma_ports[0].gid_of("10.0.1.7") == gids[1]


def test_ports_of_ethernet_from_sysfs(tmp_path: Path) -> None:
    tree = {}
    for name, kind in (("eth0", "1"), ("eth1", "1"), ("wlan0", "1"), ("ib0", "32"), ("veth0", "1")):
        tree |= {
            f"class/net/{name}/{key}": value for key, value in (("mtu", "9000"), ("type", kind))
        }
        tree |= {f"class/net/{name}/speed": "100000", f"class/net/{name}/operstate": "up"}
        tree |= {} if name == "veth0" else {f"class/net/{name}/device/vendor": "0x15b3"}
    tree |= {"class/net/eth1/upper_bond0/mtu": "", "class/net/wlan0/wireless/x": ""}
    write_tree(tmp_path, tree)
    nics = answer_below(tmp_path).interfaces
    assert {nic.name: nic.kind == "ethernet" for nic in nics} == {
        "eth0": True, "eth1": False, "wlan0": False, "ib0": False, "veth0": False,
    }  # fmt: skip
    assert (nics[0].mtu, nics[0].speed, nics[0].state) == (9000, 100000, "up")


def test_pairs_of_gpus_from_nvidia_smi() -> None:
    table = "\tGPU0\tGPU1\tNIC0\nGPU0\t X \tNV18\tPIX\t0-7\nGPU1\tNV18\t X \tSYS\nNIC0\tPIX"
    assert gpu_pairs(table.split("\n")) == {(0, 1): "NV18", (1, 0): "NV18"}
    assert gpu_pairs(["GPUs are fine", "GPU0", "GPUx\t X"]) == {}


def test_rows_of_rdma_ports_that_make_no_sense_are_skipped() -> None:
    good, gid = "port\tmlx5_0\t1\t4: ACTIVE\tEthernet\t", "gid\t3\t0a00:0001\tRoCE v2"
    bad = f"port\tmlx5 0;\t1\t4: ACTIVE\tEthernet\t\n{gid}"
    text = f"{gid}\n{bad}\n{good}\n{gid.replace('3', '9' * 9)}\n{gid}"
    (port,) = parse(output(rdma=text)).rdma_ports
    assert port == RdmaPort("mlx5_0:1", "ACTIVE", True, 0, (Gid(3, "10.0.0.1", "RoCE v2"),))


def test_a_clock_without_nanoseconds() -> None:
    text = output(clock="1795236370.%N").replace("@@end\n1.5", "@@end\n1795236371.%N")
    found = parse(text, 1795236360.0, 1795236364.0)
    assert (found.clock_skew, found.clock_error) == (8.5, 1.5)


def test_the_addresses_of_the_ssh_connection() -> None:
    found = parse(output(ssh="10.0.0.9 51234 10.0.0.1 22"))
    assert (found.ssh_client_ip, found.ssh_server_ip) == ("10.0.0.9", "10.0.0.1")


def test_a_shell_that_did_not_run_the_script() -> None:
    with pytest.raises(ValueError, match="did not finish"):
        parse("This account is currently not available.\n")


def test_a_slow_script_does_not_pass_for_a_wrong_clock() -> None:
    with contextlib.closing(HostConnection(Host("local", gpus=0))) as connection:
        found = gather_one(connection, check=["", ""])
    assert abs(found.clock_skew) <= found.clock_error + 0.05
    assert found.clock_error < 0.5


def test_control_characters_of_a_host_are_not_passed_on() -> None:
    found = parse(output(gpus="0, GPU-a, H100\x1b[2J\u202e, 81559\n", home="/home/a\x07"))
    assert (found.gpus[0].name, found.home) == ("H100", "/home/a")


NAMES = re.findall(r"(?:^|[ ;&])s (\w+)", SCRIPT, re.MULTILINE)
LINES = st.one_of(
    st.text(max_size=30),
    st.text("0123456789abcdefABCDEF.:|-/, \t%()=@\xb2", max_size=60),
    st.sampled_from([*ROUTES.splitlines(), *FIB.splitlines(), "|-- 999.1.1.1", "/32 host LOCAL"]),
    st.sampled_from(["path /x", "/d 1 1 1 1% /m", "eth0 ² up 9 plain", "9" * 5000, "0, 1, 2, 3"]),
    st.sampled_from(["port\tm\t1\t4: ACTIVE\tEthernet\t9 Gb", "gid\t3\t0a00:0001\tRoCE v2"]),
    st.sampled_from(["1\t255\t0\traphael", "44", "9" * 20]),
    st.sampled_from(["<nvidia_smi_log><gpu>", "<nvidia_smi_log><gpu/></nvidia_smi_log>", "@@end"]),
)


@given(st.dictionaries(st.sampled_from(NAMES), st.lists(LINES, max_size=4).map("\n".join)))
@example({"cores": "9" * 5000})
@example({"net": "|-- 1.2.3.999\n/32 host LOCAL\neth0 FF FF 0 0 0 0 0"})
@example({"net": "eth0\t00000000\t00000000\t1\t0\t0\t0\tF0F0F0F0"})
def test_any_output_is_read_or_refused_in_one_line(sections: dict[str, str]) -> None:
    for text in (output(**sections), output(**({"disk": ""} | sections))):
        try:
            parse(text)
        except ValueError as error:
            assert "\n" not in str(error)


def test_a_row_that_makes_no_sense_hides_no_other() -> None:
    bad = "eth0 00000000 00000000 1 0 0 0 F0F0F0F0\n|-- 1.2.3.999\n/32 host LOCAL\n"
    assert (
        parse(output(net=bad + ROUTES + FIB)).addresses == parse(output(net=ROUTES + FIB)).addresses
    )


def test_the_login_of_the_user_who_starts_ddpctl_is_not_how_this_machine_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever logs in to a head node has come from a laptop, whose address no other node can use."""
    monkeypatch.setenv("SSH_CONNECTION", "203.0.113.5 50000 198.51.100.7 22")
    here = gather_one(HostConnection(Host("local", gpus=0)))
    assert (here.ssh_client_ip, here.ssh_server_ip) == (None, None)
    bare = dataclasses.replace(here, addresses=())
    there = facts(ssh_client_ip="10.0.0.9")
    assert node_addresses([Host("local"), Host("b")], [bare, there])[0].ip == "10.0.0.9"
