"""Groups of ranks and their stragglers, from stacks of real torch programs."""

from __future__ import annotations

from dataclasses import replace

from launcher.diagnosis.stack_groups import RankStack, grouped, located, stragglers, verdict
from launcher.look.stacks import block
from launcher.supervisor.events import Frame, Stack, Thread

TORCH = "/venv/lib/python3.11/site-packages/torch"
MAIN = Frame("/workspace/train.py", 40, "<module>", "main()")
REDUCE = (
    MAIN,
    Frame("/workspace/train.py", 31, "main", "dist.all_reduce(x)"),
    Frame(f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper"),
    Frame(f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce", "work.wait()"),
)
SLEEP = (MAIN, Frame("/workspace/train.py", 29, "main", "time.sleep(3600)"))


def rank(number: int, frames: tuple[Frame, ...] = (), note: str | None = None) -> RankStack:
    node = number // 2
    stack = Stack(number, number % 2, 100 + number, "S", note, frames)
    return located(stack, f"node{node}", node)


def groups_of(*ranks: RankStack) -> tuple[list[list[int]], list[list[int]]]:
    """(the groups' ranks, those of the stragglers)"""
    groups = grouped(ranks)
    return [group.ranks for group in groups], [group.ranks for group in stragglers(groups)]


def test_the_one_that_sleeps_is_named_with_its_host_and_line() -> None:
    ranks = [rank(n, SLEEP if n == 3 else REDUCE) for n in (5, 3, 0, 1, 4, 2)]
    assert groups_of(*ranks) == ([[0, 1, 2, 4, 5], [3]], [[3]])
    assert verdict(grouped(ranks)) == [
        "rank 3 on node1 is not where the other ranks are: at train.py:29 in main: time.sleep(3600)"
    ]


def test_two_that_sleep_are_named_together() -> None:
    ranks = [rank(n, SLEEP if n in (2, 3) else REDUCE) for n in range(6)]
    [sentence] = verdict(grouped(ranks))
    assert sentence.startswith("ranks 2-3 on node1 are not where the other ranks are: at train.py")


def test_a_line_inside_torch_splits_no_group_and_one_of_the_user_s_does() -> None:
    deeper = Frame(f"{TORCH}/distributed/distributed_c10d.py", 3301, "all_reduce", "return work")
    assert groups_of(rank(0, REDUCE), rank(1, (*REDUCE[:3], deeper)))[0] == [[0, 1]]
    later = Frame("/workspace/train.py", 32, "main", "dist.all_reduce(x)")
    assert groups_of(rank(0, REDUCE), rank(1, (MAIN, later, *REDUCE[2:])))[0] == [[0], [1]]


def test_ranks_at_one_line_are_together_although_their_home_folders_differ() -> None:
    """Without containers, each node has its own path of the code."""

    def at_home(name: str) -> tuple[Frame, ...]:
        code = f"/home/{name}/.ddpctl/runs/r/workspace"
        return tuple(replace(f, file=f.file.replace("/workspace", code)) for f in REDUCE)

    assert groups_of(rank(0, at_home("ann")), rank(2, at_home("ubuntu")))[0] == [[0, 2]]


def test_one_line_of_the_user_s_that_calls_two_things_is_two_places() -> None:
    line = Frame("/workspace/train.py", 31, "main", "y = f(x) + g(x)")
    one = (MAIN, line, Frame(f"{TORCH}/a.py", 1, "f"))
    other = (MAIN, line, Frame(f"{TORCH}/a.py", 9, "g"))
    assert groups_of(rank(0, one), rank(1, other))[0] == [[0], [1]]


def test_of_two_ranks_the_one_outside_a_collective_is_the_straggler() -> None:
    assert groups_of(rank(0, REDUCE), rank(1, SLEEP))[1] == [[1]]
    backward = Frame(f"{TORCH}/autograd/__init__.py", 347, "backward")
    assert groups_of(rank(0, SLEEP), rank(1, (*SLEEP[:1], backward)))[1] == [[0]]


def test_there_is_no_straggler_without_a_majority() -> None:
    places = [(MAIN, Frame("/workspace/train.py", n, "main")) for n in range(4)]
    assert groups_of(*(rank(n, places[n]) for n in range(4)))[1] == []
    assert verdict(grouped(rank(n, places[n]) for n in range(4))) == [
        "the ranks are at 4 positions, none of which has a majority"
    ]
    assert groups_of(rank(0, REDUCE), rank(1, REDUCE))[1] == []
    assert groups_of()[1] == [] and verdict([]) == []


def test_all_ranks_at_one_place_get_one_sentence() -> None:
    assert verdict(grouped(rank(n, SLEEP) for n in range(2))) == [
        "all 2 ranks are at train.py:29 in main: time.sleep(3600)"
    ]


def test_a_stopped_rank_is_a_straggler_and_one_without_a_stack_is_not() -> None:
    ranks = [rank(0, REDUCE), rank(1, REDUCE), rank(2, note="stopped"), rank(3, note="unprepared")]
    assert groups_of(*ranks)[1] == [[2]]
    stopped, unprepared = verdict(grouped(ranks))
    assert stopped == "rank 2 on node1: stopped (SIGSTOP) until SIGCONT is sent"
    assert unprepared.startswith("rank 3 on node1: no stack (")


def test_a_rank_without_a_python_frame_is_named() -> None:
    assert rank(0).describe() == "outside Python code"


def test_the_frames_of_an_installed_program_are_its_user_s_own() -> None:
    site = "/opt/conda/lib/python3.10/site-packages"
    runpy = Frame("<frozen runpy>", 198, "_run_module_as_main")
    outer = Frame(f"{site}/trainer/__main__.py", 9, "<module>", "main()")
    step = Frame(f"{site}/trainer/train.py", 88, "step", "loss.backward()")
    one = rank(0, (runpy, outer, step, Frame(f"{site}/torch/_tensor.py", 521, "backward")))
    other = rank(1, (runpy, outer, step, Frame(f"{site}/torch/_tensor.py", 525, "backward")))
    assert one.own_frames == [outer, step]
    assert groups_of(one, other)[0] == [[0, 1]]
    assert one.describe() == "at trainer/train.py:88 in step: loss.backward()"


def test_the_frames_of_the_import_system_are_not_shown_unless_the_rank_is_in_one() -> None:
    load = Frame("<frozen importlib._bootstrap>", 1176, "_find_and_load")
    read = Frame("<frozen importlib._bootstrap_external>", 1131, "get_data")
    own = Frame("/workspace/train.py", 1, "<module>", "import torch")
    init = Frame(f"{TORCH}/__init__.py", 409, "<module>", "from torch._C import *")
    frames = (own, load, load, init, load, read)
    one = rank(0, frames)
    [group] = grouped([replace(one, threads=(Thread("0x7f", frames),))])
    labels = [
        "train.py:1 in <module>: import torch",
        "torch/__init__.py:409 in <module>: from torch._C import *",
        "<frozen importlib._bootstrap_external>:1131 in get_data",
    ]
    assert group.excerpt(3)[1:] == [f"  {each}" for each in labels]
    assert [line.strip() for line in block(group)[3:6]] == labels
    assert [line.strip() for line in block(group)[7:]] == labels
