"""What a trial container tells, and what is made of it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from healthy import IMAGE, cluster, machine, with_details, with_docker, with_facts

from launcher.hosts import Host, Job
from launcher.plan.plan import Mount
from launcher.preflight.container_test import (
    SCRIPT,
    Trial,
    check_trial,
    check_versions,
    needing_torch,
    parse_trial,
    trial_container,
)

GOOD = Trial("3.11.9", "2.4.0+cu124", "12.4", "2.20.5", gpus=4)


def test_a_good_trial_is_no_finding() -> None:
    assert check_trial(machine(0), GOOD) == []
    assert check_trial(machine(0), None) == []
    cpu = replace(machine(0), hosts=(Host("gpu1", gpus=0),))
    assert check_trial(cpu, Trial("3.11.9", "2.13.0+cpu")) == []


@pytest.mark.parametrize(
    ("trial", "check", "what", "remedy"),
    [
        (replace(GOOD, torch="", torch_error="ModuleNotFoundError: No module named 'torch'"),
         "image", "torch cannot be imported in the image: ModuleNotFoundError", "with torch"),
        (replace(GOOD, write_error="[Errno 13] Permission denied: '/output/.check'"),
         "disk", "may not write below ~/.ddpctl: [Errno 13]", "SELinux"),
        (replace(GOOD, gpus=0, torch="2.4.0+cpu", cuda=""),
         "gpus", "torch 2.4.0+cpu in the image sees no GPU (built for CUDA none)", "CUDA"),
        (Trial(error="gpu1: could not start a container for trial: no runtime; install it"),
         "image", "could not start a container for trial: no runtime", "install it"),
    ],
)  # fmt: skip
def test_a_bad_trial(trial: Trial, check: str, what: str, remedy: str) -> None:
    (finding,) = check_trial(machine(0), trial)
    assert (finding.severity, finding.check) == ("failure", check)
    assert what in finding.what
    assert remedy in finding.remedy


def test_versions_are_the_same_on_all_nodes() -> None:
    machines = [machine(i) for i in range(3)]
    assert check_versions(machines, [GOOD, None, GOOD], cluster()) == []
    other = replace(GOOD, nccl="2.18.1", python="3.10.1")
    found = check_versions(machines, [GOOD, other, GOOD], cluster())
    assert [(f.severity, f.host, f.what) for f in found] == [
        ("failure", "gpu2", "nccl 2.18.1 in its image, and other hosts have 2.20.5"),
        ("warning", "gpu2", "python 3.10.1 in its image, and other hosts have 3.11.9"),
    ]


def test_the_container_is_of_the_kind_that_a_launch_starts() -> None:
    two = replace(machine(1), hosts=(Host("gpu2", gpus=(0, 1)), Host("gpu2", gpus=(3,))))
    assert two.facts is not None
    made = trial_container(two, two.facts, Job(image="x:1"), "/home/ubuntu/.ddpctl/c", "tok")
    assert (made.name, made.image, made.user) == ("ddpctl-check-tok-1", "x:1", "1000:1000")
    assert made.gpus == (0, 1, 3)
    assert made.mounts == (Mount("/home/ubuntu/.ddpctl/c", "/output"),)
    assert trial_container(two, two.facts, Job(user="root"), "/", "t").user == "0:0"


def test_torch_is_imported_once_for_each_image_and_where_gpus_must_be_seen() -> None:
    cpu = [with_details(with_facts(machine(i), gpus=()), kernel_driver=None) for i in range(4)]
    cpu[3] = with_docker(cpu[3], image=replace(IMAGE, layers=("other",)))
    assert needing_torch(cpu) == {"gpu1", "gpu4"}
    assert needing_torch([*cpu[:2], machine(2)]) == {"gpu1", "gpu3"}


def test_the_script_says_one_line_and_other_output_is_passed_over() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, ""], capture_output=True, text=True, check=True
    )
    found = parse_trial("banner of the image\n" + done.stdout)
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert (found.error, found.torch_error) == ("", "")
    assert found.write_error  # there is no /output here
    assert "exec: no such file" in parse_trial("exec: no such file").error
    assert parse_trial("").error
