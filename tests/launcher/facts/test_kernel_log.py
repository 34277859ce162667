"""What a kernel has logged about GPUs and memory."""

from __future__ import annotations

import time

from launcher.facts.kernel_log import MOST, parse_kernel_log
from launcher.supervisor.events import GpuLoad

TEXT = """gpu GPU-a, 00000000:07:00.0
gpu GPU-b, 00000000:0B:00.0
uptime 1000.5
[  100.000001] NVRM: Xid (PCI:0000:07:00): 79, pid=1, GPU has fallen off the bus.
[  990.123456] host kernel: NVRM: Xid (PCI:0000:0b:00): 48, pid=1, DBE
[  995.000000] Out of memory: Killed process 7 (python)
"""


def test_only_what_happened_since_the_start_counts() -> None:
    log = parse_kernel_log(TEXT, 60.0)
    assert [line[:13] for line in log.lines] == ["[  990.123456", "[  995.000000"]
    assert log.xids == ((log.pci["GPU-b"], 48),)
    assert len(parse_kernel_log(TEXT, 2000.0).xids) == 2


def test_a_line_without_a_time_counts() -> None:
    log = parse_kernel_log("load 3, 5, 81920, 345, 40, 3\nload broken\nuptime 5.0", 1.0)
    assert log.loads == (GpuLoad(3, 5, 81920, 345, 40, 3),) and log.lines == ()
    log = parse_kernel_log("NVRM: Xid (PCI:0000:0b:00): 48, DBE\nuptime 5.0\n", 1.0)
    assert [number for _, number in log.xids] == [48]


def test_a_log_without_end_is_read_in_a_moment() -> None:
    lost = "".join(f"[1.0] NVRM: Xid (PCI:0000:{n:02x}:00): 79, x\n" for n in range(200)) * 5000
    began = time.process_time()
    log = parse_kernel_log(lost, 1.0)
    log.addresses(["GPU-1"])
    assert time.process_time() - began < 0.5 and len(log.lines) <= MOST


def test_a_gpu_that_no_longer_answers_has_the_address_in_its_errors() -> None:
    log = parse_kernel_log(TEXT.replace("gpu GPU-b, 00000000:0B:00.0\n", ""), 60.0)
    assert log.addresses(["GPU-a", "GPU-b"]) == (log.pci["GPU-a"], log.xids[0][0])


def test_lines_that_are_neither_are_only_kept() -> None:
    assert parse_kernel_log("gpu x\nuptime y\n", 1.0).xids == ()
