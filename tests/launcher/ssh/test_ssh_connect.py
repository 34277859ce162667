"""Connecting: what works, and the one-line error (where, what, remedy) for each way it fails."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sshd_server import USER, Sshd, add_to_agent, free_port, keygen, ssh_agent

from launcher.errors import HostUnreachable, NodesFailed
from launcher.hosts import Host
from launcher.ssh import authenticate
from launcher.ssh.connect import connect_early
from launcher.ssh.connection import Connection
from launcher.ssh.host_connection import HostConnection
from launcher.ssh.lean_paramiko import paramiko
from launcher.ssh.link import Link
from launcher.ssh.many import each_node

Connect = Callable[..., HostConnection]
Server = Callable[..., Sshd]
Config = Callable[[str], None]


def why_not(connection: HostConnection) -> str:
    """The error that the user sees."""
    with pytest.raises(HostUnreachable) as caught:
        connection.connect()
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.startswith(f"{connection.name}: ")
    assert caught.value.exit_code == 4
    return message


def connect_all(connections: Sequence[HostConnection]) -> list[BaseException]:
    """Connect all at once, each in a thread of its own. Return the errors."""
    with ThreadPoolExecutor(len(connections)) as pool:
        tried = [pool.submit(connection.connect) for connection in connections]
    return [error for each in tried if (error := each.exception())]


# -- the network


def test_a_name_that_does_not_resolve(connect_to: Connect) -> None:
    message = why_not(connect_to(Host("no-such-host.invalid")))
    assert "does not resolve" in message
    assert "hosts file" in message


def test_connection_refused(connect_to: Connect) -> None:
    port = free_port()
    message = why_not(connect_to(Host("127.0.0.1", port=port)))
    assert f"connection refused on port {port};" in message
    assert "check that sshd is running" in message


def test_a_machine_that_is_off_in_the_same_network(
    connect_to: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:  # as Linux reports that nobody answers ARP
        raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))

    monkeypatch.setattr(socket, "create_connection", unreachable)
    message = why_not(connect_to(Host("127.0.0.1")))
    assert "no route to this host" in message
    assert "check that the machine is up" in message


def test_a_link_local_address_keeps_its_interface(
    connect_to: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of two machines with a cable between them. Without the interface, it leads nowhere."""
    dialed = []

    def dial(where: tuple[str, int], *_: object) -> None:
        dialed.append(where)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", dial)
    why_not(connect_to(Host("fe80::1%lo")))
    assert dialed == [("fe80::1%lo", 22)]


def test_no_answer_is_an_error_within_the_timeout(connect_to: Connect) -> None:
    with socket.socket() as full:  # a listener with a full queue drops connections
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        queue = [socket.socket() for _ in range(3)]
        for sock in queue:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        start = time.monotonic()
        message = why_not(connect_to(Host("127.0.0.1", port=port), connect_timeout=0.7))
        assert 0.6 < time.monotonic() - start < 3
        for sock in queue:
            sock.close()
    assert "no answer on port " in message
    assert "within 0.7s" in message


def test_connect_timeout_of_the_config_is_used(connect_to: Connect, config: Config) -> None:
    config("Host slow\n  HostName 127.0.0.1\n  ConnectTimeout 1\n")
    with listener(lambda sock: time.sleep(4)) as port:
        start = time.monotonic()
        message = why_not(connect_to(Host("slow", port=port), connect_timeout=60))
    assert time.monotonic() - start < 4
    assert "within 1s" in message


def test_a_server_that_accepts_and_sends_nothing(connect_to: Connect) -> None:
    with listener(lambda sock: time.sleep(3)) as port:
        message = why_not(connect_to(Host("127.0.0.1", port=port), connect_timeout=0.5))
    assert "no sshd answered within 0.5s" in message


def test_a_server_that_is_not_sshd(connect_to: Connect) -> None:
    with listener(lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 200)) as port:
        message = why_not(connect_to(Host("127.0.0.1", port=port)))
    assert "is not an SSH server" in message


def test_a_server_that_always_hangs_up(
    connect_to: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.ssh.connect.PAUSE", 0.01)
    calls = []
    with listener(lambda sock: calls.append(1)) as port:
        message = why_not(connect_to(Host("127.0.0.1", port=port)))
    assert len(calls) == 6
    assert "closed the connection 6 times before the login" in message
    assert "MaxStartups" in message


# -- authentication


def test_a_key_that_is_not_authorized(sshd: Server, connect_to: Connect, home: Path) -> None:
    server = sshd()
    other = keygen(home / "other key")
    message = why_not(connect_to(server.host(identity_file=str(other))))
    assert f"permission denied for user {USER}: tried {other}" in message
    assert f"ssh-copy-id -p PORT {USER}@HOST" in message


def test_hosts_that_refuse_the_same_key_share_a_line(
    sshd: Server, connect_to: Connect, home: Path
) -> None:
    key = str(keygen(home / "other key"))
    servers = [sshd(address=f"127.0.0.{n}") for n in (1, 2)]
    connections = [connect_to(server.host(identity_file=key)) for server in servers]
    with pytest.raises(NodesFailed) as caught:
        each_node(connections, HostConnection.connect)
    [line] = str(caught.value).splitlines()
    assert line.startswith(f"127.0.0.[1-2]: permission denied for user {USER}: tried {key};")


def test_no_key_to_try(sshd: Server, connect_to: Connect) -> None:
    message = why_not(connect_to(sshd().host(identity_file=None)))
    assert "there is no key to try" in message


def test_a_missing_identity_file(sshd: Server, connect_to: Connect) -> None:
    message = why_not(connect_to(sshd().host(identity_file="/nowhere/key")))
    assert "/nowhere/key (no such file)" in message


def test_a_key_that_others_can_read_is_not_used(sshd: Server, connect_to: Connect) -> None:
    server = sshd()
    server.user_key.chmod(0o644)
    message = why_not(connect_to(server.host()))
    assert "readable by others; run `chmod 600`" in message


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_public_key_is_not_a_key_to_log_in_with(
    sshd: Server, connect_to: Connect, home: Path, kind: str
) -> None:
    key = keygen(home / "key", kind)
    message = why_not(connect_to(sshd().host(identity_file=f"{key}.pub")))
    assert f"{key}.pub (a public key; name its private key, such as {key})" in message
    assert "chmod" not in message


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_every_kind_of_key_works(sshd: Server, connect_to: Connect, home: Path, kind: str) -> None:
    server = sshd()
    server.authorize(keygen(home / "key", kind))
    connect_to(server.host(identity_file=str(home / "key"))).connect()


@pytest.mark.parametrize("kind", ["ecdsa", "rsa"])
def test_a_key_in_the_format_of_openssl_works(
    sshd: Server, connect_to: Connect, home: Path, kind: str
) -> None:
    """`openssl genrsa` writes PKCS#8."""
    server, key = sshd(), keygen(home / "key", kind)
    server.authorize(key)
    for passphrase in ("", "open sesame"):
        new = ["-m", "PKCS8", "-N", passphrase, "-f", str(key)]
        subprocess.run(["ssh-keygen", "-q", "-p", *new], check=True, input=b"y\n")
        assert "PRIVATE KEY" in key.read_text() and "OPENSSH" not in key.read_text()
        if not passphrase:
            connect_to(server.host(identity_file=str(key))).connect()
    message = why_not(connect_to(server.host(identity_file=str(key))))
    assert f"{key} (has a passphrase and is not in the agent)" in message


def test_a_key_of_an_unknown_kind_does_not_keep_the_others_from_being_tried(
    sshd: Server, connect_to: Connect, home: Path, config: Config
) -> None:
    server, new = sshd(), home / "new"
    private = bytes.fromhex("302e020100300506032b657b04220420") + bytes(32)  # OID 1.3.101.123
    text = base64.b64encode(private).decode()
    new.write_text(f"-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n")
    new.chmod(0o600)
    config(f"Host *\n  IdentityFile {new}\n  IdentityFile {server.user_key}\n")
    connect_to(server.host(identity_file=None)).connect()


def test_a_default_key_of_the_home_folder_is_found(
    sshd: Server, connect_to: Connect, home: Path
) -> None:
    server = sshd()
    server.authorize(keygen(home / ".ssh" / "id_ed25519"))
    connect_to(server.host(identity_file=None)).connect()


def test_a_key_with_a_passphrase_needs_the_agent(
    sshd: Server, connect_to: Connect, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = sshd()
    key = keygen(home / "locked", passphrase="open sesame")
    server.authorize(key)
    message = why_not(connect_to(server.host(identity_file=str(key))))
    assert f"{key} (has a passphrase and is not in the agent)" in message
    assert "load the key with `ssh-add`" in message
    with ssh_agent(home) as agent:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        add_to_agent(agent, key, "open sesame")
        connect_to(server.host(identity_file=str(key))).connect()


def test_identity_agent_of_the_config_is_used(
    sshd: Server, connect_to: Connect, home: Path, config: Config
) -> None:
    server = sshd()
    with ssh_agent(home) as agent:
        add_to_agent(agent, server.user_key)
        config(f"Host *\n  IdentityAgent {agent}\n")
        connect_to(server.host(identity_file=None)).connect()
        config("Host *\n  IdentityAgent none\n")
        assert "there is no key to try" in why_not(connect_to(server.host(identity_file=None)))


def test_an_agent_with_too_many_keys(
    sshd: Server, connect_to: Connect, home: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = sshd(MaxAuthTries="3")
    with ssh_agent(home) as agent:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        for number in range(6):
            add_to_agent(agent, keygen(home / f"k{number}"))
        config(f"Host *\n  IdentityFile {server.user_key}\n")
        message = why_not(connect_to(server.host(identity_file=None)))
        assert "MaxAuthTries" in message
        assert "k0 (agent), k1 (agent)" in message
        assert "IdentitiesOnly yes" in message
        config(f"Host *\n  IdentityFile {server.user_key}\n  IdentitiesOnly yes\n")
        connect_to(server.host(identity_file=None)).connect()
        config("")
        connect_to(server.host()).connect()  # the hosts file's own key comes first


def test_a_named_key_in_the_agent_comes_first(
    sshd: Server, connect_to: Connect, home: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = sshd(MaxAuthTries="2")
    with ssh_agent(home) as agent:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        for number in range(4):
            add_to_agent(agent, keygen(home / f"k{number}"))
        add_to_agent(agent, server.user_key)
        config(f"Host *\n  IdentityFile {server.user_key}\n")
        connect_to(server.host(identity_file=None)).connect()


def test_an_agent_that_does_not_sign_is_waited_for_only_as_long_as_a_server(
    sshd: Server, connect_to: Connect, home: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticate, "LOGIN_TIMEOUT", 0.3)
    config("Host *\n  ConnectTimeout 1\n")
    server = sshd()
    blob = base64.b64decode(Path(f"{server.user_key}.pub").read_text().split()[1])
    listed = struct.pack(">BII", 12, 1, len(blob)) + blob + struct.pack(">I", 3) + b"key"

    def list_the_key(agent: socket.socket) -> None:
        connection, _ = agent.accept()
        connection.recv(5)
        connection.sendall(struct.pack(">I", len(listed)) + listed)
        connection.recv(10_000)  # the request for a signature
        connection.recv(1)  # until the login gives up

    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(home / "agent"))
        agent.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(home / "agent"))
        threading.Thread(target=list_the_key, args=[agent], daemon=True).start()
        message = why_not(connect_to(server.host(identity_file=None)))
    assert "the agent did not sign with key (agent) within 1s; confirm the login in time" in message


def test_a_login_asks_for_the_service_once_and_waits_only_for_its_own_answers(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = paramiko.Ed25519Key.from_private_key_file(str(keygen(home / "key")))
    sent: list[int] = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(Link(ours), "gpu1")
        connection.session_id = b"id"
        monkeypatch.setattr(connection, "_send_message", lambda m: sent.append(m.asbytes()[0]))
        for each in (None, key):
            with contextlib.suppress(paramiko.AuthenticationException):  # there is no server
                connection.log_in("ann", each)
    common = paramiko.common
    requests = [common.MSG_USERAUTH_REQUEST] * 2
    assert sent == [common.MSG_SERVICE_REQUEST, *requests]


def test_a_certificate_works(sshd: Server, connect_to: Connect, home: Path) -> None:
    authority = keygen(home / "ca")
    server = sshd(TrustedUserCAKeys=f"{authority}.pub")
    for kind in ("ed25519", "rsa", "ecdsa"):
        key = keygen(home / kind, kind)
        assert "permission denied" in why_not(connect_to(server.host(identity_file=str(key))))
        sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", USER, f"{key}.pub"]
        subprocess.run(sign, check=True)
        connect_to(server.host(identity_file=str(key))).connect()


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_a_certificate_that_only_the_agent_has_works(
    sshd: Server, connect_to: Connect, home: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    authority, key = keygen(home / "ca"), keygen(home / "key", kind)
    shutil.copy(f"{key}.pub", home / "plain")
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", USER, f"{key}.pub"]
    subprocess.run(sign, check=True)
    server = sshd(TrustedUserCAKeys=f"{authority}.pub")
    with ssh_agent(home) as agent:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        add_to_agent(agent, key)
        subprocess.run(["ssh-add", "-q", "-d", str(home / "plain")], check=True)
        for suffix in ("", ".pub", "-cert.pub"):
            Path(f"{key}{suffix}").unlink()
        connect_to(server.host(identity_file=None)).connect()


def test_a_server_that_accepts_no_keys(sshd: Server, connect_to: Connect) -> None:
    server = sshd(PubkeyAuthentication="no", PasswordAuthentication="yes")
    assert "sshd accepts no keys, only password" in why_not(connect_to(server.host()))


def test_a_server_that_requires_more_than_a_key(sshd: Server, connect_to: Connect) -> None:
    server = sshd(AuthenticationMethods="publickey,password", PasswordAuthentication="yes")
    assert "requires password in addition to the key" in why_not(connect_to(server.host()))


def test_an_unknown_user(sshd: Server, connect_to: Connect) -> None:
    server = sshd()
    message = why_not(connect_to(server.host(user="no-such-user")))
    assert "permission denied for user no-such-user" in message


# -- the ssh configuration


def test_match_include_and_host_alias(
    sshd: Server, connect_to: Connect, home: Path, config: Config
) -> None:
    server = sshd(know=False)
    server.know("the-alias")
    (home / ".ssh" / "more").mkdir()
    (home / ".ssh" / "more" / "lab.conf").write_text(
        f"Match originalhost trainer exec true\n  Port {server.port}\n  HostKeyAlias the-alias\n"
        f"  IdentityFile {server.user_key}\n"
    )
    config(f"Include {home}/.ssh/more/*.conf\nHost trainer\n  HostName 127.0.0.1\n")
    assert connect_to(Host("trainer")).run(["echo", "hi"]).stdout == b"hi\n"


def test_the_hosts_file_overrides_the_config(
    sshd: Server, connect_to: Connect, config: Config
) -> None:
    server = sshd()
    config("Host *\n  User nobody-at-all\n  Port 1\n  ProxyJump nowhere.invalid\n")
    connect_to(server.host(user=USER, proxy_jump="none")).connect()


def test_a_config_with_an_error(connect_to: Connect, config: Config) -> None:
    config("NoSuchOption yes\n")
    message = why_not(connect_to(Host("gpu1")))
    assert "bad configuration option: nosuchoption" in message.lower()
    assert "correct ~/.ssh/config" in message


def test_a_proxy_command(sshd: Server, connect_to: Connect, config: Config) -> None:
    server = sshd(know=False)
    server.know("behind")
    relay = (shutil.which("socat") and "socat - TCP:127.0.0.1:%p") or _python_relay()
    config(f"Host behind\n  ProxyCommand {relay}\n")
    machine = connect_to(server.host(host="behind", port=None, identity_file=str(server.user_key)))
    config(f"Host behind\n  Port {server.port}\n  HostKeyAlias behind\n  ProxyCommand {relay}\n")
    data = os.urandom(1024 * 1024)
    assert machine.run(["cat"], stdin=data).stdout == data


def test_a_proxy_command_that_fails_is_quoted(connect_to: Connect, config: Config) -> None:
    config("Host behind\n  ProxyCommand sh -c 'echo the tunnel is shut >&2; exit 3'\n")
    message = why_not(connect_to(Host("behind")))
    assert "exit code 3: the tunnel is shut" in message


@pytest.mark.parametrize("path", ["/nowhere", ""])
def test_without_the_ssh_command(
    connect_to: Connect, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("PATH", path)
    assert "cannot run `ssh` (" in why_not(connect_to(Host("gpu1")))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_account_without_a_passwd_entry_and_a_home_gets_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME")
    read, write = os.pipe()
    if not (pid := os.fork()):
        try:
            signal.alarm(30)  # a forked child may deadlock
            os.setuid(54321)
            os.write(write, why_not(HostConnection(Host("gpu1"))).encode())
            done = HostConnection(Host("local")).run(["pwd"])
            os.write(write, b" local: " + done.stdout)
        except BaseException as error:
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    message = os.read(read, 10_000).decode()
    os.close(read)
    assert "No user exists for uid 54321; add an entry for this account to /etc/passwd" in message
    assert message.endswith(" local: /\n")


def test_a_home_folder_that_does_not_exist(
    connect_to: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/nowhere")
    assert connect_to(Host("local")).run(["pwd"]).stdout == b"/\n"
    assert "does not resolve" in why_not(connect_to(Host("no-such-host.invalid")))


def test_a_command_on_this_machine_without_a_path(
    connect_to: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    done = connect_to(Host("local")).run(["docker"])
    assert (done.code, done.stderr) == (127, b"docker: not found\n")


# -- keepalive


def test_a_server_that_stops_replying_is_noticed(
    sshd: Server, connect_to: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.ssh.connection.ALIVE_INTERVAL", 0.3)
    server = sshd()
    with connect_to(server.host()).open(["sh", "-c", "echo up; sleep 60"]) as stream:
        assert stream.read() == b"up\n"
        for pid in server.descendants():
            os.kill(pid, 19)  # SIGSTOP: only the kernel still acknowledges
        start = time.monotonic()
        with pytest.raises(HostUnreachable, match=r"no reply for 0\.9s"):
            stream.read(timeout=20)
        assert time.monotonic() - start < 5


def test_commands_on_a_server_that_stops_replying_time_out_together(
    sshd: Server, connect_to: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Connection, "open_ahead", lambda *_: None
    )  # one of them would have a session
    server = sshd()
    machine = connect_to(server.host(), connect_timeout=2)
    machine.connect()
    for pid in server.descendants():
        with contextlib.suppress(ProcessLookupError):  # of the login, and it has just ended
            os.kill(pid, signal.SIGSTOP)
    start = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        commands = [pool.submit(machine.run, ["true"]) for _ in range(4)]
        for command in commands:
            assert "did not start a session within 2s" in str(command.exception())
    assert time.monotonic() - start < 9  # one after the other takes 12 s


def test_a_session_that_is_being_opened_ahead_does_not_double_the_wait_for_a_server(
    sshd: Server, connect_to: Connect
) -> None:
    server = sshd()
    machine = connect_to(server.host(), connect_timeout=2)
    machine.run(["true"])
    [connection] = machine._machine._live()  # type: ignore[union-attr]
    connection._ahead.result(20)  # wait until it is open
    for pid in server.descendants():
        os.kill(pid, signal.SIGSTOP)
    with contextlib.closing(connection.open_session(timeout=2)):  # opens another one ahead
        start = time.monotonic()
        with pytest.raises(paramiko.SSHException, match="Timeout opening channel"):
            connection.open_session(timeout=2)
    assert time.monotonic() - start < 3


def test_an_idle_connection_stays_open(
    sshd: Server, connect_to: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.ssh.connection.ALIVE_INTERVAL", 0.1)
    with connect_to(sshd().host()).open(["sh", "-c", "sleep 2; echo done"]) as stream:
        assert stream.read(timeout=20) == b"done\n"


# -- the server's limits


def test_the_first_connection_takes_the_early_login_and_the_next_one_its_own(
    sshd: Server, connect_to: Connect
) -> None:
    server = sshd()
    connect_early([server.host(), server.host(), Host("local")])
    server.until("Accepted publickey")
    for logins in (1, 2):
        assert connect_to(server.host()).run(["true"]).code == 0
        assert server.log.read_text().count("Accepted publickey") == logins


def test_the_error_of_an_early_login_is_raised_when_the_connection_is_used(
    connect_to: Connect,
) -> None:
    host = Host("127.0.0.1", port=free_port())
    connect_early([host])
    assert f"connection refused on port {host.port};" in why_not(connect_to(host))


def test_dropped_logins_are_retried(sshd: Server, connect_to: Connect) -> None:
    server = sshd(MaxStartups="1")
    assert not connect_all([connect_to(server.host(), connect_timeout=10) for _ in range(8)])
    assert "MaxStartups" in server.log.read_text()  # it did drop some


def test_more_connections_are_made_when_sessions_are_refused(
    sshd: Server, connect_to: Connect
) -> None:
    server = sshd(MaxSessions="2")
    machine = connect_to(server.host())
    streams = [machine.open(["cat"]) for _ in range(7)]
    for number, stream in enumerate(streams):
        stream.write(b"%d" % number)
    assert [stream.read(timeout=10) for stream in streams] == [b"%d" % n for n in range(7)]
    assert server.log.read_text().count("Accepted publickey") == 4
    for stream in streams:
        stream.close()


def test_ten_sessions_share_one_connection(sshd: Server, connect_to: Connect) -> None:
    server = sshd()
    machine = connect_to(server.host())
    streams = [machine.open(["cat"]) for _ in range(10)]
    assert server.log.read_text().count("Accepted publickey") == 1
    for stream in streams:
        stream.close()


def test_a_server_that_allows_no_terminals(sshd: Server, connect_to: Connect) -> None:
    machine = connect_to(sshd(PermitTTY="no").host())
    with pytest.raises(
        HostUnreachable, match="refused to run a command: Channel closed; check PermitTTY"
    ):
        machine.open(["true"], tty=True)
    assert machine.run(["true"]).code == 0


def test_a_server_that_allows_no_sessions(sshd: Server, connect_to: Connect) -> None:
    machine = connect_to(sshd(MaxSessions="0").host())
    with pytest.raises(HostUnreachable, match="sshd refused to open a session"):
        machine.run(["true"])


@contextlib.contextmanager
def listener(
    answer: Callable[[socket.socket], object], address: str = "127.0.0.1"
) -> Iterator[int]:
    """A server that is not sshd; calls `answer` with each connection."""
    with socket.create_server((address, 0)) as server:

        def serve(sock: socket.socket) -> None:
            with sock:
                sock.recv(100)
                answer(sock)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = server.accept()
                    threading.Thread(target=serve, args=(sock,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)


def _python_relay() -> str:
    code = (
        "import os,socket,sys,threading as t;"
        "s=socket.create_connection((chr(49)+'27.0.0.1',int(sys.argv[1])));"
        "f=lambda r,w:[w(d) for d in iter(r,b'')];"
        "t.Thread(target=f,args=(lambda:os.read(0,65536),s.sendall),daemon=True).start();"
        "f(lambda:s.recv(65536),lambda d:os.write(1,d))"
    )
    return f'python3 -c "{code}" %p'
