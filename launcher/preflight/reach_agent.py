"""The probe agent: each machine listens for the others, dials them and reports what happened.

It runs on the host's python3, or on the one in the job's image. It installs nothing, and ends with
its standard input or after a minute.

    agent -> launcher   listening 0 PORT, then ready
    launcher -> agent   listen PORT
    agent -> launcher   listening PORT PORT (not if the port is taken), then ready
    launcher -> agent   dial KEY ADDRESS PORT
    agent -> launcher   dialed KEY ok NAME SECONDS | dialed KEY wrong|refused|timeout|unreachable

An address counts as reached only if the intended machine's agent answers there: every host with a
docker0 has 172.17.0.1, and each reaches its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .reach_routes import Answer, Dial

DIAL_TIMEOUT = 3.0  # seconds; a firewall that drops packets never answers

PYTHON = r"""
import errno, os, socket, sys, threading, time
name, token = sys.argv[1:3]
lock = threading.Lock()
def report(*words):
    with lock:
        sys.stdout.write(" ".join(map(str, words)) + "\n"); sys.stdout.flush()
def greet(peer):
    try:
        peer.settimeout(10); peer.sendall(("%s %s\n" % (token, name)).encode())
        peer.recv(1)  # the dialler closes first: a port that this side closes stays taken for a minute
    except OSError:
        pass
    peer.close()
def serve(listener):
    while True:
        peer = listener.accept()[0]
        threading.Thread(target=greet, args=(peer,), daemon=True).start()
def listen(asked):
    port, listeners = asked, []
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            s = socket.socket(family, socket.SOCK_STREAM)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            s.bind((address, port)); s.listen(128)
            port = s.getsockname()[1]; listeners.append(s)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                for s in listeners: s.close()
                listeners = []
                break
    for s in listeners:
        threading.Thread(target=serve, args=(s,), daemon=True).start()
    if listeners: report("listening", asked, port)
    report("ready")
def dial(key, address, port):
    began = time.time()
    try:
        s = socket.create_connection((address, int(port)), timeout=TIMEOUT)
        s.settimeout(TIMEOUT)
        words = s.makefile().readline().split()
        s.close()
        if len(words) == 2 and words[0] == token:
            report("dialed", key, "ok", words[1], "%.3f" % (time.time() - began))
        else: report("dialed", key, "wrong")
    except socket.timeout: report("dialed", key, "timeout")
    except ConnectionRefusedError: report("dialed", key, "refused")
    except OSError as error:
        report("dialed", key, "timeout" if error.errno == errno.ETIMEDOUT else "unreachable")
limit = threading.Timer(60, os._exit, (1,)); limit.daemon = True; limit.start()
listen(0)
for line in sys.stdin:
    words = line.split()
    if words[:1] == ["listen"]: listen(int(words[1]))
    if words[:1] == ["dial"]: threading.Thread(target=dial, args=words[1:4], daemon=True).start()
os._exit(0)
""".replace("TIMEOUT", str(DIAL_TIMEOUT))

SHELL = r"""
program=$1 name=$2 token=$3; shift 3 # what is left runs python3 in the job's image
for p in python3 /usr/libexec/platform-python; do
  if "$p" -c 'import socket, threading' 2>/dev/null; then
    exec "$p" -c "$program" "$name" "$token"
  fi
done
[ $# -eq 0 ] || exec "$@" -c "$program" "$name" "$token"
"""


def agent_args(rank: int, token: str, in_image: Sequence[str]) -> list[str]:
    """Arguments of SHELL. in_image: a command that runs python3 in the job's image, or nothing."""
    return [PYTHON, str(rank), token, *in_image]


def parse_listening(line: str) -> tuple[int, int] | None:
    """The port that was asked for and the port that the agent listens on."""
    match = re.fullmatch(r"listening (\d{1,5}) (\d{1,5})", line, re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


def parse_dialed(line: str, orders: Mapping[int, Dial], rank: int) -> tuple[int, Answer] | None:
    """The key of an order of this agent and its answer, from a `dialed` line."""
    match = re.fullmatch(
        r"dialed (\d{1,9}) (?:(wrong|refused|timeout|unreachable)|ok (\d{1,9}) (\d{1,3}\.\d{3}))",
        line,
        re.ASCII,
    )
    dial = orders.get(int(match[1])) if match else None
    if match is None or dial is None or dial.source != rank:
        return None
    if match[2]:
        return int(match[1]), Answer(match[2])
    result = "ok" if int(match[3]) == dial.target else "wrong"
    return int(match[1]), Answer(result, float(match[4]))
