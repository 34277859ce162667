"""The error texts that users have reported are named correctly, or not at all.

The files in outputs/reported have one entry per report: `### KIND | words of the remedy | thread on
GitHub | exit code`, then what the rank printed. A line `Traceback` stands for the first lines of one.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from launcher.diagnosis.evidence import Evidence, NodeEvidence
from launcher.diagnosis.first_failure import first_failure
from launcher.failure import FirstFailure
from launcher.supervisor.events import End, EndState, Event, RankExit, ResourceUsage, signal_name
from launcher.supervisor.failure_kinds import ERROR_TEXTS, ErrorText
from launcher.supervisor.quoted_error import excerpt, telling_end, telling_texts

TRACEBACK = 'Traceback (most recent call last):\n  File "/workspace/train.py", line 1, in <module>'


@dataclasses.dataclass(frozen=True)
class Report:
    kind: str
    remedy: str
    exit_code: int
    lines: tuple[str, ...]


def reports() -> list[Report]:
    found = []
    for path in sorted(Path(__file__).with_name("outputs").glob("reported/*.txt")):
        for entry in re.split(r"^### ", path.read_text(), flags=re.MULTILINE)[1:]:
            head, _, text = entry.partition("\n")
            kind, remedy, _, code, *_ = [field.strip() for field in f"{head}|||".split("|")]
            text = re.sub(r"^Traceback$", TRACEBACK, text.rstrip("\n"), flags=re.MULTILINE)
            found.append(Report(kind, remedy, int(code or 1), tuple(text.split("\n"))))
    return found


def failure_of(report: Report, *events: tuple[float, Event]) -> FirstFailure:
    code = report.exit_code
    exit = RankExit(3, 1, code, signal=signal_name(code), time=1.0, last_lines=report.lines)
    node = NodeEvidence(1, "gpu2", events=[(1.0, exit), *events, (9.0, End(EndState.STOPPED, 1))])
    failure = first_failure(Evidence(8, [node]))
    assert failure is not None
    return failure


@pytest.mark.parametrize(
    "report", reports(), ids=lambda report: f"{report.kind} {report.lines[-1]:.60}"
)
def test_a_reported_error_is_named(report: Report) -> None:
    failure = failure_of(report)
    assert failure.kind == report.kind, failure.headline
    assert report.remedy in failure.remedy


def test_a_killed_data_loader_worker_is_the_oom_killers_if_the_kernel_counted_one() -> None:
    lines = (
        "Traceback (most recent call last):",
        "RuntimeError: DataLoader worker is killed by signal: Killed.",
    )
    report = Report("", "", 1, lines)
    failure = failure_of(report, (1.0, ResourceUsage(oom_kills=1, memory_limit=2 << 30)))
    assert failure.kind == "oom-killed" and "2.0 GiB" in failure.message
    assert failure_of(report).kind == "worker-killed"


def test_the_headline_of_an_nccl_error_is_what_nccl_says() -> None:
    report = next(report for report in reports() if "Duplicate GPU" in "".join(report.lines))
    assert failure_of(report).headline == (
        "rank 3 (gpu2, local_rank 1) raised torch.distributed.DistBackendError: "
        "Duplicate GPU detected : rank 3 and rank 2 both on CUDA device e2000"
    )


def test_phrases_match_whole_words_on_one_line() -> None:
    entry = ErrorText("memory", ("first...last", "MemoryError"), "buy more")
    for text, found in (
        ("the FIRST and the last one", True),
        ("first\nlast", False),
        ("MemoryError: x", True),
        ("OutOfMemoryError", False),
    ):
        assert bool(entry.pattern.search(text)) == found


def test_no_entry_is_hidden_behind_an_earlier_one() -> None:
    for index, entry in enumerate(ERROR_TEXTS):
        for phrase in entry.phrases:
            sample = phrase.replace("...", " x ")
            earlier = [e for e in ERROR_TEXTS[:index] if e.pattern.search(sample)]
            assert not earlier, f"{phrase}: {earlier[0].kind}"


LOADER = (
    "Traceback (most recent call last):",
    '  File "/workspace/train.py", line 1, in <module>',
    "RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed.",
    "",
    "The above exception was the direct cause of the following exception:",
    "",
    "Traceback (most recent call last):",
    '  File "/workspace/train.py", line 1, in <module>',
    "RuntimeError: loading failed",
)
THREADS = tuple(f'  File "/usr/lib/python3.11/threading.py", line {n} in wait' for n in range(300))
THROWN = (
    "terminate called after throwing an instance of 'c10::Error'",
    "  what():  CUDA error: unspecified launch failure",
    "Fatal Python error: Aborted",
    *THREADS,
)
IGNORED = ("Exception ignored in: <function f>", *LOADER[:2], "ValueError: at exit")


@pytest.mark.parametrize(
    ("lines", "code", "kind", "message"),
    [
        (LOADER, 1, "worker-killed", "raised RuntimeError: loading failed"),
        ((*LOADER, *IGNORED), 1, "worker-killed", "raised RuntimeError: loading failed"),
        (THROWN, -6, "cuda-error", "raised c10::Error: CUDA error: unspecified launch failure"),
        (("lr 0.1", *LOADER[:2], *THREADS, "KeyError: 1"), 1, "exception", "raised KeyError: 1"),
    ],
)
def test_output_around_a_ranks_error_does_not_hide_it(
    lines: tuple[str, ...], code: int, kind: str, message: str
) -> None:
    """The supervisor keeps only the end of the output."""
    end = telling_end(("epoch 1", *lines))
    assert "epoch 1" not in end
    failure = failure_of(Report("", "", code, tuple(end)))
    assert (failure.kind, failure.message) == (kind, message)


def test_the_excerpt_of_a_crash_shows_where_python_was() -> None:
    frames = [f'  File "/workspace/train.py", line {n} in step' for n in range(50)]
    crash = ["Fatal Python error: Segmentation fault", "", "Thread 0x1 (most recent call first):"]
    crash += [*THREADS, "", "Current thread 0x2 (most recent call first):", *frames]
    crash += ["", "Extension modules: numpy (total: 1)"]
    lines = ["epoch 1", *crash]
    shown = [crash[0], "Current thread 0x2 (most recent call first):", *frames[:5]]
    shown += ["... 40 lines ...", *frames[-5:]]
    assert excerpt(telling_end(lines)) == excerpt(lines) == ["epoch 1", *shown]
    thrown = excerpt(telling_end([*THROWN[:2], *crash]))
    assert thrown == ["c10::Error: CUDA error: unspecified launch failure", *shown]
    reason = "OpenBLAS blas_thread_init: pthread_create: Resource temporarily unavailable"
    failure = failure_of(Report("", "", -11, tuple(telling_end([reason, *crash]))))
    assert failure.kind == "thread-limit"


def test_output_without_an_error_is_kept_to_its_last_lines() -> None:
    lines = [f"step {n}" for n in range(100)]
    assert telling_end(lines) == lines[60:]


def test_a_message_of_c_plus_plus_is_read_to_its_end() -> None:
    lines = [*THROWN[:1], "  what():  no rendezvous", "host gpu1", "port 29500"]
    assert telling_texts(lines) == ["c10::Error: no rendezvous\nhost gpu1\nport 29500"]
