"""The demo: train on two nodes on this machine without Docker, SSH or root, with real images if available.

python scripts/demo.py [FOLDER]        (`make demo` does the setup first; FOLDER defaults to .demo)

The demo has all parts of a launch on a cluster: a plan, two supervisors, two torchruns that
rendezvous, merged logs, checkpoints. The only difference is that each node is a process, not a
container.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

FASHION_MNIST = Path("usr/share/datasets/fashion-mnist")  # in Debian's dataset-fashion-mnist
WAIT = 60  # seconds for a download of 31 MB
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
        say(f"the run ended with exit code {code}; the lines above show why")
        return code
    results = folder / "results"
    shutil.rmtree(results, ignore_errors=True)
    fetch = [*LAUNCHER, "fetch", "--to", str(results), "-q"]
    subprocess.run(fetch, stdout=subprocess.DEVNULL, check=True)
    seconds = time.monotonic() - began
    report = folder / "report.html"
    subprocess.run([*LAUNCHER, "report", "-q", "-o", str(report)], stdout=subprocess.DEVNULL)
    summary(results, data, seconds)
    if report.exists():
        say(f"  report     {report}")
    return 0


def images(folder: Path) -> Path | None:
    """Return the folder of real images, or None to use synthetic ones. Print which are used."""
    if (folder / "cifar-10-batches-py").is_dir():
        say(f"images: those in {folder}")
        return folder
    if source := installed() or debian_package(folder.with_name("package")):
        say(f"images: Fashion-MNIST from {source}, 70,000 real ones in CIFAR-10's layout")
        make = [*TRAINER, "data", "make", "--from", "fashion-mnist", "--folder", str(source)]
        if subprocess.call([*make, "--to", str(folder)]) == 0:
            return folder
    say(
        "images: the learnable synthetic set, as Fashion-MNIST cannot be downloaded here within a minute"
    )
    say("        (`python -m trainer data fetch` downloads CIFAR-10, 170 MB)")
    return None


def installed() -> Path | None:
    folder = Path("/") / FASHION_MNIST
    return folder if folder.is_dir() else None


def debian_package(folder: Path) -> Path | None:
    """Unpack Fashion-MNIST from Debian's package into `folder`, which needs no root. None if it fails."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return None
    folder.mkdir(exist_ok=True)
    say("images: downloading Fashion-MNIST from Debian (31 MB)")
    with contextlib.suppress(subprocess.SubprocessError, StopIteration):
        get = ["apt-get", "download", "-qq", "dataset-fashion-mnist"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": True}
        subprocess.run(get, cwd=folder, timeout=WAIT, **quiet)
        package = next(folder.glob("dataset-fashion-mnist_*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], timeout=WAIT, **quiet)
        return folder / FASHION_MNIST
    return None


def hosts_file(folder: Path, data: Path | None) -> Path:
    """Write a hosts file with two nodes on this machine, each with a GPU if there are two, else without."""
    gpus = [[0], [1]] if gpu_count() >= 2 else [0, 0]
    command = ["-m", "trainer", "--model", "resnet8", "--epochs", str(EPOCHS)]
    # 91.6% on Fashion-MNIST; 89.7% with random crops, which help only longer runs
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
    say(f"  time       {seconds:.0f} s for {EPOCHS} epochs, from start to fetched files")
    say(f"  files      {results}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
