"""Any value on the command line, or in a file that it names: an exit code of the contract, and one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeCluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_hostile_hosts import ESCAPE, EXAMPLES

from launcher.look import stacks

pytestmark = pytest.mark.slow

Make = Callable[..., FakeCluster]
OWN = re.compile("(state|out|home/[.]cache)(/|$)")  # where ddpctl may write
CODES = {0, 1, 2, 3, 4, 5, 6, 7, 130}  # and not 70, an internal error

# what may stand in argv: no NUL; other bytes than UTF-8 arrive as surrogates
ARGUMENT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    | st.sampled_from(["\udcff", "\x1b", "/", ".", "~"]),
    max_size=12,
)
VALUE = ARGUMENT | st.sampled_from(
    ["../../x", "/etc/passwd", "/dev/null", "~nobody-here/x", "\x1b]0;x\x07", "\x1b[2Jx", "nan", "inf",
     "-5", "1e308", "9" * 5000, "x" * 3000, "0-3,5", "0-99999999999", "a=b", "=", "K=\x1b[2J", "1d", "²",
     "a:1@b", "a:0,1", "sanity", "20", "", "-", "--", "-h" ]
)  # fmt: skip
# V stands for a drawn value, H for the hosts file
LINES = [
    line.split()
    for line in """
    launch H --dry-run --name V --env V
    launch H --dry-run --image V --workdir V --dataset V
    launch H --dry-run --env-file V --hang-timeout V
    launch H --dry-run --time-limit V --master-port V
    launch H --dry-run --include V --exclude V
    launch V --dry-run
    launch -H V --dry-run -- V
    launch -H V --include V --dry-run
    logs V --rank V --node V
    logs --since V --grep V --tail V
    logs --host V --attempt V
    kill V
    kill V --hosts H
    ps V
    attach V
    resume V --hosts V
    report V -o out/V
    fetch V --to out/V
    stacks V
    clean V
    push H --prune --include V
    init out/hosts.yaml --force --host V --image V --command V
    init out/V --ssh-config V --user V
    V V
    """.strip().splitlines()
]


@pytest.fixture
def cluster(fake_cluster: Make, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """One host, with a run that has succeeded."""
    monkeypatch.setattr(stacks, "TIMEOUT", 0)  # no supervisor answers
    made = fake_cluster("gpu0")
    made.nodes_end(exit_code=0)
    assert made.launch()[0] == 0
    (made.folder / "out").mkdir()
    return made


@given(st.sampled_from(LINES), st.data())
@settings(
    max_examples=EXAMPLES["command lines"],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_command_lines(cluster: FakeCluster, line: list[str], data: st.DataObject) -> None:
    before = files(cluster.folder)
    argv = []
    for word in line:
        drawn = data.draw(VALUE) if "V" in word else ""
        inside = drawn.replace("/", "_") if word != "V" else drawn
        argv.append({"H": cluster.hosts_file}.get(word, word.replace("V", inside)))
    code, _, err = cluster.ddpctl(*argv)
    assert code in CODES, err
    assert "Traceback" not in err and "internal error" not in err
    assert not ESCAPE.search(err)
    new = files(cluster.folder) - before
    assert [path for path in new if not OWN.match(str(path))] == []


def files(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if "hosts/gpu0" not in str(path)}
