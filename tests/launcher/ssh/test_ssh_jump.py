"""ProxyJump through one host and through two, and the errors when a jump host fails."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from sshd_server import Sshd, free_port
from supervisors import until
from test_ssh_connect import Config, Connect, Server, connect_all, why_not

from launcher.errors import HostUnreachable


@pytest.fixture
def behind(sshd: Server) -> Callable[..., tuple[Sshd, Sshd, str]]:
    """A machine, its jump host, and the jump host's name for a hosts file."""

    def start(**options: str) -> tuple[Sshd, Sshd, str]:
        jump = sshd(address="127.0.0.2", **options)
        target = sshd(address="127.0.0.3")
        jump.authorize(target.user_key)
        return target, jump, f"127.0.0.2:{jump.port}"

    return start


def test_through_a_jump_host_on_another_port(
    behind: Callable[..., tuple[Sshd, Sshd, str]], connect_to: Connect
) -> None:
    target, jump, name = behind()
    machine = connect_to(target.host(proxy_jump=name))
    data = bytes(range(256)) * 40_000
    assert machine.run(["cat"], stdin=data, limit=len(data)).stdout == data
    assert "Accepted publickey" in jump.log.read_text()
    machine.close()
    until(lambda: not jump.descendants(), 10)


def test_through_two_jump_hosts_in_the_config(
    sshd: Server, connect_to: Connect, config: Config
) -> None:
    first, second, target = (sshd(address=f"127.0.0.{n}") for n in (2, 3, 4))
    config(
        "".join(
            f"Host {name}\n  HostName {server.address}\n  Port {server.port}\n"
            f"  IdentityFile {server.user_key}\n  IdentitiesOnly yes\n"
            for name, server in (("first", first), ("second", second), ("target", target))
        )
        + "Host target\n  ProxyJump first,second\n"
    )
    machine = connect_to(target.host(host="target", port=None, identity_file=None))
    assert machine.run(["echo", "there"]).stdout == b"there\n"
    assert all("Accepted publickey" in s.log.read_text() for s in (first, second, target))


def test_many_machines_share_one_connection_to_the_jump_host(
    behind: Callable[..., tuple[Sshd, Sshd, str]], connect_to: Connect
) -> None:
    target, jump, name = behind(MaxStartups="1")
    nodes = [connect_to(target.host(proxy_jump=name)) for _ in range(6)]
    assert not connect_all(nodes)
    assert [one.run(["echo", "ok"]).stdout for one in nodes] == [b"ok\n"] * 6
    assert jump.log.read_text().count("Accepted publickey") == 1
    assert target.log.read_text().count("Accepted publickey") == 6
    nodes[0].close()
    assert nodes[1].run(["echo", "still"]).stdout == b"still\n"


def test_the_error_names_a_jump_host_that_is_down(
    behind: Callable[..., tuple[Sshd, Sshd, str]], connect_to: Connect
) -> None:
    target, jump, name = behind()
    jump.stop()
    nodes = [connect_to(target.host(proxy_jump=name)) for _ in range(3)]
    for one in nodes:
        message = why_not(one)
        assert message.startswith("127.0.0.3: jump host 127.0.0.2: connection refused")


def test_a_lost_connection_to_the_jump_host_is_replaced(
    behind: Callable[..., tuple[Sshd, Sshd, str]], connect_to: Connect
) -> None:
    target, jump, name = behind()
    machine = connect_to(target.host(proxy_jump=name))
    with machine.open(["sleep", "60"]) as stream:
        jump.stop()
        with pytest.raises(HostUnreachable, match=r"127\.0\.0\.3: connection lost"):
            stream.read(timeout=20)
    why_not(machine)
    jump.start()
    assert machine.run(["echo", "back"]).stdout == b"back\n"


def test_closing_a_lost_connection_does_not_close_its_replacement(
    behind: Callable[..., tuple[Sshd, Sshd, str]], connect_to: Connect
) -> None:
    target, jump, name = behind()
    early, late = (connect_to(target.host(proxy_jump=name)) for _ in range(2))
    with early.open(["sleep", "60"]) as stream:
        jump.stop()
        with pytest.raises(HostUnreachable):
            stream.read(timeout=20)
    jump.start()
    with late.open(["cat"]) as stream:
        early.close()
        stream.write(b"still here")
        assert stream.read(timeout=10) == b"still here"


def test_a_machine_that_is_its_own_jump_host(
    sshd: Server, connect_to: Connect, config: Config
) -> None:
    server = sshd(MaxStartups="2")
    config(f"Host itself\n  HostName 127.0.0.1\n  Port {server.port}\n")
    nodes = [connect_to(server.host(proxy_jump="itself")) for _ in range(10)]
    assert not connect_all(nodes)
    assert [one.run(["echo", "ok"]).stdout for one in nodes] == [b"ok\n"] * 10


def test_the_error_names_a_jump_host_with_an_unknown_key(sshd: Server, connect_to: Connect) -> None:
    jump, target = sshd(address="127.0.0.2", know=False), sshd(address="127.0.0.3")
    jump.authorize(target.user_key)
    message = why_not(connect_to(target.host(proxy_jump=f"127.0.0.2:{jump.port}")))
    assert "jump host 127.0.0.2: its host key is unknown" in message
    connect_to(target.host(proxy_jump=f"127.0.0.2:{jump.port}", host_keys="accept-new")).connect()


def test_a_jump_host_that_refuses_the_key(sshd: Server, connect_to: Connect) -> None:
    jump, target = sshd(address="127.0.0.2"), sshd(address="127.0.0.3")
    message = why_not(connect_to(target.host(proxy_jump=f"eve@127.0.0.2:{jump.port}")))
    assert "jump host 127.0.0.2: permission denied for user eve: " in message
    assert (
        "ssh-copy-id -p PORT eve@127.0.0.2`, or fix `proxy_jump:` or `identity_file:` " in message
    )


def test_a_machine_that_the_jump_host_cannot_reach(
    behind: Callable[..., tuple[Sshd, Sshd, str]], connect_to: Connect
) -> None:
    target, _, name = behind()
    port = free_port()
    message = why_not(connect_to(target.host(proxy_jump=name, port=port)))
    assert f"jump host 127.0.0.2 cannot reach this host on port {port} " in message


def test_a_machine_behind_a_jump_host_that_does_not_answer(
    behind: Callable[..., tuple[Sshd, Sshd, str]], connect_to: Connect, config: Config
) -> None:
    target, _, name = behind()
    config("Host *\n  ConnectTimeout 1\n")
    with socket.create_server(("127.0.0.4", 0), backlog=0) as full:
        address = full.getsockname()
        with socket.create_connection(address):  # fills the queue, so that others get no answer
            machine = connect_to(target.host(host=address[0], port=address[1], proxy_jump=name))
            message = why_not(machine)
    assert f"cannot reach this host on port {address[1]} (no answer within 1s); " in message


def test_a_jump_host_that_forwards_nothing(
    behind: Callable[..., tuple[Sshd, Sshd, str]], connect_to: Connect
) -> None:
    target, _, name = behind(AllowTcpForwarding="no")
    message = why_not(connect_to(target.host(proxy_jump=name)))
    assert "jump host 127.0.0.2 is not allowed to forward" in message
    assert "AllowTcpForwarding yes" in message


def test_jump_hosts_in_a_circle(connect_to: Connect, config: Config, sshd: Server) -> None:
    config("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    message = why_not(connect_to(sshd().host(host="a", port=None)))
    assert "forms a loop" in message
