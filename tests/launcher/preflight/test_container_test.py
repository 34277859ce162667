"""What the container test reports, and the findings that follow."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from healthy import IMAGE, cluster, machine, with_details, with_engine, with_facts

from launcher.errors import CommandFailed
from launcher.hosts import Host, Job
from launcher.plan.plan import Mount
from launcher.preflight.check import judge
from launcher.preflight.container_test import SCRIPT, container_for, needing_torch, parse_report
from launcher.preflight.findings import Finding
from launcher.preflight.fleet import Fleet
from launcher.preflight.machine import ContainerReport, Machine

GOOD = ContainerReport("3.11.9", "2.4.0+cu124", "12.4", "2.20.5", gpus=4)


def findings(machines: list[Machine], *reports: ContainerReport | None) -> list[Finding]:
    pairs = zip(machines, reports, strict=True)
    tested = [replace(made, report=report) for made, report in pairs]
    return judge(Fleet(cluster(), tested, IMAGE))


def test_a_good_report_gives_no_finding() -> None:
    assert findings([machine(0)], GOOD) == []
    assert findings([machine(0)], None) == []
    cpu = replace(machine(0), hosts=(Host("gpu1", gpus=0),))
    assert findings([cpu], ContainerReport("3.11.9", "2.13.0+cpu")) == []


@pytest.mark.parametrize(
    ("report", "check", "what", "remedy"),
    [
        (replace(GOOD, torch="", torch_error="ModuleNotFoundError: No module named 'torch'"),
         "image", "torch cannot be imported in the image: ModuleNotFoundError", "has torch"),
        (replace(GOOD, write_error="[Errno 13] Permission denied: '/output/.check'"),
         "disk", "cannot write to ~/.ddpctl: [Errno 13]", "SELinux"),
        (replace(GOOD, gpus=0, torch="2.4.0+cpu", cuda=""),
         "gpus", "torch 2.4.0+cpu in the image sees no GPU (built without CUDA)", "CUDA"),
        (ContainerReport(error=CommandFailed("could not start a container: no runtime", "install it")),
         "image", "could not start a container: no runtime", "install it"),
    ],
)  # fmt: skip
def test_a_bad_report(report: ContainerReport, check: str, what: str, remedy: str) -> None:
    (finding,) = findings([machine(0)], report)
    assert (finding.severity, finding.check) == ("failure", check)
    assert what in finding.what
    assert remedy in finding.remedy


def test_versions_are_the_same_on_all_nodes() -> None:
    machines = [machine(i) for i in range(3)]
    assert findings(machines, GOOD, None, GOOD) == []
    other = replace(GOOD, nccl="2.18.1", python="3.10.1")
    found = findings(machines, GOOD, other, GOOD)
    assert [(f.severity, f.host, f.what) for f in found] == [
        ("failure", "gpu2", "its image has nccl 2.18.1, while images on other hosts have 2.20.5"),
        ("warning", "gpu2", "its image has python 3.10.1, while images on other hosts have 3.11.9"),
    ]


def test_the_container_is_of_the_kind_that_a_launch_starts() -> None:
    two = replace(machine(1), hosts=(Host("gpu2", gpus=(0, 1)), Host("gpu2", gpus=(3,))))
    made = container_for(two, Job(image="x:1"), "/home/ubuntu/.ddpctl/c", "tok", "torch")
    assert (made.name, made.image, made.user) == ("ddpctl-check-tok-1", "x:1", "1000:1000")
    assert made.gpus == (0, 1, 3)
    assert made.mounts == (Mount("/home/ubuntu/.ddpctl/c", "/output"),)
    assert container_for(two, Job(user="root"), "/", "t", "").user == "0:0"


def test_torch_is_imported_once_for_each_image_and_where_gpus_must_be_seen() -> None:
    cpu = [with_details(with_facts(machine(i), gpus=()), kernel_driver=None) for i in range(4)]
    cpu[3] = with_engine(cpu[3], image=replace(IMAGE, layers=("other",)))
    assert needing_torch(cpu) == {0, 3}
    assert needing_torch([*cpu[:2], machine(2)]) == {0, 2}


def test_the_script_says_one_line_and_other_output_is_passed_over() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, ""], capture_output=True, text=True, check=True
    )
    found = parse_report("banner of the image\n" + done.stdout)
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert (found.error, found.torch_error) == (None, "")
    assert found.write_error  # there is no /output here
    assert "exec: no such file" in str(parse_report("exec: no such file").error)
    assert parse_report("").error


TORCH = """
class cuda:
    device_count = staticmethod(lambda: 2)
    nccl = type("nccl", (), {"version": staticmethod(lambda: (2, 20, 5))})
    get_device_properties = staticmethod(lambda i: type("Gpu", (), {"major": 9, "minor": i}))
    get_arch_list = staticmethod(lambda: ["sm_90", "gfx90a:xnack"])
class version:
    cuda, hip = "12.4", None
__version__, __path__ = "2.4.0", __path__
"""
BROKEN = TORCH.replace("lambda i:", "lambda i: 1 / 0 and")


@pytest.mark.parametrize(
    ("torch", "expected"),
    [
        (TORCH, {"torch": "2.4.0", "cuda": "12.4", "nccl": "2.20.5", "gpus": 2,
                 "architectures": ("sm_90", "sm_91"), "built_for": ("sm_90", "gfx90a")}),
        (BROKEN, {"torch": "2.4.0", "nccl": "2.20.5", "cuda_error": "division by zero"}),
        ("raise OSError('no libcudart')", {"torch": "", "torch_error": "OSError: no libcudart"}),
    ],
)  # fmt: skip
def test_the_script_says_what_torch_says_if_it_is_asked(
    torch: str, expected: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(torch)
    (tmp_path / "torch/distributed.py").write_text("def is_nccl_available(): return True\n")

    def said(argument: str) -> ContainerReport:
        argv = [sys.executable, "-c", SCRIPT, argument]
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return parse_report(subprocess.run(argv, env=env, capture_output=True, text=True).stdout)

    report = said("torch")
    assert {name: getattr(report, name) for name in expected} == expected
    assert (said("").torch, said("").torch_error) == ("", "")


@pytest.mark.parametrize("said", ["[1]", "{", '"x"', '{"gpus": "many", "torch": {"a": 1}}'])
def test_an_image_may_print_anything(said: str) -> None:
    report = parse_report(f"ddpctl-check {said}\n")
    assert report.gpus == 0 and isinstance(report.torch, str)
