"""Host keys of a real server, under each StrictHostKeyChecking policy."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from sshd_server import keygen
from test_ssh_connect import Config, Connect, Server, connect_all, why_not

from launcher.hosts import Host
from launcher.ssh import known_hosts
from launcher.ssh.known_hosts import Key
from launcher.ssh.route import route_to


def known(home: Path) -> Path:
    return home / ".ssh" / "known_hosts"


def test_the_error_for_an_unknown_key_has_its_fingerprint_and_remedies(
    sshd: Server, connect_to: Connect
) -> None:
    server = sshd(know=False)
    message = why_not(connect_to(server.host()))
    assert f"host key is unknown: ssh-ed25519 {server.fingerprint()}" in message
    assert f"`ssh -p {server.port} 127.0.0.1`" in message
    assert f"`ssh-keyscan -p {server.port} 127.0.0.1 >> ~/.ssh/known_hosts`" in message
    assert "`host_keys: accept-new`" in message


def test_accept_new_writes_the_key_once_and_warns(
    sshd: Server, connect_to: Connect, home: Path, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    config("Host *\n  HashKnownHosts no\n")
    server = sshd(know=False)
    nodes = [connect_to(server.host(host_keys="accept-new")) for _ in range(6)]
    assert not connect_all(nodes)
    kind, blob = Path(f"{server.host_keys[0]}.pub").read_text().split()[:2]
    assert known(home).read_text() == f"{server.known_as} {kind} {blob}\n"
    assert known(home).stat().st_mode & 0o777 == 0o600
    assert f"{server.fingerprint()} and wrote it to {known(home)}" in caplog.text
    connect_to(server.host()).connect()  # it is known now


def test_a_key_that_another_connection_accepted_is_not_written_twice(
    home: Path,
) -> None:
    route = route_to(Host("gpu1", host_keys="accept-new"))
    key = Key("ssh-ed25519", b"blob")
    for _ in range(2):
        known_hosts.accept(route, key)
    assert len(known(home).read_text().splitlines()) == 1


def test_accept_new_appends(sshd: Server, connect_to: Connect, home: Path, config: Config) -> None:
    config("Host *\n  HashKnownHosts no\n")
    server = sshd(know=False)
    known(home).write_text("# mine, without a newline at its end")
    connect_to(server.host(host_keys="accept-new")).connect()
    lines = known(home).read_text().splitlines()
    assert lines[0] == "# mine, without a newline at its end"
    assert lines[1].startswith(server.known_as)


def test_accept_new_hashes_names_if_configured(
    sshd: Server, connect_to: Connect, home: Path, config: Config
) -> None:
    config("Host *\n  HashKnownHosts yes\n")
    server = sshd(know=False)
    connect_to(server.host(host_keys="accept-new")).connect()
    assert known(home).read_text().startswith("|1|")
    find = ["ssh-keygen", "-F", server.known_as, "-f", str(known(home))]
    assert subprocess.run(find, capture_output=True, check=False).returncode == 0
    connect_to(server.host()).connect()


@pytest.mark.parametrize("policy", ["ask", "accept-new"])
def test_the_error_for_a_changed_key_names_the_line(
    sshd: Server, connect_to: Connect, home: Path, policy: str
) -> None:
    server = sshd(know=False)
    other = Path(f"{keygen(home / 'other')}.pub").read_text().split()
    known(home).write_text(f"# comment\n{server.known_as} {other[0]} {other[1]}\n")
    before = known(home).read_bytes()
    message = why_not(connect_to(server.host(host_keys=policy)))
    assert "its host key has CHANGED" in message
    assert f"{known(home)}:2 has SHA256:" in message
    assert server.fingerprint() in message
    assert f"ssh-keygen -R '{server.known_as}'" in message
    assert known(home).read_bytes() == before


def test_hashed_names_are_found(sshd: Server, connect_to: Connect, home: Path) -> None:
    server = sshd()
    subprocess.run(["ssh-keygen", "-H", "-f", str(known(home))], check=True, capture_output=True)
    assert known(home).read_text().startswith("|1|")
    connect_to(server.host()).connect()


@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_the_known_kind_of_key_is_requested(sshd: Server, connect_to: Connect, kind: str) -> None:
    server = sshd(host_key_kinds=("ed25519", "ecdsa", "rsa"), know=False)
    line = {"rsa": "ssh-rsa", "ecdsa": "ecdsa-sha2-nistp256", "ed25519": "ssh-ed25519"}[kind]
    server.know(kinds=(line,))
    connect_to(server.host()).connect()


def test_a_revoked_key_is_refused_even_without_checking(
    sshd: Server, connect_to: Connect, home: Path, config: Config
) -> None:
    config("Host *\n  StrictHostKeyChecking no\n")
    server = sshd()
    kind, blob = Path(f"{server.host_keys[0]}.pub").read_text().split()[:2]
    with known(home).open("a") as file:
        file.write(f"@revoked * {kind} {blob}\n")
    assert f"marked @revoked in {known(home)}:2" in why_not(connect_to(server.host()))


def test_disabled_checking_connects_with_a_warning(
    sshd: Server,
    connect_to: Connect,
    home: Path,
    config: Config,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config("Host *\n  StrictHostKeyChecking no\n")
    server = sshd(know=False)
    connect_to(server.host()).connect()
    assert "is unknown; connecting anyway, because your ssh config" in caplog.text
    assert not known(home).exists()


def test_accept_new_does_not_weaken_strict_checking(
    sshd: Server, connect_to: Connect, home: Path, config: Config
) -> None:
    config("Host *\n  StrictHostKeyChecking yes\n")
    message = why_not(connect_to(sshd(know=False).host(host_keys="accept-new")))
    assert "host key is unknown" in message
    assert not known(home).exists()


def test_the_error_names_an_unsupported_certificate_authority(
    sshd: Server, connect_to: Connect, home: Path
) -> None:
    server = sshd(know=False)
    kind, blob = Path(f"{keygen(home / 'ca')}.pub").read_text().split()[:2]
    known(home).write_text(f"@cert-authority {server.known_as} {kind} {blob}\n")
    message = why_not(connect_to(server.host()))
    assert f"({known(home)}:1 has a certificate authority for this host, which ddpctl" in message


def test_several_known_hosts_files_and_one_that_cannot_be_written(
    sshd: Server, connect_to: Connect, home: Path, config: Config
) -> None:
    config(f"Host *\n  UserKnownHostsFile {home} /dev/zero {home}/second\n")
    server = sshd(know=False)
    message = why_not(connect_to(server.host(host_keys="accept-new")))
    assert f"cannot write its new host key to {home}: Is a directory" in message
    known(home).touch()
    server.know()
    known(home).rename(home / "second")
    connect_to(server.host()).connect()
