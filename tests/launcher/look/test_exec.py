"""`exec`: which node runs the command, what it prints, and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes import FakeCluster
from local_machine import ON_TERMINAL, Machine

from launcher.terminal.console import Console

Make = Callable[..., FakeCluster]


@pytest.fixture
def running(fake_cluster: Make) -> FakeCluster:
    """A live run: node 0 has ranks 0 and 1, node 1 ranks 2 to 4, node 2 rank 5."""
    cluster = fake_cluster("gpu0", "gpu1", "gpu2", nproc_per_node=1)
    processes = {"gpu0": 2, "gpu1": 3, "gpu2": 1}
    text = Path(cluster.hosts_file).read_text()
    for host, count in processes.items():
        text = text.replace(f'"{host}"', f'{{"host": "{host}", "nproc_per_node": {count}}}', 1)
    Path(cluster.hosts_file).write_text(text)
    code, _, err = cluster.launch("--detach")
    assert code == 0, err
    return cluster


def ran_on(cluster: FakeCluster) -> list[str]:
    return [host.name for host in cluster if host.count("exec")]


@pytest.mark.parametrize(
    ("flags", "host"),
    [
        ([], "gpu0"),
        (["--node", "2"], "gpu2"),
        (["--rank", "1"], "gpu0"),
        (["--rank", "4"], "gpu1"),
        (["--rank", "5"], "gpu2"),
    ],
)
def test_the_command_runs_in_the_container_of_the_chosen_node(
    running: FakeCluster, flags: list[str], host: str
) -> None:
    running.hosts[host].exec_script = r"printf 'out\377\n'; echo err >&2; printf more; exit 9"
    code, out, err = running.ddpctl("exec", *flags, "--", "ls", "-l", "a b")
    assert (code, out, err) == (9, "out\udcff\nmore", "err\n")  # bytes as they are
    assert ran_on(running) == [host]
    [call] = [words for words in running.hosts[host].asked if words[0] == "exec"]
    [node] = running.hosts[host].nodes
    assert call == ("exec", node, "ls", "-l", "a b")


def test_two_nodes_on_one_host_have_their_own_containers(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0")
    hosts = Path(cluster.hosts_file)
    hosts.write_text(hosts.read_text().replace('["gpu0"]', '["gpu0", "gpu0"]'))
    run_id = cluster.launch("--detach")[1].strip()
    assert cluster.ddpctl("exec", "--node", "1", "--", "ls")[0] == 0
    assert ("exec", f"ddpctl-{run_id}-1", "ls") in cluster.hosts["gpu0"].asked


@pytest.mark.parametrize(
    ("flags", "said"),
    [(["--node", "3"], "is 2; choose a node"), (["--rank", "6"], "is 5; choose a rank")],
)
def test_a_node_or_rank_that_the_run_does_not_have(
    running: FakeCluster, flags: list[str], said: str
) -> None:
    code, _, err = running.ddpctl("exec", *flags, "--", "ls")
    assert code == 2 and said in err and err.count("\n") == 1
    assert ran_on(running) == []


def test_ranks_that_a_host_does_not_list_are_one_line(running: FakeCluster) -> None:
    running.hosts["gpu1"].install("grep", """#!/bin/sh\necho '"first": 1'; echo '"second": 2'\n""")
    code, _, err = running.ddpctl("exec", "--rank", "2", "--", "ls")
    assert code == 4 and "gpu1: ddpctl could not handle" in err and err.count("\n") == 1


def test_a_run_that_waits_in_line_has_no_ranks_yet(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0", "gpu1", gpus=1, master_port="auto")
    assert cluster.launch("--detach")[0] == 0
    assert cluster.launch("--detach", "--wait", "5m")[0] == 0
    code, _, err = cluster.ddpctl("exec", "--rank", "1", "--", "ls")
    line = (
        "gpu[0-1]: its node has no ranks: the run is waiting in line, or its files were removed; "
    )
    assert (code, err) == (2, f"ddpctl: error: {line}see `ddpctl ps`\n")


def test_a_node_that_has_ended(running: FakeCluster) -> None:
    running.nodes[1].end(1)
    code, _, err = running.ddpctl("exec", "--node", "1", "--", "ls")
    assert code == 2 and err.count("\n") == 1
    assert "gpu1: node 1 of" in err and "is not running (exited)" in err
    running.hosts["gpu2"].nodes.clear()
    assert "is not running (gone)" in running.ddpctl("exec", "--node", "2", "--", "ls")[2]


def test_a_host_that_does_not_answer(running: FakeCluster) -> None:
    running.hosts["gpu0"].reachable = False
    assert running.ddpctl("exec", "--", "ls")[0] == 4


def test_on_all_nodes_lines_are_complete_and_prefixed(running: FakeCluster) -> None:
    for number, host in enumerate(running):
        code = 3 + number if number else 0
        host.exec_script = (
            r"printf he; echo warn >&2; sleep 0.1; printf 'llo\nlast'; sleep 0.1; printf ' line';"
            f"exit {code}"
        )
    code, out, _ = running.ddpctl("exec", "--all", "--", "ls")
    assert code == 4  # of node 1; node 0 has 0
    assert sorted(out.splitlines()) == sorted(
        f"[{name}] {line}" for name in running.hosts for line in ("hello", "warn", "last line")
    )


def test_on_all_nodes_an_overwritten_line_keeps_its_prefix(
    running: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Console, "on_terminal", True)
    for host in running:
        host.exec_script = r"printf '10%%\r20%%\n'"
    _, out, _ = running.ddpctl("exec", "--all", "--", "ls")
    assert sorted(out.splitlines()) == [f"[gpu{number}] 20%" for number in range(3)]


def test_on_all_nodes_one_silent_host_does_not_hide_the_others(running: FakeCluster) -> None:
    for host in running:
        host.exec_script = "echo fine"
    running.hosts["gpu1"].reachable = False
    code, out, err = running.ddpctl("exec", "--all", "--", "ls")
    assert code == 4 and "gpu1: no answer" in err
    assert sorted(out.splitlines()) == ["[gpu0] fine", "[gpu2] fine"]


def test_stdin_is_forwarded_to_its_end(
    running: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"some\x00input")
    os.close(writer)
    monkeypatch.setattr(sys, "stdin", os.fdopen(reader))
    running.hosts["gpu0"].exec_script = "cat"
    assert running.ddpctl("exec", "-i", "--", "cat")[:2] == (0, "some\0input")
    [node] = running.hosts["gpu0"].nodes
    assert ("exec", "-i", node, "cat") in running.hosts["gpu0"].asked


def test_another_machine_finds_the_run_on_its_hosts(running: FakeCluster) -> None:
    running.forget()
    code, _, err = running.ddpctl("exec", "--hosts", running.hosts_file, "--rank", "2", "--", "ls")
    assert code == 0, err
    assert ran_on(running) == ["gpu1"]


# --- local processes ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    machine = Machine(tmp_path_factory.mktemp("local"))
    machine.ddpctl(
        "launch", "hosts.yaml", "--no-check", "-d", "--env", "SLEEP=600", "--env", "A=b c"
    )
    yield machine
    machine.ddpctl("kill")


def test_beside_a_local_process_with_its_environment_and_folder(local: Machine) -> None:
    script = 'echo "$DDPCTL_NODE_RANK $A"; ls; echo no >&2; exit 5'
    done = local.ddpctl("exec", "--rank", "2", "--", "sh", "-c", script, code=5)
    assert done.stdout.splitlines() == ["1 b c", "train.py"]
    assert done.stderr == "no\n"
    assert "not found" in local.ddpctl("exec", "--", "no-such-command", code=127).stderr


def test_no_list_of_processes_shows_the_environment(local: Machine) -> None:
    script = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '^A=b c$'"
    assert local.ddpctl("exec", "--", "sh", "-c", script, code=1).stdout == "0\n"


def test_stdin_of_a_local_command(local: Machine) -> None:
    line = [sys.executable, "-m", "launcher", "exec", "-i", "--", "tr", "a-z", "A-Z"]
    done = subprocess.run(
        line, input="quiet\n", capture_output=True, text=True, env=local.env, cwd=local.folder
    )
    assert (done.returncode, done.stdout) == (0, "QUIET\n"), done.stderr


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_output_that_nobody_reads_changes_no_exit_code(local: Machine, closed: str) -> None:
    """As with `2>&1 | head -n 1`."""
    command = "seq 9; seq 9 >&2; sleep 0.2; seq 9; seq 9 >&2; exit 5"
    line = [sys.executable, "-m", "launcher", "exec", "--", "sh", "-c", command]
    reader, writer = os.pipe()
    os.close(reader)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: writer}
    done = subprocess.run(line, text=True, env=local.env, cwd=local.folder, **pipes)
    os.close(writer)
    assert done.returncode == 5, done.stderr


def test_a_local_command_gets_this_terminal(local: Machine) -> None:
    code, shown = local.in_terminal("exec", "-t", "--", "sh", "-c", ON_TERMINAL)
    assert "17 93" in shown
    assert code == 42  # Ctrl-C went to the command, not to ddpctl


@pytest.mark.parametrize("flags", [[], ["--all-nodes"]])
def test_ctrl_c_ends_a_local_command_too(local: Machine, flags: list[str]) -> None:
    script = "echo ready; exec sleep 4322"
    code, _ = local.in_terminal("exec", *flags, "--", "sh", "-c", script)
    assert code == 130
    end = time.monotonic() + 10
    while any("4322" in line for line in local.left()):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_without_t_a_terminal_gets_no_escape_sequences_but_colors(local: Machine) -> None:
    script = """
        printf '\\033]0;ti'; sleep 0.2; printf 'tle\\007\\033[31mred\\033[0m\\n'
        printf '\\033[2Jcleared\\n' >&2
        sleep 0.2; echo ready; sleep 60
    """
    code, shown = local.in_terminal("exec", "--", "sh", "-c", script)
    assert code == 130
    assert "\x1b[31mred\x1b[0m" in shown and "cleared" in shown
    assert "tle" not in shown and "\x1b[2J" not in shown


def test_a_damaged_record_stops_no_command_in_the_run(running: FakeCluster) -> None:
    [file] = running.state.glob("ddpctl/runs/*/run.json")
    file.write_text("{")
    code, _, err = running.ddpctl("exec", "--", "true")
    assert code == 0, err
    assert "run.json: cannot be read" in err
