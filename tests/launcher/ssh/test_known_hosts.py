"""known_hosts files, compared with what `ssh-keygen -F` finds in them."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sshd_server import keygen

from launcher.hosts import Host
from launcher.ssh import known_hosts, route
from launcher.ssh.known_hosts import Key, judge, parse, preferred_algorithms
from launcher.ssh.route import Route

A = Key("ssh-ed25519", b"a" * 51)
B = Key("ssh-ed25519", b"b" * 51)
R = Key("ssh-rsa", b"r" * 51)


def line(names: str, key: Key, marker: str = "") -> str:
    return f"{marker} {names} {key.kind} {base64.b64encode(key.blob).decode()} a comment\n"


def route_to(port: int = 22, alias: str = "", file: Path | None = None) -> Route:
    files = f"userknownhostsfile {file}" if file else ""
    return route.parse(f"port {port}\nhostkeyalias {alias}\n{files}", Host("gpu1"))


def verdict(text: str, key: Key, port: int = 22, alias: str = "") -> str:
    return judge(parse(text, "kh"), key, route_to(port, alias).known_names)[0]


def test_the_four_verdicts() -> None:
    assert verdict(line("gpu1", A), A) == "known"
    assert verdict(line("gpu1", A), B) == "changed"
    assert verdict(line("gpu2", A), A) == "unknown"
    assert verdict(line("gpu1", A) + line("*", A, "@revoked"), A) == "revoked"
    assert verdict("", A) == "unknown"


def test_another_kind_of_key_is_unknown_and_not_changed() -> None:
    assert verdict(line("gpu1", R), A) == "unknown"


def test_one_of_several_keys_is_enough() -> None:
    assert verdict(line("gpu1", B) + line("gpu1", A), A) == "known"


def test_revoking_another_key_has_no_effect() -> None:
    assert verdict(line("gpu1", A) + line("*", B, "@revoked"), A) == "known"


def test_another_port_is_another_machine() -> None:
    text = line("[gpu1]:2222", A)
    assert verdict(text, A, port=2222) == "known"
    assert verdict(text, A, port=22) == "unknown"
    assert verdict(text, B, port=2222) == "changed"


def test_a_key_known_by_name_alone_is_known_and_a_different_one_is_not_changed() -> None:
    assert verdict(line("gpu1", A), A, port=2222) == "known"
    assert verdict(line("gpu1", A), B, port=2222) == "unknown"


def test_an_alias_replaces_name_and_port() -> None:
    assert verdict(line("the-alias", A), A, port=2222, alias="the-alias") == "known"
    assert verdict(line("gpu1", A), A, alias="the-alias") == "unknown"


def test_a_certificate_authority_is_not_a_host_key() -> None:
    verdict, lines = judge(parse(line("*", A, "@cert-authority"), "kh"), A, ["gpu1"])
    assert verdict == "unknown"
    assert [found.marker for found in lines] == ["@cert-authority"]


@pytest.mark.parametrize("port", [22, 2222])
def test_the_known_kinds_of_key_are_preferred(port: int, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(line("gpu1", R) + line("gpu2", A) + line("gpu1", A, "@revoked"))
    possible = ("ssh-ed25519", "rsa-sha2-256", "rsa-sha2-512")
    preferred = preferred_algorithms(route_to(port, file=file), possible)
    assert preferred == ("rsa-sha2-512", "rsa-sha2-256", "ssh-ed25519")


def test_a_place_is_a_file_and_a_line() -> None:
    lines = parse("# a comment\n\n" + line("gpu1", A), "/home/me/.ssh/known_hosts")
    assert [found.place for found in lines] == ["/home/me/.ssh/known_hosts:3"]


@given(st.one_of(st.text(), st.from_regex(r"(\|1\|\S*|\S+) \S+ \S+", fullmatch=True)))
def test_any_text_can_be_parsed(text: str) -> None:
    for found in parse(text, "kh"):
        found.matches("gpu1")


@pytest.mark.parametrize(
    "names",
    ["|1|é|é", "|1|YQ|x", "|1||", "|1|", "|1|YQ==|YQ==", "|1|YWFhYWFhYWFhYWFhYWFhYWFhYWE=|é"],
)
def test_a_damaged_hashed_name_matches_no_host(names: str) -> None:
    assert verdict(line(names, A) + line("gpu1", A), A) == "known"
    assert verdict(line(names, A), A) == "unknown"


PATTERNS = [
    "gpu1.lab",
    "*.lab",
    "gpu?.lab",
    "*.lab,!gpu1.lab",
    "!gpu1.lab,*.lab",
    "!gpu2.lab,*.lab",
    "!gpu2.lab",
    "a,b,gpu1.lab",
    "GPU1.LAB",
    "[gpu1.lab]:2222",
    "[*.lab]:2222",
    "[gpu1.lab]:*",
    "gpu[1].lab",
    "*",
]


@pytest.mark.parametrize("name", ["gpu1.lab", "gpu2.lab", "gpu10.lab", "[gpu1.lab]:2222"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_match_as_in_ssh_keygen(pattern: str, name: str, tmp_path: Path) -> None:
    kind, blob = Path(f"{keygen(tmp_path / 'key')}.pub").read_text().split()[:2]
    file = tmp_path / "known_hosts"
    file.write_text(f"{pattern} {kind} {blob}\n")
    command = ["ssh-keygen", "-F", name, "-f", str(file)]
    theirs = subprocess.run(command, capture_output=True, check=False).returncode == 0
    ours = any(found.matches(name.lower()) for found in known_hosts.read([str(file)]))
    assert ours == theirs


def test_hashed_names_match_as_in_ssh_keygen(tmp_path: Path) -> None:
    kind, blob = Path(f"{keygen(tmp_path / 'key')}.pub").read_text().split()[:2]
    file = tmp_path / "known_hosts"
    file.write_text(f"gpu1,[gpu2]:2222 {kind} {blob}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", str(file)], check=True, capture_output=True)
    lines = known_hosts.read([str(file)])
    assert len(lines) == 2
    for name, count in (("gpu1", 1), ("[gpu2]:2222", 1), ("gpu2", 0)):
        assert sum(found.matches(name) for found in lines) == count


def test_a_fingerprint_equals_ssh_keygens(tmp_path: Path) -> None:
    key = keygen(tmp_path / "key", "rsa")
    kind, blob = Path(f"{key}.pub").read_text().split()[:2]
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", f"{key}.pub"], capture_output=True, check=True, text=True
    ).stdout
    assert Key(kind, base64.b64decode(blob)).fingerprint == shown.split()[1]


def test_without_a_known_hosts_file_an_accepted_key_is_kept_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    known_hosts.accept(route.parse("userknownhostsfile none", Host("gpu1")), A)
    assert "wrote it to /dev/null" in caplog.text


@pytest.mark.parametrize("hashed", ["yes", "no"])
def test_an_accepted_key_is_found(tmp_path: Path, hashed: str) -> None:
    file = tmp_path / "new folder" / "known_hosts"
    given = f"port 2222\nuserknownhostsfile {file}\nhashknownhosts {hashed}"
    known_hosts.accept(route.parse(given, Host("gpu1")), A)
    lines = known_hosts.read([str(file)])
    assert judge(lines, A, ["[gpu1]:2222"])[0] == "known"
    assert ("gpu1" in file.read_text()) is (hashed == "no")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
