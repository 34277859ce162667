"""examples/: each script alone and on two ranks, its hosts file, and the commands of its README."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from forked_ddpctl import forked_ddpctl
from quick_torchrun import python_with_quick_torchrun
from trainer_ranks import newest_state, python, same, torchrun

import launcher
from trainer.data.synthetic import synthetic
from trainer.tools.data_command import write_cifar10

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent for path in (ROOT / "examples").glob("*/hosts.yaml"))
# Lightning imports torchvision, which may be a CUDA build beside a torch for the CPU.
ON_CPU = f"""
import runpy, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torchvision_on_cpu
del sys.path[0], sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# torch 2.13 hangs now and then if DDP is the last to hold a Gloo group: DDP is destroyed with the
# interpreter lock, the group waits for its thread, and the thread waits for the lock.
WITHOUT_DDP_AT_THE_END = """
import gc, runpy, sys
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

def destroy_process_group(group=None):
    assert not any(type(each) is DistributedDataParallel for each in gc.get_objects())
    destroy(group)

destroy = torch.distributed.destroy_process_group
torch.distributed.destroy_process_group = destroy_process_group
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
assert not torch.distributed.is_initialized()
"""
SMALL = ("--model", "resnet8", "--batch_size", "64")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_cifar10(synthetic(500, 100, 10, 32), tmp_path)
    return tmp_path


def run(ranks: int, folder: Path, example: str, *arguments: object) -> list[str]:
    """What the example prints, started in `folder` as torchrun starts it."""
    checked = folder / "checked.py"
    checked.write_text(WITHOUT_DDP_AT_THE_END)
    script = ROOT / "examples" / example
    done = torchrun(ranks, [checked, script, *arguments], folder, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, "\n".join(done.stdout + done.stderr)
    return done.stdout


def test_two_nodes_go_on_where_they_were_stopped(images: Path) -> None:
    common = (*SMALL, "--data", images, "--learning_rate", "0.05")
    script = "two_nodes_with_resume/resnet_ddp.py"
    first = run(2, images, script, *common, "--num_epochs", 1)
    assert len(first) == 1 and first[0].startswith("epoch 1: accuracy 0.")
    then = run(2, images, script, *common, "--num_epochs", 2, "--resume")
    assert then[0] == "going on after epoch 1"
    assert [line.split(":")[0] for line in then[1:]] == ["epoch 2"]
    straight = run(2, images, script, *common, "--num_epochs", 2)
    assert straight[1:] == then[1:]  # momentum, order and crops were the same


def test_a_platforms_arguments_are_understood(tmp_path: Path) -> None:
    script = "platform_arguments/train_cifar.py"
    asked = ("--custom_data", "true", "--enable_gpu", "false", "--world_size", 1, "--rank", 0)
    said = run(2, tmp_path, script, *SMALL, *asked, "--epochs", 1)
    accuracy = float(said[-1].rsplit(" ", 1)[1])
    assert accuracy > 0.5  # chance is 0.1: its images can be learned
    assert (tmp_path / "output" / "epoch_1.pth").exists()


def test_the_minimal_demo_learns_and_one_rank_prints(tmp_path: Path) -> None:
    said = run(2, tmp_path, "minimal_demo/ddp_demo.py", "--epochs", 3, "--dataset-size", 512)
    steps = [line for line in said if line.startswith("epoch")]
    assert len(steps) == 3 * 4  # 512 images, 2 ranks, 64 each, and none printed twice
    assert float(steps[-1].split()[-1]) < 0.5  # below 1.4612, where a second softmax holds it


def test_the_minimal_demo_is_one_process_without_torchrun(tmp_path: Path) -> None:
    script = ROOT / "examples" / "minimal_demo" / "ddp_demo.py"
    done = python([script, "--epochs", 1, "--dataset-size", 512], tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"rank 0 of 1: cpu", "rank 0 of 1: cuda:0"} & set(done.stdout)


def test_four_modes_make_a_table(tmp_path: Path) -> None:
    asked = ("--model", "resnet8", "--synthetic", 512, "--epochs", 1, "--batch_size", 64)
    said = run(2, tmp_path, "four_modes/compare.py", *asked)
    assert [line.split()[0] for line in said] == ["mode", "DP", "DDP", "DP+AMP", "DDP+AMP"]
    assert all(float(line.split()[2]) > 0 for line in said[1:])
    few = [ROOT / "examples/four_modes/compare.py", "--synthetic", 200]
    done = torchrun(1, few, tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 1
    assert done.stderr == ["--batch_size 256: there are only 200 training images"]


def test_a_network_and_data_of_ones_own_resume_bitwise(tmp_path: Path) -> None:
    example = ROOT / "examples" / "own_model"
    assert len(re.findall(r"^.*\S", (example / "shapes.py").read_text(), re.M)) <= 20
    own = yaml.safe_load((example / "hosts.yaml").read_text())["job"]["command"][:6]

    def train(out: str, *flags: object) -> dict[str, object]:
        command = [*own, "--out", tmp_path / out, *flags]
        command += ["--global-batch", 100, "--device", "cpu", "--schedule", "constant"]
        command += ["--warmup-epochs", 0]
        done = torchrun(2, command, tmp_path, PYTHONPATH=f"{ROOT}:{example}")
        assert done.returncode == 0, "\n".join(done.stdout + done.stderr)
        return newest_state(tmp_path / out)

    whole = train("whole", "--max-steps", 40)
    train("part", "--max-steps", 25)  # in the middle of the second epoch
    assert same(train("part", "--max-steps", 40, "--resume", "auto"), whole)
    status = json.loads((tmp_path / "whole" / "status.json").read_text())
    assert status["top1"] > 0.9


def test_a_hugging_face_script_trains_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    few = ("--sentences", 256)
    run(2, tmp_path, "hugging_face/train.py", *few, "--steps", 4, "--resume")  # from nothing
    run(2, tmp_path, "hugging_face/train.py", *few, "--steps", 6, "--resume")
    saved = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert {"checkpoint-4", "checkpoint-6"} <= saved


def test_accelerate_resumes_also_without_a_checkpoint_and_beside_hidden_and_partial_ones(
    tmp_path: Path,
) -> None:
    pytest.importorskip("accelerate")
    (tmp_path / "checkpoints" / ".before-attempt-2").mkdir(parents=True)  # what ddpctl replaced
    (tmp_path / "checkpoints" / "epoch-1").mkdir()  # a rank was killed while it saved this
    for epochs, printed in ((1, ["epoch 1"]), (2, ["epoch 2"])):
        said = run(2, tmp_path, "accelerate/train.py", "--epochs", epochs, "--resume")
        assert [line.partition(":")[0] for line in said] == printed


DEEPSPEED = """
# What DeepSpeed does with checkpoints: rank 0 writes `latest`, which other hosts lack or have from before.
import json
from pathlib import Path
import torch
from torch import distributed as dist

def init_distributed():
    dist.init_process_group("gloo")

def initialize(model, model_parameters, training_data, config):
    return Engine(model.bfloat16()), None, [training_data[:32]], None

class Engine:
    device = "cpu"

    def __init__(self, model):
        self.model = model

    def __call__(self, inputs):
        return self.model(inputs)

    def backward(self, loss):
        loss.backward()

    def step(self):
        pass

    def file(self, folder, name):
        return Path(f"{folder}-of-rank-{dist.get_rank()}" if dist.get_rank() else folder, name)

    def save_checkpoint(self, folder, client_state):
        tag = f"global_step{client_state['epoch']}"
        self.file(folder, tag).mkdir(parents=True)
        self.file(folder, f"{tag}/state").write_text(json.dumps(client_state))
        if dist.get_rank() == 0 or tag == "global_step1":
            self.file(folder, "latest").write_text(tag)

    def load_checkpoint(self, folder, tag=None):
        latest = self.file(folder, "latest")
        if tag is None and not latest.exists():
            return None, None
        text = self.file(folder, f"{tag or latest.read_text()}/state").read_text()
        return folder, json.loads(text)
"""


def test_deepspeed_resumes_from_rank_0s_newest_checkpoint_or_without_one(tmp_path: Path) -> None:
    (tmp_path / "deepspeed.py").write_text(DEEPSPEED)
    script, library = ROOT / "examples/deepspeed/train.py", f"{tmp_path}:{ROOT}"
    for epochs in (1, 2, 3):
        asked = [script, "--epochs", epochs, "--resume"]
        done = torchrun(2, asked, tmp_path, PYTHONPATH=library)
        assert done.returncode == 0, done.stderr
        assert [line.partition(":")[0] for line in done.stdout] == [f"epoch {epochs}"]
    for folder in ("checkpoints", "checkpoints-of-rank-1"):
        assert len([*(tmp_path / folder).glob("global_step*")]) == 3


@pytest.mark.parametrize("example", ["accelerate", "lightning"])
def test_other_frameworks_train_on_two_nodes(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = tmp_path / "code"
    shutil.copytree(ROOT / "examples" / example, folder)
    (folder / "on_cpu.py").write_text(ON_CPU)
    command = yaml.safe_load((folder / "hosts.yaml").read_text())["job"]["command"]
    nodes, command = ["local:0", "local:0"], ["on_cpu.py", *command]
    python = python_with_quick_torchrun(tmp_path)
    job = {"engine": "process", "python": python, "workdir": folder}
    run = launcher.launch(nodes, command, check=False, **job)
    assert run.wait(timeout=250) == "SUCCEEDED", list(run.logs())
    accuracies = [line for line in run.logs() if "accuracy" in line]
    assert [line.rpartition(" ")[0] for line in accuracies] == [
        f"[local:0] epoch {epoch}: accuracy" for epoch in (1, 2, 3)
    ]
    assert float(accuracies[-1].split()[-1]) > 0.9
    assert list(tmp_path.glob(".ddpctl/runs/*/checkpoints/*"))


def upstream(folder: Path) -> str | None:
    """The folder that the README clones a repository into."""
    cloned = re.search(r"^git clone \S+ (\S+)$", (folder / "README.md").read_text(), re.MULTILINE)
    return cloned and cloned[1]


def test_the_gallery_lists_every_example() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text()
    assert sorted(re.findall(r"(?m)^\| \[(\w+)\]", page)) == [folder.name for folder in FOLDERS]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_hosts_file_runs_the_script_beside_it(folder: Path) -> None:
    job = yaml.safe_load((folder / "hosts.yaml").read_text())["job"]
    if clone := upstream(folder):
        assert (folder / job["workdir"]).is_relative_to(ROOT / clone)
    elif job["command"][0] == "-m":
        assert "shapes" in job["command"][3] and (folder / job["workdir"] / "shapes.py").is_file()
    else:
        assert (folder / job["workdir"] / job["command"][0]).is_file()


def commands() -> list[tuple[Path, str]]:
    """Every `ddpctl launch ...` in the READMEs."""
    found = []
    for folder in FOLDERS:
        text = (folder / "README.md").read_text()
        lines = re.findall(r"^(ddpctl launch .*)$|`(ddpctl launch [^`]*)`", text, re.MULTILINE)
        assert lines, f"{folder.name}: no ddpctl launch in its README"
        found += [(folder, one or other) for one, other in lines]
    return found


@pytest.mark.parametrize(("folder", "command"), commands())
def test_the_readmes_commands_make_a_plan(folder: Path, command: str, tmp_path: Path) -> None:
    copy = tmp_path / "examples" / folder.name
    copy.mkdir(parents=True)
    for file in folder.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    job = yaml.safe_load((folder / "hosts.yaml").read_text())["job"]
    if "dataset" in job:
        (copy / job["dataset"]).mkdir()  # the reader's images
    if upstream(folder):  # what the reader clones
        (copy / job["workdir"]).mkdir(parents=True)
        (copy / job["workdir"] / job["command"][0]).touch()
    before, _, after = command.partition(" -- ")
    words = [*shlex.split(before)[1:], "--dry-run", *(["--", *shlex.split(after)] if after else [])]
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    line = [sys.executable, "-m", "launcher", *words]
    done = subprocess.run(
        line,
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        preexec_fn=forked_ddpctl(line, env),
    )
    assert done.returncode == 0, done.stderr
    assert job["command"][0] in done.stdout + done.stderr
