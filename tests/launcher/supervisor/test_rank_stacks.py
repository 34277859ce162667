"""The stacks of real ranks, taken by real supervisors while the ranks continue undisturbed."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from supervisors import WITH_TORCH, Attempt, Node, attempt, spec, until

from launcher.supervisor.events import Frame, RankExit, RankStacks, Stopping, Thread
from launcher.supervisor.proc import proc_stat
from launcher.supervisor.rank_stacks import StackTaker, has_open, parse

WAIT = """
import os, sys, time
def arrive():
    time.sleep(120)
def lag():
    time.sleep(120)
print("working", flush=True)
(lag if os.environ["RANK"] == sys.argv[1] else arrive)()
"""


def script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


def running(made: Attempt, code: Path, *args: str) -> dict[int, int]:
    """Starts the attempt with another script than ranks.py; rank -> pid once all say `working`."""
    for node in made.nodes:
        at = node.spec["argv"].index("--")
        node.spec["argv"] = [*node.spec["argv"][: at + 1], str(code), *args]
    made.start()
    return made.ranks_running()


def ask(node: Node, kind: str = "main") -> dict[int, dict[str, Any]]:
    """rank -> its stack."""
    word = f"w{os.urandom(4).hex()}"
    (node.folder / f"ask-{kind}-{word}").touch()
    answer = node.folder / f"stacks-{word}.json"
    until(answer.exists, 30)
    document = json.loads(answer.read_text())
    return {rank["rank"]: rank for rank in document["ranks"]}


def innermost(taken: Mapping[str, Any]) -> tuple[str, str]:
    frame = taken["frames"][-1]
    return frame["function"], frame["text"]


@pytest.fixture
def made(tmp_path: Path) -> Any:
    made = Attempt(tmp_path / "attempt")
    made.add(1, [])
    yield made
    made.close()


def test_every_rank_gives_its_stack_and_continues(made: Attempt, tmp_path: Path) -> None:
    pids = running(made, script(tmp_path, WAIT), "1")
    [node] = made.nodes
    for _ in range(3):  # one answer leaves the rank as ready for the next
        taken = ask(node)
        assert innermost(taken[0]) == ("arrive", "time.sleep(120)")
        assert innermost(taken[1]) == ("lag", "time.sleep(120)")
        assert taken[1]["frames"][0]["function"] == "<module>"
        assert Path(taken[1]["frames"][0]["file"]).name == "train.py"
        assert [taken[0]["note"], taken[0]["threads"]] == [None, []]
    assert {rank: taken[rank]["pid"] for rank in taken} == pids
    assert node.events(RankExit) == [] and node.events(Stopping) == []


def test_a_stopped_rank_is_not_waited_for(made: Attempt, tmp_path: Path) -> None:
    pids = running(made, script(tmp_path, WAIT), "1")
    os.kill(pids[1], signal.SIGSTOP)
    until(lambda: proc_stat(pids[1])[0] == "T", 10)
    taken = ask(made.nodes[0])
    assert (taken[1]["note"], taken[1]["frames"]) == ("stopped", [])
    assert innermost(taken[0])[0] == "arrive"
    os.kill(pids[1], signal.SIGCONT)
    until(lambda: proc_stat(pids[1])[0] == "S", 10)
    assert innermost(ask(made.nodes[0])[1])[0] == "lag"


def test_all_threads_are_taken_on_request(made: Attempt, tmp_path: Path) -> None:
    threaded = "import threading, time\ndef pump(): time.sleep(120)\n"
    threaded += "threading.Thread(target=pump, daemon=True).start()\n" + WAIT
    running(made, script(tmp_path, threaded), "1")
    taken = ask(made.nodes[0], "all")
    for rank in (0, 1):
        [thread] = taken[rank]["threads"]
        assert "pump" in [frame["function"] for frame in thread["frames"]]
        assert innermost(taken[rank])[0] == ("lag" if rank else "arrive")


DAMAGE = {  # what a script may do -> the note then; asking must never kill a rank
    "closes-all": ("import os; os.closerange(3, 1000); kept = open(__file__)", "unprepared"),
    "blocks": (
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
        "blocked",
    ),
    "takes-back": ("import signal; signal.signal(58, signal.SIG_DFL)", "unprepared"),
    "execs": (
        "import os, sys\nif 'again' not in sys.argv:\n"
        "    os.execv(sys.executable, [sys.executable, *sys.argv, 'again'])",
        "unprepared",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_rank_that_cannot_answer_is_left_alone(
    made: Attempt, tmp_path: Path, damage: str
) -> None:
    code, note = DAMAGE[damage]
    pids = running(made, script(tmp_path, code + WAIT), "1")
    taken = ask(made.nodes[0])
    assert [taken[rank]["note"] for rank in (0, 1)] == [note, note]
    assert all(proc_stat(pid)[0] == "S" for pid in pids.values())


OWN_HANDLERS = """
import os, signal, sys, time
caught = []
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGALRM):
    signal.signal(number, lambda number, _: caught.append(number))
print("working", flush=True)
os.kill(os.getpid(), signal.SIGUSR1)
while signal.SIGALRM not in caught:
    time.sleep(0.05)
print("caught", *map(int, caught), flush=True)
"""


def test_the_script_s_own_signal_handlers_stay_its_own(made: Attempt, tmp_path: Path) -> None:
    pids = running(made, script(tmp_path, OWN_HANDLERS))
    taken = ask(made.nodes[0])
    assert [taken[rank]["note"] for rank in (0, 1)] == [None, None]
    for pid in pids.values():
        os.kill(pid, signal.SIGALRM)
    assert made.wait() == [0]
    caught = b"caught %d %d" % (signal.SIGUSR1, signal.SIGALRM)
    assert [made.nodes[0].lines(rank)[-1] for rank in (0, 1)] == [caught, caught]


def test_the_user_s_sitecustomize_and_python_path_are_what_they_were(
    made: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.from_the_user = 'yes'\n")
    (own / "beside.py").write_text("found = 'found'\n")
    path = f"{own}{os.pathsep}/nowhere"
    monkeypatch.setenv("PYTHONPATH", path)
    code = """
import os, subprocess, sys, beside, sitecustomize
print("working", flush=True)
show = "import os, builtins; print(os.environ['PYTHONPATH'], builtins.from_the_user, end=' ')"
child = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True).stdout
mine = [os.environ["PYTHONPATH"], from_the_user, beside.found, sitecustomize.__file__]
print(child, *mine, any("stacks" in p for p in sys.path), flush=True)
sys.stdin.close()
__import__("time").sleep(120)
"""
    [node] = made.nodes
    node.python = WITH_TORCH  # whose torchrun loads a sitecustomize too
    running(made, script(tmp_path, code))
    until(lambda: all(len(node.lines(rank)) == 2 for rank in (0, 1)), 60)
    wanted = f"{path} yes  {path} yes found {own}/sitecustomize.py False"
    assert [node.lines(rank)[1].decode() for rank in (0, 1)] == [wanted, wanted]
    assert ask(node)[0]["note"] is None


def test_an_unset_python_path_stays_unset(
    made: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    code = "import os, sys\nprint('working', flush=True)\nprint(os.environ.get('PYTHONPATH'))\n"
    running(made, script(tmp_path, code + "sys.exit('sitecustomize' not in sys.modules)\n"))
    assert made.wait() == [0]
    assert [made.nodes[0].lines(rank)[1] for rank in (0, 1)] == [b"None", b"None"]


def test_the_python_below_a_shell_script_answers(made: Attempt, tmp_path: Path) -> None:
    code = script(tmp_path, WAIT)
    shell = tmp_path / "run.sh"
    shell.write_text(f'#!/bin/sh\npython3 -u {code} "$@"\necho after\n')
    shell.chmod(0o755)
    [node] = made.nodes
    at = node.spec["argv"].index("--")
    node.spec["argv"] = [*node.spec["argv"][:at], "--no-python", "--", str(shell), "1"]
    made.start()
    pids = made.ranks_running()
    taken = ask(node)
    assert innermost(taken[1]) == ("lag", "time.sleep(120)")
    assert taken[1]["pid"] != pids[1]


def test_before_a_run_ends_as_hung_its_stacks_are_written_and_name_the_rank(
    tmp_path: Path,
) -> None:
    with attempt(tmp_path, 2, ["straggle", "3"], hang_timeout=1.5) as made:
        made.wait()
        cause = made.cause()
    functions = {}
    for node in made.nodes:
        [(taken, event)] = node.events(RankStacks)
        [(stopping, _), *_] = node.events(Stopping)
        assert taken < stopping
        functions |= {rank.rank: rank.frames[-1].function for rank in event.ranks}
    assert functions == {0: "main", 1: "main", 2: "main", 3: "misbehave"}
    assert cause is not None and (cause.kind, cause.rank, cause.host) == ("hung", 3, "gpu2")
    assert "is not where the other ranks are" in cause.message
    assert "in misbehave: select.select([], [], [], 120)" in cause.message
    assert "ranks 0-2 on gpu[1-2]:" in cause.excerpt


def test_the_run_goes_on_without_its_control_folder(made: Attempt, tmp_path: Path) -> None:
    running(made, script(tmp_path, WAIT), "1")
    [node] = made.nodes
    shutil.rmtree(node.folder)
    os.kill(node.pid, signal.SIGTERM)  # it still passes signals on
    assert node.wait() == 143


def test_a_bug_of_ours_does_not_end_the_run(tmp_path: Path) -> None:
    broken: Any = [object()]  # no rank at all
    asked = tmp_path / "ask-main-x"
    asked.touch()
    stacks = StackTaker(spec(dir=str(tmp_path)))
    until(lambda: stacks.turn(broken, "running", True) is None and stacks.written, 10)
    assert not asked.exists()  # nothing waits for them
    assert stacks.turn([], "running", False) is None


def test_the_paths_of_open_files_are_not_followed(tmp_path: Path) -> None:
    """They may be on a disk that hangs. A deleted file is at `PATH (deleted)`."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    (tmp_path / "theirs (deleted)").symlink_to(ours)
    with theirs.open("w"):
        theirs.unlink()
        assert not has_open(os.getpid(), str(ours))
        with ours.open("w"):
            assert has_open(os.getpid(), str(ours))


def test_the_output_of_faulthandler_is_parsed() -> None:
    frames = 'File "/a b/x.py", line 7 in f\n  File "x.py", line 9 in <module>\n'
    main = (Frame("x.py", 9, "<module>"), Frame("/a b/x.py", 7, "f"))
    assert parse(f"Stack (most recent call first):\n  {frames}") == [Thread("main", main)]
    other, current = parse(
        'Thread 0x00007f12 [pool-1] (most recent call first):\n  File "t.py", line 1 in run\n\n'
        f"Current thread 0x00007f00 (most recent call first):\n  {frames}"
    )
    assert (other.thread, len(other.frames)) == ("0x00007f12 [pool-1]", 1)
    assert current == Thread("main", main)
