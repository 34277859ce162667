"""The console for real: terminals, files, and a stdout that cannot be written."""

from __future__ import annotations

import json
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from local_machine import Machine

from launcher.logs.log_entry import parse
from launcher.terminal.console import Console, WarningHandler
from launcher.terminal.table import table

EVIL = b"[gpu1:0] \x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b2J\x1b[31mred\x1b[0m\n"

PROGRESS = b"[gpu1:0] 10%\r20%\n"

PROGRAM = f"""
import sys
from launcher.logs.log_entry import parse
from launcher.terminal.console import Console
console = Console()
console.write({EVIL!r})
console.print("a title \\x1b]0;owned\\x07")
console.say("saying \\x1b[2J\\x1b[31mred")
console.error("one\\x1b[31m\\ntwo \\u202e")
console.table([["\\x1b[2Jgpu1", "ok"]], ["HOST", "SSH"], {{"ok": "32"}})
console.show(parse({PROGRESS!r}, 0, 1.0))
for _ in range(20000):
    console.write(b"a line of a rank\\n")
console.flush()
print("the end", file=sys.stderr)
sys.exit(7)
"""


def test_any_text_can_be_printed(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    console = Console()
    for text in ("a file \udcff", "half a pair \ud800"):
        console.print(text)
    assert capfdbinary.readouterr().out == "a file \udcff\nhalf a pair \ufffd\n".encode(
        errors="surrogateescape"
    )


def on_terminal(program: str, **env: str) -> bytes:
    """All that the program writes, where stdout and stderr are a terminal."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=follower, stderr=follower, env={**os.environ, **env}
    ):
        os.close(follower)
        seen = b""
        try:
            while chunk := os.read(leader, 65536):
                seen += chunk
        except OSError:  # how a pseudo terminal ends
            pass
    os.close(leader)
    return seen.replace(b"\r\n", b"\n")


def test_without_results_only_json_documents_are_printed(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    console = Console(results=False)
    console.print("a run id")
    console.table([["gpu1", "ok"]], ["HOST", "SSH"])
    console.show(parse(PROGRESS, 0, 1.0))
    console.write(b"a line of a rank\n")
    console.json({"version": 1})
    console.say("a message")
    out, err = capfdbinary.readouterr()
    assert json.loads(out) == {"version": 1}
    assert err == b"ddpctl: a message\n"


def test_a_terminal_gets_colors_and_no_other_escape() -> None:
    seen = on_terminal(PROGRAM)
    assert b"[gpu1:0] \xef\xbf\xbd2J\x1b[31mred\x1b[0m\n" in seen
    assert b"\n[gpu1:0] 20%\n" in seen
    assert b"a title \n" in seen
    assert b"ddpctl: saying red\n" in seen
    assert b"ddpctl: error: one\nddpctl: error: two \n" in seen
    assert b"gpu1  \x1b[32mok \x1b[0m\n" in seen
    assert b"\x1b" not in seen.replace(b"\x1b[31m", b"").replace(b"\x1b[32m", b"").replace(
        b"\x1b[0m", b""
    )
    assert b"gpu1  ok\n" in on_terminal(PROGRAM, NO_COLOR="1")


def test_a_file_gets_log_lines_byte_for_byte_and_messages_are_clean_everywhere() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True)
    assert done.stdout.startswith(EVIL + b"a title \x1b]0;owned\x07\n")
    assert b"gpu1  ok\n" + PROGRESS in done.stdout
    assert b"\x1b" not in done.stderr


@pytest.mark.parametrize(
    ("redirection", "reported"),
    [
        (">/dev/full", "No space left on device"),
        ("| true", "the reader closed it"),
        (">&-", ""),
    ],
)
def test_a_stdout_that_cannot_be_written_is_reported_once_and_changes_no_exit_code(
    redirection: str, reported: str
) -> None:
    shell = f'set -o pipefail; "$0" -c "$1" {redirection}'
    done = subprocess.run(
        ["bash", "-c", shell, sys.executable, PROGRAM],
        env={**os.environ, "PYTHONUNBUFFERED": ""},  # what is still in the buffer fails at the end
        capture_output=True,
        text=True,
    )
    assert done.returncode == 7, done.stderr
    assert done.stderr.endswith("the end\n")
    said = [line for line in done.stderr.splitlines() if "nothing more will be printed" in line]
    assert said == (
        [f"ddpctl: nothing more will be printed to stdout: {reported}"] if reported else []
    )
    assert "Exception" not in done.stderr and "Traceback" not in done.stderr


def test_stdout_and_stderr_that_both_end_change_no_exit_code() -> None:
    shell = 'set -o pipefail; "$0" -c "$1" 2>&1 | true'
    done = subprocess.run(
        ["bash", "-c", shell, sys.executable, PROGRAM],
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        capture_output=True,
    )
    assert done.returncode == 7


def test_a_closed_stdout_is_not_given_to_the_next_file(tmp_path: Path) -> None:
    program = (
        "import os\nfrom launcher.terminal.console import Console\nConsole()\n"
        f"file = open({str(tmp_path / 'file')!r}, 'w')\nos.write(1, b'x')\n"
        "raise SystemExit(file.fileno())"
    )
    done = subprocess.run(["sh", "-c", '"$0" -c "$1" >&-', sys.executable, program])
    assert done.returncode > 2
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
def test_a_run_is_followed_and_recorded_without_a_usable_stdout(
    tmp_path: Path, redirection: str
) -> None:
    machine = Machine(tmp_path)
    launch = f'"$0" -m launcher launch hosts.yaml --env BAD=1 --env SLEEP=1 {redirection}'
    done = subprocess.run(
        ["sh", "-c", launch, machine.python],
        cwd=tmp_path,
        env=machine.env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    assert machine.record()["state"] == "FAILED"
    logs = machine.ddpctl("logs").stdout
    assert all(f"up {rank} " in logs for rank in range(4))
    assert "boom on purpose" in logs


def test_warnings_of_code_without_a_console_are_messages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = logging.Logger("ddpctl")
    log.handlers = [WarningHandler(Console())]
    log.warning("%s: accepted host key \x1b[2J%s", "gpu1", "abc")
    assert capsys.readouterr() == ("", "ddpctl: warning: gpu1: accepted host key abc\n")
    log.handlers = [WarningHandler(Console(quiet=True))]
    log.warning("not shown")
    assert capsys.readouterr() == ("", "")


def test_a_cell_is_one_line_of_printable_text() -> None:
    assert table([["gpu1\x1b[2J\n", "y"]], ["HOST", "A"]).splitlines() == [
        "HOST  A",
        "gpu1  y",
    ]
