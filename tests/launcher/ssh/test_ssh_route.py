"""Routes parsed from `ssh -G` output, made up and real."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from sshd_server import USER

from launcher.errors import HostUnreachable
from launcher.hosts import Host
from launcher.ssh.route import CONNECT_TIMEOUT, Route, jump_route, parse, route_to

Config = Callable[[str], None]


def route(text: str = "", host: Host | None = None) -> Route:
    return parse(text, host or Host("gpu1"))


@pytest.fixture
def of_me(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")


def test_plain_values() -> None:
    found = route(
        "hostname 10.0.0.1\nuser ada\nport 2222\nidentitiesonly yes\nhashknownhosts yes\n"
        "connecttimeout 7\nserveraliveinterval 3\nserveralivecountmax 4\nhostkeyalias alias\n"
        "addressfamily inet6\nbindaddress 10.0.0.9\nproxyjump a,b\n"
    )
    assert (found.hostname, found.user, found.port) == ("10.0.0.1", "ada", 2222)
    assert found.identities_only
    assert found.hash_known_hosts
    assert (found.connect_timeout, found.alive_interval, found.alive_count) == (7.0, 3.0, 4)
    assert found.host_key_alias == "alias"
    assert found.address_family == socket.AF_INET6
    assert found.bind_address == "10.0.0.9"
    assert found.proxy_jump == "a,b"


def test_none_means_no_value() -> None:
    found = route(
        "connecttimeout none\nproxycommand none\nproxyjump none\nuserknownhostsfile none\n"
        "identityagent none\nidentityfile none\n"
    )
    assert found.connect_timeout == CONNECT_TIMEOUT
    assert found.proxy_command is None
    assert found.proxy_jump is None
    assert found.identity_agent is None
    assert found.known_hosts == ()
    assert found.identity_files == ()


@pytest.mark.usefixtures("of_me")
def test_tokens_and_tildes_in_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "/keys")
    found = route(
        "hostname 10.0.0.1\nport 22\nuser ada\nidentityfile ~/.ssh/%r@%h_%n\n"
        "identityfile ${KEYS}/100%%\nproxycommand nc -p %p %h\n"
    )
    assert found.identity_files == ("/home/me/.ssh/ada@10.0.0.1_gpu1", "/keys/100%")
    assert found.proxy_command == "nc -p 22 10.0.0.1"


@pytest.mark.usefixtures("of_me")
def test_a_list_of_paths_may_contain_spaces() -> None:
    found = route("userknownhostsfile /home/me/.ssh/known_hosts /with a space/kh ~/x\n")
    assert found.known_hosts == (
        "/home/me/.ssh/known_hosts",
        "/with a space/kh",
        "/home/me/x",
    )


@pytest.mark.parametrize(
    ("configured", "in_hosts_file", "policy"),
    [
        ("ask", "ask", "ask"),
        ("ask", "accept-new", "accept-new"),
        ("true", "accept-new", "yes"),
        ("yes", "accept-new", "yes"),
        ("false", "ask", "no"),
        ("off", "accept-new", "no"),
        ("false", "accept-new", "no"),
        ("accept-new", "ask", "accept-new"),
    ],
)
def test_host_key_policies(configured: str, in_hosts_file: str, policy: str) -> None:
    host = Host("gpu1", host_keys=in_hosts_file)  # type: ignore[arg-type]
    assert route(f"stricthostkeychecking {configured}\n", host).host_keys == policy


@pytest.mark.usefixtures("of_me")
def test_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/agent")
    monkeypatch.setenv("OTHER", "/other")
    assert route().identity_agent == "/agent"
    assert route("identityagent SSH_AUTH_SOCK\n").identity_agent == "/agent"
    assert route("identityagent $OTHER\n").identity_agent == "/other"
    assert route("identityagent ~/agent\n").identity_agent == "/home/me/agent"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("bastion", (None, "bastion", None)),
        ("ada@bastion:2222", ("ada", "bastion", 2222)),
        ("[::1]:2222", (None, "::1", 2222)),
        ("ada@[fe80::1]", ("ada", "fe80::1", None)),
        ("::1", (None, "::1", None)),
        ("ssh://ada@bastion:22", ("ada", "bastion", 22)),
    ],
)
def test_jump_specifications(text: str, parts: tuple[object, ...]) -> None:
    jump = jump_route(route(f"proxyjump {text}\n"))
    assert jump
    assert (jump.host.user, jump.host.host, jump.host.port) == parts


def test_defaults_of_the_real_ssh(home: Path) -> None:
    found = route_to(Host("gpu1.lab"))
    assert (found.hostname, found.user, found.port) == ("gpu1.lab", USER, 22)
    assert f"{home}/.ssh/id_ed25519" in found.identity_files
    assert found.known_hosts[0] == f"{home}/.ssh/known_hosts"
    assert found.host_keys == "ask"


def test_a_config_read_by_the_real_ssh(home: Path, config: Config) -> None:
    config(
        "Match host gpu*.lab exec false\n  User wrong\n"
        'Host gpu*.lab !gpu9.lab\n  User ada\n  Port 2222\n  IdentityFile "~/.ssh/lab key"\n'
        "  UserKnownHostsFile ~/.ssh/kh_%h\n  IdentitiesOnly yes\n"
        "Host *\n  ProxyJump bastion\n"
    )
    found = route_to(Host("gpu1.lab"))
    assert (found.user, found.port, found.proxy_jump) == ("ada", 2222, "bastion")
    assert found.identity_files == (f"{home}/.ssh/lab key",)
    assert found.known_hosts == (f"{home}/.ssh/kh_gpu1.lab",)
    assert route_to(Host("gpu9.lab")).user == getpass.getuser()


def test_the_hosts_file_overrides_the_config(config: Config) -> None:
    config("Host *\n  User ada\n  Port 2222\n  IdentityFile /config/key\n  ProxyJump a\n")
    found = route_to(
        Host("gpu1", user="bob", port=22, identity_file='/my "odd" 100% key', proxy_jump="b:23,c")
    )
    assert (found.user, found.port, found.proxy_jump) == ("bob", 22, "b:23,c")
    assert found.identity_files == ('/my "odd" 100% key', "/config/key")


def test_user_at_host(config: Config) -> None:
    found = route_to(Host("ada@gpu1"))
    assert (found.user, found.hostname) == ("ada", "gpu1")


def test_jump_hosts_follow_their_own_config(home: Path, config: Config) -> None:
    config("Host inner\n  Port 2201\n  ProxyJump ignored\nHost outer\n  User eve\n")
    inner = jump_route(route_to(Host("gpu1", proxy_jump="outer,ada@inner", identity_file="/k")))
    assert inner
    assert (inner.hostname, inner.user, inner.port) == ("inner", "ada", 2201)
    assert inner.identity_files[-1] == inner.host.identity_file == "/k"
    assert f"{home}/.ssh/id_ed25519" in inner.identity_files
    outer = jump_route(inner)
    assert outer
    assert (outer.hostname, outer.user, outer.port) == ("outer", "eve", 22)
    assert jump_route(outer) is None
    assert (inner.depth, outer.depth) == (1, 2)


def test_a_host_name_that_looks_like_an_option_is_not_one(tmp_path: Path) -> None:
    marker = tmp_path / "touched"
    with pytest.raises(HostUnreachable):
        route_to(Host(f"-oProxyCommand=touch {marker}"))
    assert not marker.exists()
