"""Who stands with whom, and who stands elsewhere: by stacks as torch's programs really have them."""

from __future__ import annotations

from launcher.diagnosis.stack_groups import Frame, Standing, elsewhere, grouped, standing, verdict

TORCH = "/venv/lib/python3.11/site-packages/torch"
MAIN = Frame("/workspace/train.py", 40, "<module>", "main()")
REDUCE = (
    MAIN,
    Frame("/workspace/train.py", 31, "main", "dist.all_reduce(x)"),
    Frame(f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper"),
    Frame(f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce", "work.wait()"),
)
SLEEP = (MAIN, Frame("/workspace/train.py", 29, "main", "time.sleep(3600)"))


def rank(number: int, frames: tuple[Frame, ...] = (), note: str | None = None) -> Standing:
    node = number // 2
    return Standing(number, number % 2, node, f"node{node}", 100 + number, "S", note, frames)


def said(*ranks: Standing) -> tuple[list[list[int]], list[list[int]]]:
    """(the groups' ranks, those of them that stand elsewhere)"""
    groups = grouped(ranks)
    return [group.ranks for group in groups], [group.ranks for group in elsewhere(groups)]


def test_the_one_that_sleeps_is_named_with_its_host_and_line() -> None:
    ranks = [rank(n, SLEEP if n == 3 else REDUCE) for n in (5, 3, 0, 1, 4, 2)]
    assert said(*ranks) == ([[0, 1, 2, 4, 5], [3]], [[3]])
    assert verdict(grouped(ranks)) == [
        "rank 3 of node1 stands elsewhere than the others: at train.py:29 in main: time.sleep(3600)"
    ]


def test_a_line_inside_torch_splits_no_group_and_one_of_the_user_s_does() -> None:
    deeper = Frame(f"{TORCH}/distributed/distributed_c10d.py", 3301, "all_reduce", "return work")
    assert said(rank(0, REDUCE), rank(1, (*REDUCE[:3], deeper)))[0] == [[0, 1]]
    later = Frame("/workspace/train.py", 32, "main", "dist.all_reduce(x)")
    assert said(rank(0, REDUCE), rank(1, (MAIN, later, *REDUCE[2:])))[0] == [[0], [1]]


def test_one_line_of_the_user_s_that_calls_two_things_is_two_places() -> None:
    line = Frame("/workspace/train.py", 31, "main", "y = f(x) + g(x)")
    one = (MAIN, line, Frame(f"{TORCH}/a.py", 1, "f"))
    other = (MAIN, line, Frame(f"{TORCH}/a.py", 9, "g"))
    assert said(rank(0, one), rank(1, other))[0] == [[0], [1]]


def test_of_two_the_one_that_does_not_wait_stands_elsewhere() -> None:
    assert said(rank(0, REDUCE), rank(1, SLEEP))[1] == [[1]]
    backward = Frame(f"{TORCH}/autograd/__init__.py", 347, "backward")
    assert said(rank(0, SLEEP), rank(1, (*SLEEP[:1], backward)))[1] == [[0]]


def test_nobody_is_blamed_when_no_place_is_the_others() -> None:
    places = [(MAIN, Frame("/workspace/train.py", n, "main")) for n in range(4)]
    assert said(*(rank(n, places[n]) for n in range(4)))[1] == []
    assert verdict(grouped(rank(n, places[n]) for n in range(4))) == [
        "the ranks stand at 4 places, and no place has most of them"
    ]
    assert said(rank(0, REDUCE), rank(1, REDUCE))[1] == []
    assert said()[1] == [] and verdict([]) == []


def test_all_at_one_place_is_said() -> None:
    assert verdict(grouped(rank(n, SLEEP) for n in range(2))) == [
        "all 2 ranks stand at train.py:29 in main: time.sleep(3600)"
    ]


def test_a_stopped_rank_stands_elsewhere_and_one_that_shows_nothing_is_not_judged() -> None:
    ranks = [rank(0, REDUCE), rank(1, REDUCE), rank(2, note="stopped"), rank(3, note="unprepared")]
    assert said(*ranks)[1] == [[2]]
    stopped, unprepared = verdict(grouped(ranks))
    assert stopped == "rank 2 of node1 is stopped (SIGSTOP): SIGCONT lets it go on"
    assert unprepared.startswith("rank 3 of node1 shows no stack: ")


def test_the_frames_of_an_installed_program_are_its_user_s_own() -> None:
    site = "/opt/conda/lib/python3.10/site-packages"
    runpy = Frame("<frozen runpy>", 198, "_run_module_as_main")
    outer = Frame(f"{site}/trainer/__main__.py", 9, "<module>", "main()")
    step = Frame(f"{site}/trainer/train.py", 88, "step", "loss.backward()")
    one = rank(0, (runpy, outer, step, Frame(f"{site}/torch/_tensor.py", 521, "backward")))
    other = rank(1, (runpy, outer, step, Frame(f"{site}/torch/_tensor.py", 525, "backward")))
    assert one.own_frames == [outer, step]
    assert said(one, other)[0] == [[0, 1]]
    assert one.says() == "at trainer/train.py:88 in step: loss.backward()"


def test_a_rank_is_read_from_what_a_supervisor_wrote() -> None:
    frame = {"file": "/workspace/train.py", "line": 29, "function": "main", "text": "sleep()"}
    told = {"rank": 3, "local_rank": 1, "pid": 7, "state": "S", "note": None, "frames": [frame]}
    read = standing({**told, "threads": [{"thread": "0x1", "frames": [frame]}]}, "node1", 1)
    assert (read.host, read.node_rank, read.rank, read.pid) == ("node1", 1, 3, 7)
    assert read.frames == (Frame("/workspace/train.py", 29, "main", "sleep()"),)
    assert read.threads == (("0x1", read.frames),)
