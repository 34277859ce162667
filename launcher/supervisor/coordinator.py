"""Node 0 of the gang."""

from __future__ import annotations

import selectors
import socket
import time
from typing import Any

from .channel import Link, Refused
from .journal import Journal
from .peers import RECONNECT, SETTLE, Gang
from .stop_reason import Reason, earliest, reason

SILENT_START = 600.0  # seconds that ranks may import, load and compile before their first word
STACKS_PATIENCE = 5.0  # seconds for all nodes to write down where their ranks stand
JOIN_GRACE = 10.0  # seconds from the start that node 0 stays to tell late nodes why all is over


class Hub(Gang):
    """Node 0: hears how everyone is, and says what follows."""

    def __init__(self, spec: dict[str, Any], journal: Journal, selector: Any) -> None:
        super().__init__(spec, journal, selector)
        self._strangers: list[Link] = []
        self._links: dict[int, Link] = {}
        self._status: dict[int, dict[str, Any]] = {}
        self._lost_at: dict[int, float] = {}
        self._port_taken: OSError | None = None
        self._server: socket.socket | None = None
        self._bind_again_at = 0.0
        self._first_exit_at: float | None = None
        self._stacks_asked_at: float | None = None

    @property
    def others(self) -> list[int]:
        return [node_rank for node_rank in range(self.spec["nnodes"]) if node_rank != self.me]

    def beat(self, status: dict[str, Any], now: float) -> None:
        self._status[self.me] = status
        for node_rank in list(self._links):
            self._answer(node_rank)

    def judge(self, status: dict[str, Any], now: float) -> None:
        self._status[self.me] = status
        self._open_door(now)
        self._forget_strangers(now)
        before = (self.verdict, self.over, self.stacks_wanted)
        if self.verdict is None:
            self.verdict = self._find_verdict(now)
        gone = [n for n in self.others if n in self._lost_at or n not in self._status]
        ended = [n for n, told in self._status.items() if told["phase"] in ("done", "stopped")]
        waiting_for_late = now - self.began < JOIN_GRACE
        present = [n for n in range(self.spec["nnodes"]) if n in self._status]
        everybody = len(present) == self.spec["nnodes"]
        if set(ended) | (set(gone) if self.verdict else set()) >= set(range(self.spec["nnodes"])):
            self.over = everybody or not waiting_for_late
        if before != (self.verdict, self.over, self.stacks_wanted):
            self.beat(status, now)

    def forgive(self, now: float) -> None:
        for link in self._links.values():
            link.heard = now
        self._lost_at = dict.fromkeys(self._lost_at, now)

    def hear(self, link: Link) -> None:
        try:
            messages = link.receive()
        except Refused as error:
            self.journal.event("refused", message=str(error))
            self._broke(link)
            return
        except OSError:
            self._broke(link)
            return
        for message in messages:
            self._take(link, message)

    def close(self) -> None:
        """Lets everyone read the last word before the connections go."""
        deadline = time.monotonic() + 1.0
        while self._links and self.over and time.monotonic() < deadline:
            for key, _ in self.selector.select(0.05):
                if isinstance(key.fileobj, socket.socket):
                    key.data(key.fileobj)
        for link in [*self._links.values(), *self._strangers]:
            self.drop(link)
        if self._server:
            self.selector.unregister(self._server)
            self._server.close()
            self._server = None

    # --- what follows ---

    def _find_verdict(self, now: float) -> Reason | None:
        reasons = [told["reason"] for told in self._status.values() if told["reason"]]
        if reasons:
            return earliest(reasons)
        return (
            self._missing(now)
            or self._out_of_sight(now)
            or self._early_exit(now)
            or self._hung(now)
        )

    def _missing(self, now: float) -> Reason | None:
        patience = self.spec.get("start_timeout", 60.0)
        if self._port_taken and now - self.began > SETTLE:
            message = "the supervisors' port %d: %s" % (self.spec["control_port"], self._port_taken)
            return reason("control-port", message, self.me, self.spec["host"], time.time())
        late = [n for n in self.others if n not in self._status]
        if not late or now - self.began < patience:
            return None
        names = ", ".join("node %d (%s)" % (n, self.spec["hosts"][n]) for n in late)
        message = "%s did not join within %d s" % (names, patience)
        host = self.spec["hosts"][late[0]]
        return reason("never-joined", message, late[0], host, time.time())

    def _out_of_sight(self, now: float) -> Reason | None:
        for node_rank, told in self._status.items():
            link = self._links.get(node_rank)
            if node_rank == self.me or told["phase"] == "stopped":
                continue
            if link is None and now - self._lost_at.setdefault(node_rank, now) > RECONNECT:
                return self.lost(node_rank, "closed the connection and did not come back")
            if link is not None and now - link.heard > self.silence:
                self._lost_at[node_rank] = now
                return self.lost(node_rank, "was not heard for %d s" % self.silence)
        return None

    def _early_exit(self, now: float) -> Reason | None:
        """Ranks that ended well while others stand still: they wait for what never comes."""
        patience = self.spec.get("early_exit_timeout", 10.0)
        exits = [told["early"] for told in self._status.values() if told["early"]]
        if not exits or patience is None or not any(t["alive"] for t in self._status.values()):
            self._first_exit_at = None
            return None
        self._first_exit_at = self._first_exit_at or now
        stuck = min(told["stuck"] for told in self._status.values() if told["alive"])
        if now - self._first_exit_at < patience or stuck < patience:
            return None
        return earliest(exits)

    def _hung(self, now: float) -> Reason | None:
        patience = self.spec.get("hang_timeout")
        told = list(self._status.values())
        if not patience or not any(t["alive"] for t in told):
            return None
        ages = [t["progress_age"] for t in told if t["progress_age"] is not None]
        age = min(ages or [t["log_age"] for t in told])
        if not ages and not any(t["begun"] for t in told):
            patience = max(patience, SILENT_START)
        self.stacks_wanted = age >= patience
        if not self.stacks_wanted:
            self._stacks_asked_at = None
            return None
        self._stacks_asked_at = self._stacks_asked_at or now
        untold = any(t["alive"] and not t["stacks"] for t in told)
        if untold and now - self._stacks_asked_at < STACKS_PATIENCE:
            return None
        message = "no progress for %d s" % age
        why = reason("hung", message, self.me, self.spec["host"], time.time())
        where = {int(rank): word for t in told for rank, word in t["doing"].items()}
        odd = odd_one_out(where)
        if odd is not None:
            node_rank, local_rank = divmod(odd, self.spec["nproc_per_node"])
            why["message"] += "; it stands elsewhere than all other ranks"
            why.update(rank=odd, local_rank=local_rank, node_rank=node_rank)
            why["host"] = self.spec["hosts"][node_rank]
        return why

    # --- connections ---

    def _open_door(self, now: float) -> None:
        if self._server or not self.others or now < self._bind_again_at:
            return
        try:
            self._server = listening_socket(self.spec)
        except OSError as error:
            self._port_taken = error
            self._bind_again_at = now + 0.2
            return
        self._port_taken = None
        self.selector.register(self._server, selectors.EVENT_READ, self._welcome)

    def _welcome(self, server: socket.socket) -> None:
        try:
            sock, _ = server.accept()
            link = Link(sock, self.spec["token"], listening=True)
        except OSError:
            return
        self._strangers.append(link)
        self.listen_to(link)

    def _take(self, link: Link, message: dict[str, Any]) -> None:
        node_rank = int(message["node_rank"])
        if link.node_rank is None:
            link.node_rank = node_rank
            self._strangers = [other for other in self._strangers if other is not link]
            if node_rank in self._links:
                self.drop(self._links[node_rank])
            if node_rank not in self._status:
                self.journal.event(
                    "joined", node_rank=node_rank, host=self.spec["hosts"][node_rank]
                )
            self._links[node_rank] = link
        self._lost_at.pop(node_rank, None)
        self._status[node_rank] = message
        self._answer(node_rank)

    def _answer(self, node_rank: int) -> None:
        link = self._links[node_rank]
        echo = self._status[node_rank]["sent"]
        try:
            said = {"stop": self.verdict, "over": self.over, "stacks": self.stacks_wanted}
            link.send(dict(said, echo=echo, now=time.time()))
        except OSError:
            self._broke(link)

    def _broke(self, link: Link) -> None:
        self.drop(link)
        self._strangers = [other for other in self._strangers if other is not link]
        if link.node_rank is not None and self._links.get(link.node_rank) is link:
            del self._links[link.node_rank]
            self._lost_at[link.node_rank] = time.monotonic()

    def _forget_strangers(self, now: float) -> None:
        for link in [other for other in self._strangers if now - other.opened > SETTLE]:
            self._broke(link)


def odd_one_out(where: dict[int, str]) -> int | None:
    """The one rank that stands elsewhere while all others, two at least, stand at one place."""
    places = list(where.values())
    odd = [rank for rank, place in where.items() if places.count(place) == 1]
    return odd[0] if len(odd) == 1 and len(set(places)) == 2 and len(places) > 2 else None


def listening_socket(spec: dict[str, Any]) -> socket.socket:
    """On node 0's own address when it is known as a number, else on all of them."""
    address = spec.get("internal_ip") or spec["master_addr"]
    try:
        family = socket.getaddrinfo(address, None, flags=socket.AI_NUMERICHOST)[0][0]
    except socket.gaierror:
        address, family = "", socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, spec["control_port"]))
        server.listen(128)
        server.setblocking(False)
    except OSError:
        server.close()
        raise
    return server
