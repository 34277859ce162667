"""The demo: two nodes on this machine, no Docker, no SSH, no root; real images where there are any.

    python scripts/demo.py [FOLDER]        (make demo does the set-up first; FOLDER: .demo)

Everything that ddpctl does for a cluster happens here too: a plan, two supervisors, two torchruns
that rendezvous, merged logs, checkpoints. Only what holds a node is a process, not a container.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # Debian: dataset-fashion-mnist
EPOCHS = 3
LAUNCHER = [sys.executable, "-m", "launcher"]
TRAINER = [sys.executable, "-m", "trainer"]


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".demo").absolute()
    folder.mkdir(exist_ok=True)
    data = images(folder / "data")
    hosts = hosts_file(folder, data)
    say(f"$ ddpctl launch {hosts} --name demo")
    began = time.monotonic()
    code = subprocess.call([*LAUNCHER, "launch", str(hosts), "--name", "demo"])
    if code != 0:
        say(f"the run ended with exit code {code}; its lines above say why")
        return code
    results = folder / "results"
    shutil.rmtree(results, ignore_errors=True)
    fetch = [*LAUNCHER, "fetch", "--to", str(results), "-q"]
    subprocess.run(fetch, stdout=subprocess.DEVNULL, check=True)
    summary(results, data, time.monotonic() - began)
    return 0


def images(folder: Path) -> Path | None:
    """Real images, or None for the trainer's synthetic ones; says which."""
    if (folder / "cifar-10-batches-py").is_dir():
        say(f"images: those in {folder}")
        return folder
    if FASHION_MNIST.is_dir():
        say(f"images: Fashion-MNIST from {FASHION_MNIST}, 70,000 real ones in CIFAR-10's layout")
        make = [*TRAINER, "data", "make", "--from", "fashion-mnist", "--to", str(folder)]
        if subprocess.call(make) == 0:
            return folder
    else:
        say("images: asking the internet for CIFAR-10 (170 MB)")
        if subprocess.call([*TRAINER, "data", "fetch", "--to", str(folder)]) == 0:
            return folder
    say("images: none to be had, so the learnable synthetic set")
    return None


def hosts_file(folder: Path, data: Path | None) -> Path:
    """Two nodes on this machine; a GPU each where there are two, the CPU otherwise."""
    gpus = [[0], [1]] if gpu_count() >= 2 else [0, 0]
    command = ["-m", "trainer", "--model", "resnet8", "--epochs", str(EPOCHS), "--amp", "bf16"]
    # 91.6 % on Fashion-MNIST; with random crops, which pay off in longer runs, 89.7 %.
    command += ["--global-batch", "128", "--lr", "0.2", "--schedule", "triangular", "--no-augment"]
    command += ["--data", str(data) if data else "synthetic"]
    document = {
        "hosts": [{"host": "local", "gpus": gpu} for gpu in gpus],
        "job": {
            "engine": "process",
            "master_port": "auto",
            "command": command,
        },
    }
    path = folder / "hosts.yaml"
    path.write_text(json.dumps(document, indent=2) + "\n")  # JSON is YAML too
    return path


def gpu_count() -> int:
    if not shutil.which("nvidia-smi"):
        return 0
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return len(done.stdout.splitlines()) if done.returncode == 0 else 0


def summary(results: Path, data: Path | None, seconds: float) -> None:
    lines = (results / "output" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    last = [record for record in records if record["kind"] == "eval"][-1]
    speeds = [record["img_s"] for record in records if record["kind"] == "train"]
    source = "real images" if data else "synthetic images"
    say("")
    say(f"  accuracy   {last['top1']:.1%} of {last['n']} test images ({source})")
    say(f"  speed      {sum(speeds) / len(speeds):,.0f} images/s over both nodes")
    say(f"  time       {seconds:.0f} s for {EPOCHS} epochs, start to files here")
    say(f"  files      {results}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
