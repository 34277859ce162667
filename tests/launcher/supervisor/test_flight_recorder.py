"""The rank that missed a collective, from real dumps of torch's flight recorder."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from supervisors import Attempt, until

from launcher.supervisor import sitecustomize
from launcher.supervisor.events import Collective
from launcher.supervisor.flight_recorder import LARGEST_DUMP, FlightRecorder, load

DUMPS = Path(__file__).parent / "dumps"
RANK_2_IS_BUSY = """
import datetime, os, pathlib, sys, time
import torch
import torch.distributed as dist
# the timeout also limits how long ranks wait for each other here, so none comes before all can
mine = pathlib.Path(__file__).with_name("rank-" + os.environ["RANK"])
mine.touch()
while len([*mine.parent.glob("rank-*")]) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.05)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=int(sys.argv[1])))
ones = torch.ones(4)
for _ in range(5):
    dist.all_reduce(ones)
print("working", flush=True)
if dist.get_rank() == 2:
    time.sleep(600)
dist.all_reduce(ones)
"""


@pytest.mark.real
@pytest.mark.parametrize(
    ("timeout", "hang_timeout", "kind"), [(8, None, "collective-timeout"), (600, 10.0, "hung")]
)
def test_the_rank_that_missed_a_collective_is_named(
    tmp_path: Path, timeout: int, hang_timeout: float | None, kind: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANK_2_IS_BUSY)
    attempt = Attempt(tmp_path, script=script)
    attempt.add(2, [str(timeout)], hang_timeout=hang_timeout)
    try:
        attempt.start()
        attempt.wait()
        cause = attempt.cause()
    finally:
        attempt.close()
    assert cause and cause.kind == kind
    assert "rank 2 (gpu2) did not call all_reduce, in which rank" in cause.message, cause
    assert "(call 6 of their process group)" in cause.message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two real dumps of torch 2.13: rank 1 has not called the sixth all_reduce."""
    (tmp_path / "flight-recorder").mkdir()
    for rank in range(2):
        dump = (DUMPS / f"gloo-rank-{rank}").read_bytes()
        (tmp_path / "flight-recorder" / f"gloo-rank-{rank}").write_bytes(dump)
    return tmp_path


def test_a_dump_says_what_its_rank_called_last_and_is_kept(folder: Path) -> None:
    recorder = FlightRecorder(str(folder))
    calls = ("all_reduce",) * 6
    newest = [Collective(0, "gloo 0", 6, calls), Collective(1, "gloo 0", 5, calls[:5])]
    assert recorder.read(3) == newest
    assert recorder.read(4) == []  # those were of an earlier start
    kept = sorted(path.name for path in (folder / "flight-recorder").iterdir())
    assert kept == ["3-gloo-rank-0", "3-gloo-rank-1"]


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("evil"),))


@pytest.mark.parametrize(
    "dump",
    [
        pickle.dumps({"entries": Evil()}),
        b"",
        b"no pickle",
        pickle.dumps([1]),
        pickle.dumps({"entries": 7}),
        pickle.dumps({"entries": [{"is_p2p": False, "process_group": None}]}),
        pickle.dumps({"entries": [{"is_p2p": True}]}),
    ],
)
def test_a_dump_loads_no_class_and_a_damaged_one_is_skipped(
    folder: Path, dump: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "flight-recorder" / "gloo-rank-0").write_bytes(dump)
    assert [each.rank for each in FlightRecorder(str(folder)).read(0)] == [1]
    assert not (folder / "evil").exists()


def test_a_huge_dump_is_not_read(folder: Path) -> None:
    with (folder / "flight-recorder" / "nccl-rank-0").open("ab") as file:
        file.truncate(LARGEST_DUMP + 1)
    assert len(FlightRecorder(str(folder)).read(0)) == 2


def test_lists_of_numbers_as_torch_marks_them_are_read(folder: Path) -> None:
    build = b"ctorch.jit._pickle\nbuild_intlist\n"
    dump = b"\x80\x02" + build + b"](K\x01K\x02e\x85R."
    (folder / "numbers").write_bytes(dump)
    assert load(str(folder / "numbers")) == [1, 2]


@pytest.mark.parametrize(
    ("env", "torch", "names"),
    [
        ({}, "2.13.0", ["TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"]),
        ({}, "", ["TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"]),
        ({}, "2.7.1", ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_TRACE_BUFFER_SIZE"]),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}, "2.13.0", ["TORCH_FR_DUMP_TEMP_FILE"]),
        ({"TORCH_FR_DUMP_TEMP_FILE": "/x"}, "2.6", ["TORCH_NCCL_TRACE_BUFFER_SIZE"]),
    ],
)
def test_the_recorder_is_set_up_under_the_names_that_torch_knows_unless_the_user_did(
    tmp_path: Path, env: dict[str, str], torch: str, names: list[str]
) -> None:
    given = FlightRecorder(str(tmp_path)).environment(env, torch)
    assert {name: given[name] for name in env} == env
    ours = sorted(set(given) - set(env) - {"DDPCTL_FLIGHT_RECORDER"})
    assert ours == sorted([*names, "TORCH_NCCL_DUMP_ON_TIMEOUT"])


def test_only_ranks_that_are_alive_are_waited_for(tmp_path: Path) -> None:
    recorder = FlightRecorder(str(tmp_path))
    recorder.environment({}, "")
    assert recorder.is_ready and not recorder.ask()
    pipe = tmp_path / "flight-recorder" / "ask-1"
    os.mkfifo(pipe)
    assert not recorder.ask() and recorder.is_ready  # its process is gone
    reader = os.open(pipe, os.O_RDWR)
    try:
        assert recorder.ask() and os.read(reader, 9) == b"\n" and not recorder.is_ready
        pipe.unlink()
        assert recorder.is_ready
    finally:
        os.close(reader)


RANK = """
import os, sys, threading, time
import torch.distributed
print("started", flush=True)
if sys.argv[1] == "fail":
    raise ValueError
if sys.argv[1] == "fork" and os.fork() == 0:
    sys.exit()
if sys.argv[1] == "thread":
    end = lambda: (time.sleep(0.05), print("has let go of its tensor", flush=True))
    threading.Thread(target=end, daemon=True).start()
    sys.exit()
time.sleep(0.1 if sys.argv[1] == "end" else 60)
"""


@pytest.fixture
def rank(folder: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start a rank whose torch has a dump of its own. The rank can end, fork, wait or fail."""
    package = folder / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text(
        "import sys, types\n"
        "core = types.SimpleNamespace(_dump_fr_trace=lambda *what: b'dump')\n"
        "sys.modules['torch._C._distributed_c10d'] = core\n"
    )
    shutil.copy(sitecustomize.__file__, folder)
    (folder / "train.py").write_text(RANK)
    for path in (folder / "flight-recorder").iterdir():
        path.unlink()
    env = {"RANK": "1", "TORCHELASTIC_RUN_ID": "r", "PYTHONPATH": str(folder)}
    env["DDPCTL_FLIGHT_RECORDER"] = str(folder / "flight-recorder")
    started: list[subprocess.Popen[str]] = []

    def start(then: str) -> subprocess.Popen[str]:
        argv = [sys.executable, str(folder / "train.py"), then]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(argv, env=env, stdout=pipe, stderr=pipe, text=True))
        out = started[-1].stdout
        assert out and out.readline() == "started\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_waiting_rank_writes_its_dump_when_asked(
    folder: Path, rank: Callable[[str], subprocess.Popen[str]]
) -> None:
    rank("wait")
    recorder = FlightRecorder(str(folder))
    assert recorder.ask()
    until(lambda: recorder.is_ready, 5)
    assert (folder / "flight-recorder" / "gloo-rank-1").read_bytes() == b"dump"


@pytest.mark.parametrize(("then", "files"), [("end", []), ("fail", ["gloo-rank-1"])])
def test_a_rank_that_ends_writes_its_dump_only_after_an_exception(
    folder: Path, rank: Callable[[str], subprocess.Popen[str]], then: str, files: list[str]
) -> None:
    assert rank(then).wait(10) == len(files)
    assert [path.name for path in (folder / "flight-recorder").iterdir()] == files


def test_a_fork_of_a_rank_does_not_answer_for_it(
    folder: Path, rank: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = rank("fork")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: any(has_ended(child) for child in children.read_text().split()), 10)
    assert FlightRecorder(str(folder)).ask()


def test_python_does_not_exit_before_gloos_threads_have_let_go_of_their_tensors(
    rank: Callable[[str], subprocess.Popen[str]],
) -> None:
    out, errors = rank("thread").communicate(timeout=10)
    assert (out, errors) == ("has let go of its tensor\n", "")


def has_ended(pid: str) -> bool:
    return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
