"""Apptainer: what its command line says, what it checks on a host, and how its image file gets there."""

from __future__ import annotations

import csv
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from host_facts import facts
from push_machines import Machines, home, machines, push_to  # noqa: F401 # fixtures

from launcher.engines import choose
from launcher.engines.apptainer import CHECK, PROBLEMS, Apptainer, exec_arguments
from launcher.engines.choose import engine_traits
from launcher.engines.engine_info import ImageInfo
from launcher.errors import CommandFailed, HostsFileError, PushFailed
from launcher.hosts import Host, parse
from launcher.plan.build import PlanInputs, build_plan
from launcher.plan.launch_options import LaunchOptions
from launcher.plan.plan import Mount, Plan
from launcher.push.image import sif
from launcher.push.push_progress import PushProgress
from launcher.ssh.host_connection import HostConnection
from launcher.terminal.console import Console


def planned(text: str) -> Plan:
    return build_plan(
        parse(text, "hosts.yaml"),
        engine_traits("apptainer"),
        LaunchOptions(),
        run_id="r1",
        owner="me",
        inputs=PlanInputs((facts(),), image_digest="d1", dataset_digest="d2"),
    )


def test_the_job_sees_its_folders_where_docker_mounts_them() -> None:
    [node] = planned("hosts: [a]\njob: {engine: apptainer, workdir: ., dataset: ./data}").nodes
    container = node.container
    assert container.image == "/home/ann/.ddpctl/images/d1/image.sif"
    assert container.env["DDPCTL_DATA_DIR"] == "/data"
    words = exec_arguments(container, [Mount("/somewhere", "/tmp")])
    assert words[:5] == ["--silent", "exec", "--cleanenv", "--no-mount", "home,cwd,tmp"]
    assert words[-1] == container.image
    assert words[words.index("--pwd") + 1] == "/workspace"
    mounts = [next(csv.reader([words[i + 1]])) for i, w in enumerate(words) if w == "--mount"]
    assert mounts[0] == ["type=bind", "source=/somewhere", "destination=/tmp"]
    source = "source=/home/ann/.ddpctl/datasets/d2"
    assert ["type=bind", source, "destination=/data", "ro"] in mounts


def test_any_character_of_a_path_stays_a_part_of_the_path() -> None:
    [node] = planned("hosts: [a]\njob: {engine: apptainer, mounts: ['/a, \"b\":/c']}").nodes
    words = exec_arguments(node.container, [])
    rows = [next(csv.reader([word])) for word in words if word.startswith('"type=')]
    assert ["type=bind", 'source=/a, "b"', "destination=/c"] in rows


@pytest.mark.parametrize(
    ("gpus", "vendor", "flag"), [("all", "nvidia", "--nv"), ((1,), "amd", "--rocm"), ((), "", "")]
)
def test_gpus_need_the_flag_of_their_vendor(
    gpus: str | tuple[int, ...], vendor: str, flag: str
) -> None:
    [node] = planned("hosts: [a]").nodes
    container = replace(node.container, gpus=gpus, gpu_vendor=vendor)
    assert [w for w in exec_arguments(container, []) if w in ("--nv", "--rocm")] == [flag][
        : bool(flag)
    ]


def test_gpus_of_other_runs_are_hidden_by_a_variable() -> None:
    [node] = planned("hosts: [{host: a, gpus: [1]}]").nodes
    assert node.container.env["CUDA_VISIBLE_DEVICES"] == "1"
    assert node.container.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"  # as nvidia-smi counts


@pytest.mark.parametrize("key", ["tmpfs: {/a: 1g}", "user: root", "cap_add: [SYS_PTRACE]"])
def test_what_it_cannot_set_is_refused(key: str) -> None:
    with pytest.raises(
        HostsFileError, match="with engine: apptainer; remove it, or set engine: docker"
    ):
        parse(f"hosts: [a]\njob:\n  engine: apptainer\n  {key}\n", "hosts.yaml")


def test_an_image_file_is_a_path_and_needs_apptainer(tmp_path: Path) -> None:
    text = "hosts: [a]\njob: {engine: apptainer, image: ./My Images/train.sif}"
    job = parse(text, str(tmp_path / "hosts.yaml")).job
    assert job.image == f"{tmp_path}/My Images/train.sif"
    with pytest.raises(HostsFileError, match=r"found a [.]sif file with engine: docker"):
        parse("hosts: [a]\njob: {image: ./train.sif}", "hosts.yaml")


@pytest.mark.parametrize(
    ("programs", "code"),
    [
        ({}, 3),
        ({"apptainer": "", "unshare": "exit 1"}, 4),
        ({"apptainer": "", "unshare": "", "squashfuse": ""}, 0),
        ({"apptainer": "", "unshare": ""}, 6),
    ],
)
def test_a_host_says_why_it_cannot_run_images(
    programs: dict[str, str], code: int, tmp_path: Path
) -> None:
    if code in (0, 6) and not os.access("/dev/fuse", os.W_OK):
        pytest.skip("no /dev/fuse")
    for name in ("sed", "sh"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(["/bin/sh", "-c", CHECK], env={"PATH": str(tmp_path)}, check=False)
    assert done.returncode == code


def test_every_reason_why_a_host_cannot_run_images_has_a_remedy() -> None:
    assert {*map(int, re.findall(r"\bexit (\d)", CHECK))} == {0, *PROBLEMS}


def test_a_missing_apptainer_is_one_line_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere:/bin")
    monkeypatch.setattr("launcher.engines.apptainer.CHECK", "exit 3")
    with pytest.raises(CommandFailed, match="Apptainer is not installed; install it on that host"):
        Apptainer(HostConnection(Host("local"))).engine_info("any")


def test_an_image_file_is_pushed_once_and_the_same_bytes_are_the_same_image(
    machines: Machines,  # noqa: F811
    tmp_path: Path,
) -> None:
    [machine] = machines(1)
    for name in ("a.sif", "b.sif"):
        (tmp_path / name).write_bytes(b"image")
    first = push_to([machine], engine="apptainer", image=str(tmp_path / "a.sif"))
    second = push_to([machine], engine="apptainer", image=str(tmp_path / "b.sif"))
    [tree] = machine.trees("images")
    assert (tree / "image.sif").read_bytes() == b"image"
    assert first.report.image_digest == second.report.image_digest == tree.name
    [host] = second.report.hosts
    assert host.image == "present"


def test_an_image_is_converted_once(
    home: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Store:
        def inspect(self, name: str) -> ImageInfo | None:
            return ImageInfo("id", (), fingerprint=name) if name == "mine:1" else None

        def save(self, name: str) -> list[bytes]:
            return [b"archive of ", name.encode()]

    for module in (sif, choose):
        monkeypatch.setattr(module, "images_of", lambda *_: Store())
    progress = PushProgress([], Console(quiet=True))
    with pytest.raises(PushFailed, match="this machine's Docker does not have other:1"):
        sif.image_file("other:1", progress)
    monkeypatch.setenv("PATH", "/bin")
    with pytest.raises(
        PushFailed, match="ddpctl needs apptainer to convert mine:1, but it is not installed"
    ):
        sif.image_file("mine:1", progress)
    apptainer = tmp_path / "apptainer"  # build --disable-cache FILE docker-archive:ARCHIVE
    apptainer.write_text('#!/bin/sh\necho once >> "$HOME/calls"; cat "${4#*:}" > "$3"\n')
    apptainer.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    trees = [sif.image_file("mine:1", progress) for _ in range(2)]
    assert (home / "calls").read_text() == "once\n"
    assert trees[0].manifest == trees[1].manifest
    [entry] = trees[0].manifest.entries
    assert Path(os.fsdecode(trees[0].path(entry))).read_bytes() == b"archive of mine:1"
    assert sif.converted_file("mine:1") == {trees[0].manifest.digest}
    assert sif.converted_file("other:1") == set()
