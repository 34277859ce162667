"""A run whose first attempt failed and whose second succeeded, for the tests of the report."""

from __future__ import annotations

import json

from launcher.failure import FirstFailure
from launcher.outcomes import NodeState, RunState
from launcher.report.charts import Chart, charts
from launcher.report.journals import Journals, NodeJournal, began
from launcher.report.page import RunView
from launcher.runs.record import (
    AttemptRecord,
    NodeRecord,
    RestartRecord,
    RunRecord,
    parse_timestamp,
)
from launcher.supervisor.events import (
    Environment,
    Event,
    Frame,
    GpuLoad,
    RankStacks,
    Stack,
    Usage,
)

EVIL = "<script>document.title='taken'</script><img src=\"http://evil.example/x\">&'"
TIMES = ("2026-11-21T05:00:00.000Z", "2026-11-21T05:00:01.000Z", "2026-11-21T05:00:40.000Z")
BEGAN = parse_timestamp(TIMES[1]) or 0.0


def record_of(evil: str = "plain") -> RunRecord:
    failure = FirstFailure(
        host=f"gpu2{evil}",
        node_rank=1,
        rank=3,
        local_rank=None,
        exit_code=1,
        signal=None,
        kind="exception",
        time="2026-11-21T05:00:30.000Z",
        message=f"ValueError: boom {evil}",
        excerpt=f"Traceback {evil}\x1b[31m\n  line two",
        remedy=f"look at {evil}",
    )
    nodes = [NodeRecord(0, f"gpu1{evil}", "/r", NodeState.FAILED, 1), NodeRecord(1, "gpu2", "/r")]
    attempts = [
        AttemptRecord(
            1, RunState.FAILED, TIMES[0], nodes, 4, "10.0.0.1", 29500, TIMES[1], TIMES[2], failure,
            digests={"code": "11" * 20},
        ),
        AttemptRecord(
            2, RunState.SUCCEEDED, TIMES[2], nodes, 4, "10.0.0.1", 29500, TIMES[2], TIMES[2],
            by="restart", digests={"code": "22" * 20},
        ),
    ]  # fmt: skip
    cause = (failure.host, failure.node_rank, failure.rank, f"was killed by SIGKILL {evil}")
    attempts[0].restarts.append(RestartRecord(TIMES[1], "in-place", "killed", *cause, saved=True))
    return RunRecord(
        run_id="20261121-050000-abcd",
        name=f"night{evil}",
        owner=f"me{evil}",
        engine="docker",
        hosts=["gpu1", "gpu2"],
        image=f"image{evil}",
        image_digest="sha256:1",
        dataset_digest=None,
        workdir_digest=None,
        command=["train.py", "two words", evil],
        stop_timeout=60,
        attempts=attempts,
    )


def metrics_lines() -> bytes:
    lines = [{"kind": "start", "attempt": 1}]
    lines += [
        {"kind": "train", "step": step, "loss": 2.5 - step / 100, "img_s": 1000 + step}
        for step in range(0, 100, 10)
    ]
    lines += [{"kind": "eval", "step": 100, "top1": 0.625, "loss": 1.25}]
    lines += [{"kind": "train", "step": 110, "loss": None}, {"kind": "train", "step": 120}]
    return "\n".join(json.dumps(line) for line in lines).encode() + b'\n{"kind": "train", "st'


def node_journal(attempt: int, rank: int, evil: str = "plain") -> NodeJournal:
    """Ranks 2 * rank and the next; rank 3 is elsewhere. torch is newer in attempt 2."""
    ranks = (2 * rank, 2 * rank + 1)
    stacks = tuple(
        Stack(r, r % 2, 7, "S", frames=(Frame(f"/w/{evil}.py", 31 + (r == 3), "main", "x()"),))
        for r in ranks
    )
    versions = {"torch": f"2.{attempt}", f"kernel{evil}": "6.1"}
    events: list[tuple[float, Event]] = [
        (BEGAN, Environment(versions, ("HOME", *(["NCCL_DEBUG"] if attempt > 1 else [])))),
        *((BEGAN + 60 * n, Usage(1.5 + n, (GpuLoad(90 + n, 40960, 81920),))) for n in range(3)),
        (BEGAN + 200, RankStacks(stacks)),
    ]
    host = f"gpu{rank + 1}{evil if rank == 0 else ''}"
    return NodeJournal(rank, host, events=events, attempt=attempt)


def journals_of(evil: str = "plain") -> Journals:
    return Journals([node_journal(a, r, evil) for a in (1, 2) for r in (0, 1)])


def shown(evil: str = "plain", charts_drawn: list[Chart] | None = None) -> RunView:
    record, journals = record_of(evil), journals_of(evil)
    drawn = [*charts(metrics_lines()), *journals.usage_charts(began(record))]
    notes = [evil] if evil != "plain" else []
    chosen = drawn if charts_drawn is None else charts_drawn
    evidence = {"failure-attempt-1": f"kernel {evil}", "failure-attempt-2-restart-1": f"gpu {evil}"}
    return RunView(record, chosen, journals, f"hosts: [gpu1] # {evil}", notes, TIMES[2], evidence)
