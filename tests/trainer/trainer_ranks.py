"""Real ranks for tests: forked processes that have torch imported already, over real Gloo.

`make` builds a Training in this process; `Job` runs the whole trainer as N ranks; `on_ranks` runs one
function on N ranks; `python` and `torchrun` run a command line as those programs would. A fork server
imports torch once, so four ranks start in a tenth of a second instead of ten.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from trainer.data import Batch
    from trainer.distributed import Ranks
    from trainer.state import Training

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch", "torch.distributed", "torch._dynamo", "trainer.train", "trainer.cli"]
)

TINY = (
    *(
        "--model",
        "resnet8",
        "--width",
        # with fewer channels, oneDNN 3.12 (torch 2.13) corrupts the heap on a CPU without AVX-512
        "8",
        "--data",
        "synthetic",
        "--synthetic-train",
        "100",
        "--synthetic-size",
        "16",
    ),
    *("--synthetic-test", "51", "--global-batch", "16", "--epochs", "2", "--lr", "0.05"),
    *("--eval-batch-size", "10", "--print-every", "1", "--device", "cpu", "--timeout", "30"),
    *("--save-every", "1ep"),
)
LEAKS = ("DDPCTL_", "TRAINER_", "TORCHELASTIC_", "MASTER_")
RANK_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")


def make(ranks: Ranks | None = None, *more: str) -> Training:
    """A Training at step 0, of a tiny network on a few synthetic images."""
    import torch

    from trainer.data import load_dataset
    from trainer.distributed import identify
    from trainer.model import norms
    from trainer.parse_flags import parse
    from trainer.plan import make_plan
    from trainer.setup import build, resolve

    torch.set_num_threads(1)
    ranks = ranks or identify({}, torch.device("cpu"))
    config, _ = parse([*TINY, *more], {})
    data = load_dataset(config, ranks.device)
    config = resolve(config, ranks, data)
    t = build(config, make_plan(config, data.size("train"), ranks.world_size), ranks, data)
    for module in norms(t.net.model) if config.bn == "frozen" else ():
        module.eval()  # also where a test calls the network itself
    return t


def batches(t: Training, order: torch.Tensor | None = None) -> Iterator[Batch]:
    """This rank's micro-batches of the rest of an epoch, which visits the samples in the order of
    their numbers unless told."""
    import torch

    order = torch.arange(t.plan.samples) if order is None else order
    epoch, done = divmod(t.step, t.plan.steps_per_epoch)
    steps = range(t.step, t.step - done + t.plan.steps_per_epoch)
    parts = t.plan.slices_of(t.ranks.rank, steps)
    return t.data.train_batches(order, parts, seed=t.config.seed, epoch=epoch)


def _enter(rank: int, count: int, store: str, log: str, env: dict[str, str]) -> None:
    """Become a rank: torchrun's variables and nothing else, output to a file of its own."""
    import torch
    import torchvision_on_cpu  # noqa: F401

    for name in list(os.environ):
        if name.startswith(LEAKS) or name in RANK_NAMES:
            del os.environ[name]
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "TRAINER_STORE": store,
        "GLOO_SOCKET_IFNAME": "lo",
        **env,
    }
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    torch.set_num_threads(1)


def _trainer(argv: Sequence[str], first: Callable[[], None] | None, *entry: Any) -> None:
    _enter(*entry)
    from trainer.cli import main

    if first:
        first()
    sys.exit(main(list(argv)))


def _function(do: Callable[..., Any], args: tuple[Any, ...], result: str, *entry: Any) -> None:
    _enter(*entry)
    import torch

    from trainer.distributed import identify, join, leave

    ranks = identify(os.environ, torch.device("cpu"))
    ranks = join(ranks, os.environ, 30.0, None)
    torch.save(do(ranks, *args), result)
    leave(ranks)


def on_ranks(folder: Path, count: int, do: Callable[..., Any], *args: Any) -> list[Any]:
    """`do(ranks, *args)` on `count` ranks that share a process group; its results in rank order."""
    import torch

    folder = _fresh(folder)
    processes = []
    for rank in range(count):
        entry = (rank, count, str(folder / "store"), str(folder / f"log-{rank}"), {})
        target = (do, args, str(folder / f"result-{rank}"), *entry)
        process = CONTEXT.Process(target=_function, args=target)
        process.start()
        processes.append(process)
    for rank, process in enumerate(processes):
        process.join(60)
        if process.exitcode is None:
            process.kill()
        log = (folder / f"log-{rank}").read_text()
        assert process.exitcode == 0, f"rank {rank}: {process.exitcode}\n{log}"
    return [torch.load(folder / f"result-{rank}") for rank in range(count)]


def python(
    words: Sequence[object], folder: Path, **env: str
) -> subprocess.CompletedProcess[list[str]]:
    """`python WORDS`: a script or `-m MODULE`, and its arguments. `env` adds to this environment."""
    return _programs(words, folder, [env])


def torchrun(
    count: int, words: Sequence[object], folder: Path, **env: str
) -> subprocess.CompletedProcess[list[str]]:
    """`torchrun --standalone --nproc-per-node COUNT WORDS`: the variables and store of its agent."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        **env,
    }
    ranks = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    return _programs(words, folder, ranks)


def _programs(
    words: Sequence[object], folder: Path, environments: list[dict[str, str]]
) -> subprocess.CompletedProcess[list[str]]:
    """One process for each environment; the first exit code that is not 0, and the lines of all."""
    logs = _fresh(folder / "output-of-processes")
    argv = [str(word) for word in words]
    processes = []
    for number, env in enumerate(environments):
        entry = (argv, str(folder), {**os.environ, **env}, str(logs / str(number)))
        process = CONTEXT.Process(target=_program, args=entry)
        process.start()
        processes.append(process)
    for process in processes:
        process.join(120)
        if process.exitcode is None:
            process.kill()
            process.join()
    codes = [int(process.exitcode or 0) for process in processes]
    out, err = (
        [
            line
            for n in range(len(codes))
            for line in Path(f"{logs}/{n}.{kind}").read_text().splitlines()
        ]
        for kind in ("out", "err")
    )
    return subprocess.CompletedProcess(argv, next(filter(None, codes), 0), out, err)


def _program(argv: list[str], folder: str, env: dict[str, str], log: str) -> None:
    """Become `python ARGV` in `folder`."""
    import torch

    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    for number, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{log}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    torch.set_num_threads(int(env.get("OMP_NUM_THREADS", "1")))
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    is_module = argv[0] == "-m"
    sys.path[:0] = [folder if is_module else str(Path(argv[0]).parent), *paths]
    sys.argv = argv[1:] if is_module else argv
    if is_module:
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(argv[0], run_name="__main__")


class Job:
    """A training of `count` ranks, started at once. `env` may differ by rank: a function of it.
    `first` is called in every rank before the trainer, to break something.
    """

    def __init__(
        self,
        out: Path,
        *flags: str,
        count: int = 1,
        env: Callable[[int], dict[str, str]] | None = None,
        first: Callable[[], None] | None = None,
    ) -> None:
        self.out = out
        self.folder = _fresh(out.parent / f"{out.name}-logs")
        tiny = list(TINY)
        if "--batch-size" in flags:
            del tiny[(batch := tiny.index("--global-batch")) : batch + 2]
        argv = [*tiny, "--out", str(out), *flags]
        self.processes = []
        for rank in range(count):
            more = env(rank) if env else {}
            entry = (
                rank,
                count,
                str(self.folder / "store"),
                str(self.folder / f"log-{rank}"),
                more,
            )
            process = CONTEXT.Process(target=_trainer, args=(argv, first, *entry))
            process.start()
            self.processes.append(process)

    def codes(self, timeout: float = 60) -> list[int]:
        """Exit codes once all ranks have ended; a rank that hangs fails the test."""
        deadline = time.monotonic() + timeout
        for process in self.processes:
            process.join(max(0.1, deadline - time.monotonic()))
        hanging = [rank for rank, p in enumerate(self.processes) if p.exitcode is None]
        for rank in hanging:
            self.processes[rank].kill()
        assert not hanging, f"ranks {hanging} hang\n{self.log()}"
        return [int(process.exitcode or 0) for process in self.processes]

    def done(self) -> Job:
        """Wait for success."""
        codes = self.codes()
        assert set(codes) == {0}, f"{codes}\n{self.log()}"
        return self

    def signal(self, rank: int, number: int = signal.SIGTERM) -> None:
        os.kill(self.processes[rank].pid or 0, number)

    def wait_for(self, kind: str, step: int = 0, timeout: float = 30) -> None:
        """Until metrics.jsonl has a line of this kind at this step or later."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if any(m["step"] >= step for m in self.metrics(kind)):
                return
            ended = all(process.exitcode is not None for process in self.processes)
            assert not ended, f"ended before {kind} at {step}\n{self.log()}"
            time.sleep(0.005)
        raise AssertionError(f"no {kind} line at step {step}\n{self.log()}")

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("log-*")))

    def metrics(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in metrics(self.out) if line["kind"] == kind]

    @property
    def status(self) -> dict[str, Any]:
        return dict(json.loads((self.out / "status.json").read_text()))


def metrics(out: Path) -> list[dict[str, Any]]:
    """Whole lines of metrics.jsonl."""
    path = out / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def newest_state(out: Path) -> dict[str, Any]:
    """The tensors of the newest checkpoint under `out`."""
    from trainer import checkpoint

    saved, problems = checkpoint.newest_intact(out)
    assert saved and not problems, problems
    return checkpoint.decode(checkpoint.read(saved.path))[0]


def same(a: Any, b: Any) -> bool:
    """Bitwise equality of nested tensors."""
    import torch

    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return set(a) == set(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _fresh(folder: Path) -> Path:
    """`folder`, or numbered beside it: every launch has its own store and logs."""
    for number in range(1000):
        candidate = folder.with_name(f"{folder.name}-{number}")
        if not candidate.exists():
            candidate.mkdir(parents=True)
            return candidate
    raise AssertionError(folder)
