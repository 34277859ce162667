"""Whatever a host, a record or an archive says: a typed value or a refusal, never an exception, a path
outside its folder, or an escape on the terminal.

EXAMPLES counts what each property tries; docs/security.md states the sum.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import launcher
from launcher.api.call import parsed_outcome, split
from launcher.diagnosis.evidence import Evidence, NodeEvidence
from launcher.diagnosis.first_failure import first_failure
from launcher.engines.engine_info import parse_engine, parse_image
from launcher.engines.status import inspected, read_status
from launcher.errors import CommandFailed, UsageError
from launcher.facts.facts import LONGEST_LINE, parse
from launcher.facts.hardware import Details, details
from launcher.facts.nvidia import Nvidia, parse_nvidia, parse_use
from launcher.follow.trainer_progress import parse_progress
from launcher.logs.event_reader import parsed_event
from launcher.logs.journal_reader import JournalReader
from launcher.logs.log_entry import OutputLines
from launcher.look import fetch
from launcher.look.exec import Sanitizer
from launcher.push.files import manifest
from launcher.push.files.manifest import is_inside
from launcher.push.files.push_tree import parse_trees
from launcher.report.charts import charts
from launcher.report.journals import HEAD
from launcher.run_id import is_run_id
from launcher.runs.reported import parse_reports
from launcher.runs.run_folder import RunFolder, UnreadableRecord
from launcher.stop.inventory import parse_inventory
from launcher.stop.prune_pushed import unused_trees
from launcher.supervisor.usage import parse_gpus
from launcher.terminal.sanitize import colored, without_overwritten
from launcher.text import printable

pytestmark = pytest.mark.slow

EXAMPLES = {
    "labels": 1500,
    "records": 800,
    "reports of runs": 1000,
    "journal events": 1500,
    "facts": 1000,
    "nvidia-smi": 600,
    "engines": 1000,
    "file lists": 1200,
    "trees": 1000,
    "processes": 500,
    "results": 500,
    "terminal": 800,
    "long texts": 150,
    "command lines": 250,  # in test_hostile_command_lines.py
}
ESCAPE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["..", "/etc", "\x1b]0;x\x07", "9" * 5000, "r1", "exited", "2026-11-22T10:00:00Z"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)  # fmt: skip
WORD = st.sampled_from(
    ["r1", "..", "/etc/passwd", "../../x", "0", "-1", "²", "١", "9" * 5000, "1e3", "\x1b[2J", "a b", ""]
)  # fmt: skip
TEXT = st.text(max_size=12) | WORD


def nvidia(xml: str, owners: Sequence[str] = ()) -> Nvidia:
    return parse_nvidia(defaultdict(list, nvidia=[xml], gpuowners=[*owners]))


def some(key: str) -> Any:
    return settings(max_examples=EXAMPLES[key])


def fields(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, JSON | TEXT))


def test_the_properties_try_ten_thousand_inputs_and_the_documentation_says_so() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    assert sum(EXAMPLES.values()) >= 10_000
    assert f"{sum(EXAMPLES.values()):,} inputs" in page


@given(
    st.dictionaries(
        st.sampled_from(["run-id", "attempt", "node-rank", "nnodes", "owner", "name", "master-port"])
        .map("io.ddpctl.{}".format),
        TEXT | JSON,
    ),
    fields("State", "Config") | st.fixed_dictionaries(
        {"State": fields("Status", "ExitCode", "OOMKilled", "StartedAt", "FinishedAt", "Error"),
         "Config": fields("Image")}
    ),
    TEXT,
)  # fmt: skip
@some("labels")
def test_labels(labels: dict[str, Any], answer: dict[str, Any], handle: str) -> None:
    status = read_status("gpu1", handle, labels, inspected(answer))
    if status:
        assert is_run_id(status.run_id) and 0 <= status.node_rank < status.nnodes
        assert not ESCAPE.search(f"{status.owner}{status.name}{status.error}{status.image}")


RECORD = json.loads(
    """{"version": 1, "run_id": "r1", "name": "", "owner": "a@b", "engine": "docker", "hosts": ["a"],
    "image": "i", "image_digest": null, "dataset_digest": null, "workdir_digest": null,
    "command": ["t.py"], "stop_timeout": 60, "attempts": [{"attempt": 1, "state": "RUNNING",
    "created": "", "nodes": [{"node_rank": 0, "host": "a", "run_dir": "/h/.ddpctl/runs/r1"}],
    "world_size": 1, "master_addr": "a", "master_port": 1, "first_failure": null}]}"""
)


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """`document` with something in it, or all of it, replaced."""
    if document and isinstance(document, (dict, list)) and draw(st.integers(0, 4)):
        keys = sorted(document) if isinstance(document, dict) else range(len(document))
        key = draw(st.sampled_from(list(keys)))
        copy = document.copy()
        copy[key] = draw(changed(document[key]))
        return copy
    return draw(JSON)


@given(changed(RECORD) | JSON, st.none() | st.integers(0, 300))
@some("records")
def test_records(document: Any, cut: int | None) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder(Path(scratch) / "r1")
        folder.path.mkdir()
        text = json.dumps(document)[:cut]
        folder.record_file.write_text(text)
        try:
            record = folder.load()
        except UnreadableRecord as error:
            assert "\n" not in str(error) and not ESCAPE.search(str(error))
            return
        assert record.run_id == "r1"
        assert [n.node_rank for n in record.attempt.nodes] == [*range(len(record.attempt.nodes))]
        assert not ESCAPE.search(record.name + record.owner + record.state)


@given(
    st.lists(WORD | st.sampled_from(["r1 0 1 1 5", "r1 1 2 0 5"]), max_size=6),
    changed(RECORD) | JSON,
    TEXT | st.sampled_from(['1.5\t!\t{"kind": "end", "state": "failed", "exit_code": 1}']),
)
@some("reports of runs")
def test_reports_of_runs(words: list[str], document: Any, record: str) -> None:
    text = json.dumps(document)
    rows = "\n".join([*words, text, record]).encode(errors="replace")
    for status, _ in parse_reports(rows, "gpu1"):
        assert is_run_id(status.run_id)
        assert 0 <= status.node_rank < 10_000 and 0 <= status.attempt < 10_000
        assert status.node_rank < status.nnodes
        assert ".." not in PurePosixPath(status.handle).parts


@given(
    changed({"kind": "rank_exit", "rank": 0, "local_rank": 0, "exit_code": 1}) | JSON, st.binary()
)
@some("journal events")
def test_journal_events(document: Any, noise: bytes) -> None:
    text = json.dumps(document).encode()
    parsed_event(text)
    parsed_event(noise)
    reader = JournalReader()
    data = b"1.5\t!\t" + text + b"\n" + noise + b"\n"
    assert reader.feed(data)[-1].offset == reader.offset == len(data)
    parse_progress(text + b"\n" + noise, 1)
    charts(text + b"\n" + noise)


SECTIONS = ("user", "home", "system", "ssh", "boot", "cores", "net", "clock", "gpus", "listening", "disk",
            "memory", "interfaces", "ibports", "holder", "driver", "gpuowners", "tools")  # fmt: skip
ROW = st.lists(TEXT | st.integers().map(str), max_size=6).map(" ".join)


def parse_details(sections: defaultdict[str, list[str]]) -> Details:
    return details(sections, lambda name: next(iter(sections[name]), ""))


@given(st.dictionaries(st.sampled_from(SECTIONS), ROW), st.booleans())
@some("facts")
def test_facts_and_hardware(sections: dict[str, str], whole: bool) -> None:
    known = {"user": "uid=7(ann) gid=8(staff)", **sections} if whole else sections
    text = "".join(f"\n@@{name}\n{row}\n" for name, row in known.items()) + "\n@@end\n1.5\n"
    try:
        facts = parse(text)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert not ESCAPE.search(facts.user + facts.home + facts.kernel + facts.hostname)
    parse_details(defaultdict(list, {name: row.split("\n") for name, row in sections.items()}))


@given(
    st.lists(
        st.tuples(st.sampled_from(["gpu", "pid", "uuid", "product_name", "ecc_mode", "x"]), TEXT)
    ),
    TEXT,
    st.lists(ROW, max_size=3),
)
@some("nvidia-smi")
def test_nvidia_smi(tags: list[tuple[str, str]], noise: str, owners: list[str]) -> None:
    inner = "".join(f"<{tag}>{text}</{tag}>" for tag, text in tags)
    for body in (inner, f"<gpu>{inner}</gpu>", f"{inner}{noise}"):
        nvidia(f"<nvidia_smi_log>{body}</nvidia_smi_log>", owners)
    row = ", ".join(text for _, text in tags)
    parse_gpus("\n".join([noise, row]).encode(errors="replace"))
    parse_use("\n".join([f"gpu, 0, GPU-1, {row}", f"app, GPU-1, 7, {noise}", *owners]))


@given(
    fields(
        "ServerVersion", "Driver", "CgroupDriver", "DockerRootDir", "Runtimes", "SecurityOptions"
    ),
    fields("Id", "Config", "RootFS", "Architecture", "RepoDigests"),
)
@some("engines")
def test_answers_of_an_engine(about: dict[str, Any], image: dict[str, Any]) -> None:
    parse_image(image)
    parse_engine(about, None)


PATHS = st.lists(
    st.sampled_from(["checkpoints", "output", "..", ".", "", "a", ".git", "\n", "~", "\x1b[2J"])
).map("/".join)


@given(st.one_of(PATHS.map(str.encode), st.binary(max_size=30)), st.binary(max_size=64))
@some("file lists")
def test_file_lists(path: bytes, digest: bytes) -> None:
    for row in (b"0" * 64 + b"  " + path, digest + b"  " + path):
        match = fetch.ROW.fullmatch(row)
        if match and (found := fetch.safe_path(match[2])):
            target = Path("/to") / found
            assert target.is_relative_to("/to") and ".." not in target.parts
            assert found.parts[0] in fetch.FOLDERS


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["resume", "earlier", "free", "present", "datasets/" + "a" * 64, "/etc"]),
            WORD, WORD
        ).map(" ".join)
    ),
    st.lists(st.tuples(st.sampled_from([b"f", b"d", b"l", b"q"]), WORD, PATHS), max_size=4),
)  # fmt: skip
@some("trees")
def test_trees_and_manifests(rows: list[str], entries: list[tuple[bytes, str, str]]) -> None:
    parse_trees("\n".join(rows))
    inventory = parse_inventory("\n".join(["host 9 h /", *(f"entry 1 {row}" for row in rows)]), "h")
    for name in unused_trees(inventory, set()):
        assert re.fullmatch(r"(datasets|workdirs)/[0-9a-z.-]+", name)
    text = b"".join(
        b"%b %b %b\0%b\0" % (kind, size.encode(), b"a", path.encode())
        for kind, size, path in entries
    )
    found = manifest.parse(text, hashlib.sha256(text).hexdigest())
    assert found is None or all(is_inside(entry.path) for entry in found.entries)


KINDS = st.sampled_from(["host", "process", "entry", "busy", "open", "other"])


@given(st.lists(st.tuples(KINDS, WORD, WORD, TEXT).map(" ".join)))
@some("processes")
def test_lists_of_processes_and_folders(rows: list[str]) -> None:
    inventory = parse_inventory("\n".join(rows), "gpu1")
    assert all(is_run_id(each.run_id) and each.pid > 0 for each in inventory.processes)
    assert inventory.folder == "" or inventory.folder.startswith("/")


@given(
    changed({"result": 1, "error": {"type": "T", "message": "m", "traceback": ""}, "pickle": ""}),
    st.binary(max_size=30)
    | st.tuples(WORD, WORD).map(lambda pair: " ".join(pair).encode() + b"\n"),
)
@some("results")
def test_results_of_ranks(document: Any, noise: bytes) -> None:
    text = json.dumps(document).encode()
    for data in (b"0 " + text + b"\n", noise + b"\n", noise + b" " + text + b"\n"):
        try:
            for result in split(data, "gpu1").values():
                outcome = parsed_outcome("gpu1", result)
                assert isinstance(outcome.pickle, str | None)
        except CommandFailed as error:
            assert "\n" not in str(error) and not ESCAPE.search(str(error))


@given(st.lists(st.binary() | TEXT.map(lambda text: text.encode(errors="replace"))), st.text())
@some("terminal")
def test_terminal(pieces: list[bytes], message: str) -> None:
    sanitizer = Sanitizer()
    joined = b"".join(sanitizer.feed(piece) for piece in pieces).decode()
    apart = "".join(colored(piece.decode(errors="replace")) for piece in pieces)
    for shown in (joined, apart):
        assert not ESCAPE.search(re.sub(r"\x1b\[[0-9;:]*m", "", shown))
    assert not ESCAPE.search(printable(message))
    assert not ESCAPE.search(str(UsageError(message)))


UNITS = st.sampled_from(
    ["a", "0", "1 ", " ", "\t", "\n", "-", ".", "a:", "a: ", "Kernel Module ", "Kernel Module\t1", "/",
     "path a\n", "uid=0(", ")", "[", "{", '{"a":', "[],", "<gpu>", "<gpu><process_info>", "<process_info/>",
     "\x1b]", "\x1b[", "\x1b", "\r", "\x9b", "|-- ", "%|", "[a:", "0:", "gpu, 0, ", "/lib/python3",
     "1.5\t!\t", "@@memory\n", "1\t0\t\n", "epoch ", "f 0 x\0", "0 a\0", "Error: ",
     "Traceback (most recent call last):\n"]
)  # fmt: skip
LONG = 300_000  # characters


def three_times(text: str) -> list[OutputLines]:
    return [OutputLines("gpu1", 0, 1.0, 0, [text.encode()])] * 3


PARSERS: dict[str, Callable[[str], object]] = {
    "facts": lambda text: parse(f"@@user\nuid=1(a) gid=1\n@@disk\n{text}\n@@end\n1\n"),
    "every section": lambda text: parse_details(defaultdict(lambda: text.split("\n"))),
    "one line of every section": lambda text: parse_details(
        defaultdict(lambda: [text[:LONGEST_LINE]])
    ),
    "nvidia-smi": lambda text: nvidia(f"<nvidia_smi_log>{text}", text.split("\n")),
    "deep nvidia-smi": lambda text: nvidia(
        f"<nvidia_smi_log>{'<gpu><process_info>' * 5000}{'</process_info></gpu>' * 5000}</nvidia_smi_log>"
    ),
    "use of GPUs": parse_use,
    "journal": lambda text: JournalReader().feed(text.encode()),
    "event": lambda text: parsed_event(text.encode()),
    "metrics": lambda text: charts(text.encode()),
    "progress": lambda text: parse_progress(text.encode(), 1),
    "reports of runs": lambda text: parse_reports(text.encode(), "gpu1"),
    "inventory": lambda text: parse_inventory(text, "gpu1"),
    "trees": parse_trees,
    "journals of a report": lambda text: HEAD.split(text.encode()),
    "terminal": colored,
    "carriage returns": lambda text: without_overwritten(text.encode()),
    "output in pieces": lambda text: Sanitizer().feed(text.encode()),
    "message": lambda text: str(UsageError(text)),
    "engine": lambda text: parse_engine({"ServerVersion": text, "Driver": text}, None),
    "failure": lambda text: first_failure(
        Evidence(1, [NodeEvidence(0, "gpu1", newest_lines=three_times(text), exit_code=1)])
    ),
}


@given(st.sampled_from(sorted(PARSERS)), UNITS, st.sampled_from(["", "\n", "x", "\x07"]))
@some("long texts")
def test_long_texts_take_a_time_in_proportion(parser: str, unit: str, end: str) -> None:
    """A pattern of quadratic time would need a minute, in which Ctrl-C does nothing."""
    text = unit * (LONG // len(unit)) + end
    began = time.process_time()
    with contextlib.suppress(ValueError):
        PARSERS[parser](text)
    assert time.process_time() - began < 4.0


def test_nothing_that_a_host_sends_is_unpacked_here() -> None:
    """Files come one by one, each by a path that was checked. pip's wheel comes from the package index."""
    source = Path(launcher.__file__).parent
    callers = [p for p in source.rglob("*.py") if re.search(r"\.extract(all)?\(", p.read_text())]
    assert callers == [source / "push" / "packages" / "wheels.py"]
