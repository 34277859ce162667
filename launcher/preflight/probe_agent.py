"""Runs on a host during the checks: listens, dials other hosts and reports the results.

Standard library only, Python 3.6 or later. Its source is sent over SSH, and nothing is installed.
It ends with exit code 0 when its standard input closes, or after LIFETIME; otherwise, start_agent.sh
would try another Python. Orders arrive on standard input, one per line:

    listen PORT              answered by `listening PORT ACTUAL_PORT`; 0 if the port is taken
    dial KEY ADDRESS PORT    answered by `dialed KEY ok NAME SECONDS` (NAME: the agent reached) or
                             `dialed KEY wrong|refused|timeout|unreachable`; a dial that times out
                             is repeated once

An address counts as reached only if an agent with the same token answers: every host with a docker0
has the address 172.17.0.1, and would reach itself.
"""

import errno
import os
import re
import socket
import sys
import threading
import time

LIFETIME = 180.0  # seconds; the agents of fast hosts wait for the facts of slow ones
DIAL_TIMEOUT = 3.0  # seconds; a firewall that drops packets never answers
GREETING_TIMEOUT = 10.0  # seconds
BACKLOG = 1024  # connections; all hosts may dial this one at once

lock = threading.Lock()


def report(*words: object) -> None:
    with lock:
        sys.stdout.write(" ".join(map(str, words)) + "\n")
        sys.stdout.flush()


def greet(peer: socket.socket, greeting: bytes) -> None:
    try:
        peer.settimeout(GREETING_TIMEOUT)
        peer.sendall(greeting)
        # Let the dialer close first, because if this side does, the port stays taken for a minute.
        peer.recv(1)
    except OSError:
        pass
    peer.close()


def serve(listener: socket.socket, greeting: bytes) -> None:
    while True:
        peer = listener.accept()[0]
        threading.Thread(target=greet, args=(peer, greeting), daemon=True).start()


def listen(requested: int, greeting: bytes) -> None:
    """Listen on a port (0: any) over IPv4 and IPv6. Report the port, or 0 if it is taken."""
    port, listeners = requested, []
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            s = socket.socket(family, socket.SOCK_STREAM)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            s.bind((address, port))
            s.listen(BACKLOG)
            port = s.getsockname()[1]
            listeners.append(s)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                for s in listeners:
                    s.close()
                listeners = []
                break
    for s in listeners:
        threading.Thread(target=serve, args=(s, greeting), daemon=True).start()
    report("listening", requested, port if listeners else 0)


def first_line(s: socket.socket) -> str:
    """Return the peer's first line, or about its first 100 bytes if the line is longer.

    Reads in a loop, because a peer may send one byte at a time.
    """
    line, end = b"", time.time() + DIAL_TIMEOUT
    while b"\n" not in line and len(line) < 100:
        s.settimeout(max(end - time.time(), 0.001))
        data = s.recv(100)
        if not data:
            break
        line += data
    return line.decode(errors="replace")


def outcome_of(address: str, port: int, token: str) -> str:
    """Dial once. Return `ok NAME`, `wrong`, `refused`, `timeout` or `unreachable`."""
    try:
        with socket.create_connection((address, port), timeout=DIAL_TIMEOUT) as s:
            greeted = re.match("%s ([0-9]{1,9})\n" % token, first_line(s))
        return "ok " + greeted.group(1) if greeted else "wrong"
    except socket.timeout:
        return "timeout"
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return "timeout" if error.errno == errno.ETIMEDOUT else "unreachable"


def dial(key: str, address: str, port: int, token: str) -> None:
    began = time.time()
    outcome = outcome_of(address, port, token)
    if outcome == "timeout":
        outcome = outcome_of(address, port, token)
    seconds = [f"{time.time() - began:.3f}"] if outcome.startswith("ok") else []
    report("dialed", key, outcome, *seconds)


def main(name: str, token: str) -> None:
    end = threading.Timer(LIFETIME, os._exit, (0,))
    end.daemon = True
    end.start()
    for line in sys.stdin:
        order, *words = line.split()
        if order == "listen":
            listen(int(words[0]), f"{token} {name}\n".encode())
        else:
            key, address, port = words
            dialing = (key, address, int(port), token)
            threading.Thread(target=dial, args=dialing, daemon=True).start()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:3])
