"""The process engine: torchrun in a Python environment on the host, without a container.

A node is one detached process, the same supervisor as in a container. This engine keeps all state in
files on the host, which `sh` scripts read and write; process_files.sh describes the files.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from ..budget import parse_json
from ..logs.journal_reader import JournalReader
from ..logs.log_entry import events_in
from ..own_folders import current_folder
from ..plan.plan import EngineTraits, NodePlan, Place, attempt_in, container_name
from ..plan.supervisor_spec import ISOLATED, NO_PYTHON
from ..ssh.script_files import load_script
from ..ssh.stream import Completed, Stream
from ..supervisor.events import End
from .base import Engine, NodeListing
from .status import UNSTARTED, ContainerState, NodeStatus, read_status

CLAIM, EXEC, LIST, LIST_CLAIMS, START, STOP, WAIT, WITHDRAW = (
    load_script(__file__, f"{name}.sh")
    for name in (
        "claim", "exec_process", "list_processes", "list_claims", "start_process", "stop_process",
        "wait_process", "withdraw",
    )
)  # fmt: skip
BOOT = """import json, os, sys
os.environ.update(json.load(sys.stdin))
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.execv(sys.executable, [sys.executable] + sys.argv[1:])"""  # becomes the supervisor
STATES = (*UNSTARTED, ContainerState.RUNNING, ContainerState.EXITED)
TAIL = 131072  # bytes to keep of a printed state, whose last line is the last line of a journal
SCRIPT_TIME = 30.0  # seconds
KILL_TIME = 10  # seconds for a process to end after SIGKILL


class Processes(Engine):
    traits: ClassVar[EngineTraits] = EngineTraits("process", in_container=False)
    exec_script: ClassVar[str] = EXEC

    def create(self, node: NodePlan, user_env: Mapping[str, str]) -> None:
        claim = f"{node.container.name}.{ContainerState.CREATED}"
        labels = json.dumps(dict(node.container.labels))
        self._script("claim GPUs", CLAIM, claim, node.place.control_dir, stdin=labels)

    def start(self, node: NodePlan, user_env: Mapping[str, str]) -> None:
        in_ours = self.connection.host.is_local and not node.container.working_dir
        folder = str(current_folder()) if in_ours else ""
        environment = json.dumps({**node.container.env, **user_env})
        entering = self._enter(node)
        python, *arguments = node.container.entrypoint
        supervisor = [python, *ISOLATED, "-c", BOOT, *arguments]  # reads its environment from stdin
        words = (node.place.control_dir, node.container.name, folder, str(len(entering)))
        self._script("start the node", START, *words, *entering, *supervisor, stdin=environment)

    def _enter(self, node: NodePlan) -> Sequence[str]:
        """Return the words that run a command in the node's container; () if there is none."""
        return ()

    def wait(self, place: Place) -> NodeStatus:
        with self.connection.open_script(WAIT, place.control_dir, stdin=False) as stream:
            output = b""
            while chunk := stream.read():
                output = (output + chunk)[-TAIL:]
        return _state(output.decode(errors="replace"))

    def listing(self, run_id: str | None = None) -> NodeListing:
        statuses, unreadable = [], []
        for about, status in self._listed("list the nodes of runs", LIST, *filter(None, [run_id])):
            if status is None:
                unreadable += [about.handle] if about.is_process and about.alive else []
            elif status.is_process or (status.is_ticket and run_id in (None, status.run_id)):
                statuses.append(status)
        return NodeListing(statuses, unreadable)

    def claims(self) -> Sequence[NodeStatus]:
        listed = self._listed("list the claims", LIST_CLAIMS)
        return [status for _, status in listed if status]

    def _listed(
        self, what: str, script: str, *args: str
    ) -> Iterator[tuple[NodeStatus, NodeStatus | None]]:
        """Yield two statuses of each listed node and claim: one without its labels, one with them.

        The second is None if the labels are malformed or do not match the folder.
        """
        words = (row.decode(errors="replace") for row in self._script(what, script, *args).rows())
        clock = _number(next(words, ""))
        for handle, created, text, state in zip(words, words, words, words, strict=False):
            about = replace(_state(state), handle=handle, created=_number(created))
            try:
                labels: object = parse_json(text.encode())
            except ValueError:
                labels = None
            status = read_status(self.connection.name, handle, labels, about, clock)
            if status and status.is_process:
                place = (status.run_id, status.node_rank, status.attempt)
                status = status if attempt_in(handle) == place else None
            yield about, status

    def create_ticket(self, name: str, labels: Mapping[str, str]) -> None:
        ticket = f"{name}.{ContainerState.WAITING}"
        self._script("wait in line", CLAIM, ticket, "", stdin=json.dumps(dict(labels)))

    def withdraw(self, status: NodeStatus) -> bool:
        return not self._script("withdraw a claim", WITHDRAW, _claim(status)).stdout

    def using(self, folder: str) -> Sequence[NodeStatus]:
        return [s for s in self.nodes() if s.waits or s.handle.startswith(f"{folder}/")]

    def exec(self, status: NodeStatus, command: Sequence[str], *, stdin: bool, tty: bool) -> Stream:
        arguments = status.handle, f"exec {shlex.join(command)}"
        return self.connection.open_script(self.exec_script, *arguments, stdin=stdin, tty=tty)

    def stop(self, status: NodeStatus, timeout: float) -> None:
        if status.is_process:
            arguments = status.handle, str(int(10 * timeout)), _claim(status)
            longest = timeout + KILL_TIME + SCRIPT_TIME
            self._script("stop the node", STOP, *arguments, timeout=longest)

    def remove(self, status: NodeStatus) -> None:
        if status.is_process:
            self.connection.run(["rm", "-f", "--", f"{status.handle}/labels.json"])
        self._script("remove a claim", WITHDRAW, _claim(status), "all")

    def _script(
        self,
        what: str,
        text: str,
        *args: str,
        stdin: str = "",
        timeout: float = SCRIPT_TIME,
    ) -> Completed:
        done = self.connection.script(text, *args, stdin=stdin.encode(), timeout=timeout)
        remedy = (
            "check the free space (`df -h`) and the permissions of /tmp and ~/.ddpctl on that host"
        )
        if "there is no " in done.reason:  # printed by find_python.sh
            remedy = NO_PYTHON
        return done.expect(f"cannot {what}", remedy, self.connection.name)


def _claim(status: NodeStatus) -> str:
    if status.is_process:
        return container_name(status.run_id, status.node_rank)
    return status.handle


def _state(text: str) -> NodeStatus:
    """Parse the state of a node or a claim, as process_files.sh and list_claims.sh print it.

    The state is UNKNOWN if it is malformed.
    """
    line, _, journal = text.partition("\n")
    state, *times = line.split(" ")
    if state not in STATES:
        return NodeStatus()
    since, until, code = [*map(_number, times), None, None, None][:3]
    exit_code = None if code is None else int(code)
    for _, event in events_in(JournalReader().feed(journal.encode())):
        if isinstance(event, End):  # missing if the supervisor was killed
            exit_code = event.exit_code
    return NodeStatus(state=ContainerState(state), started=since, ended=until, exit_code=exit_code)


def _number(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 12 else None
