"""Log in with the keys that `ssh` would offer, in the same order."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
import paramiko.agent

from ..errors import HostUnreachable
from .route import Route

AGENT_TIMEOUT = 5.0  # seconds to connect to the agent


def authenticate(transport: paramiko.Transport, route: Route) -> None:
    """Log in as `ssh` would without a terminal. Raises HostUnreachable with the refused keys."""
    methods = _log_in_without_key(transport, route)
    if methods is None:
        return
    if "publickey" not in methods:
        raise HostUnreachable(
            f"{route.name}: sshd accepts no keys, only {', '.join(methods)}, but ddpctl logs in "
            "with keys; set `PubkeyAuthentication yes` in its sshd_config"
        )
    with contextlib.closing(Keyring(route)) as keyring:
        for name, key in keyring.offers():
            keyring.tried.append(name)
            if _accepts(transport, route, key, keyring):
                return
        raise _refused(route, keyring)


def _log_in_without_key(transport: paramiko.Transport, route: Route) -> list[str] | None:
    """Return None after a login without a key (Tailscale SSH), else the server's accepted methods."""
    try:
        transport.auth_none(route.user)
    except paramiko.BadAuthenticationType as refusal:
        return list(refusal.allowed_types)
    except paramiko.AuthenticationException as error:
        if "timeout" in str(error).lower():
            raise _too_slow(transport, route) from None
        raise
    return None


def _accepts(
    transport: paramiko.Transport, route: Route, key: paramiko.PKey, keyring: Keyring
) -> bool:
    try:
        more = transport.auth_publickey(route.user, key)
    except paramiko.BadAuthenticationType:
        return False
    except (paramiko.SSHException, EOFError, OSError) as error:
        if not transport.is_active():
            raise _cut_off(route, keyring, error) from None
        if "timeout" in str(error).lower():
            raise _too_slow(transport, route) from None
        return False
    if more:
        raise HostUnreachable(
            f"{route.name}: sshd requires {', '.join(more)} in addition to the key, but ddpctl has "
            "only keys; change AuthenticationMethods in its sshd_config"
        )
    return True


def _too_slow(transport: paramiko.Transport, route: Route) -> HostUnreachable:
    return HostUnreachable(
        f"{route.name}: sshd did not answer the login within {transport.auth_timeout:g} s; "
        "check whether its user database (LDAP, PAM) hangs"
    )


def _cut_off(route: Route, keyring: Keyring, error: BaseException) -> HostUnreachable:
    if len(keyring.tried) > 1 or "Too many" in str(error):
        return HostUnreachable(
            f"{route.name}: sshd hung up after {len(keyring.tried)} keys (MaxAuthTries): tried "
            f"{', '.join(keyring.tried)}; set the right one as identity_file in the hosts file, "
            "or `IdentitiesOnly yes` for the host in ~/.ssh/config"
        )
    return HostUnreachable(
        f"{route.name}: sshd hung up during the login: {error or type(error).__name__}; check its "
        "log on that host (`journalctl -u ssh`)"
    )


def _refused(route: Route, keyring: Keyring) -> HostUnreachable:
    what = f"tried {', '.join(keyring.tried)}" if keyring.tried else "there is no key to try"
    skipped = f"; not usable: {', '.join(keyring.unusable)}" if keyring.unusable else ""
    port = f"-p {route.port} " if route.port != 22 else ""
    remedy = (
        "load it with `ssh-add`"
        if any("passphrase" in reason for reason in keyring.unusable)
        else f"authorize a key with `ssh-copy-id {port}{route.user}@{route.hostname}`, or set the "
        "right one as identity_file"
    )
    return HostUnreachable(
        f"{route.name}: permission denied for {route.user}@{route.hostname}:{route.port}: {what}"
        f"{skipped}; {remedy}"
    )


@dataclass
class Keyring:
    """The keys to offer in one login. unusable: existing keys that cannot be offered, and why."""

    route: Route
    tried: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    _agent: paramiko.agent.AgentSSH | None = None

    def offers(self) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield (name, key): the agent's keys that the config names, its other keys, then files.

        The hosts file's own key comes before all of them, because an agent with many keys would
        exhaust MaxAuthTries.
        """
        own = self.route.own_identity
        named = {
            public: path for path in self.route.identity_files if (public := _public_key(path))
        }
        held = self._agent_keys()
        if own and _public_key(own) not in held and (loaded := self._load(own)):
            yield from self._with_certificates(own, own, loaded)
        for public, path in named.items():
            if key := held.get(public):
                yield from self._with_certificates(f"{path} (agent)", path, key)
        if not self.route.identities_only:
            for public, key in held.items():
                if public not in named:
                    yield f"{key.comment or key.get_name()} (agent)", key
        for path in self.route.identity_files:
            if path == own or _public_key(path) in held:
                continue
            if loaded := self._load(path):
                yield from self._with_certificates(path, path, loaded)

    def close(self) -> None:
        if self._agent:
            self._agent._close()  # type: ignore[attr-defined]

    def _agent_keys(self) -> dict[bytes, paramiko.AgentKey]:
        if not self.route.identity_agent:
            return {}
        try:
            self._agent = _agent_at(self.route.identity_agent)
        except (OSError, paramiko.SSHException) as error:
            self.unusable.append(f"the agent at {self.route.identity_agent} ({error})")
            return {}
        return {key.blob: key for key in self._agent.get_keys()}

    def _load(self, path: str) -> paramiko.PKey | None:
        """Load a private key; None if that fails, with the reason in `unusable`."""
        try:
            status = Path(path).stat()
        except OSError:
            if path == self.route.own_identity:
                self.unusable.append(f"{path} (no such file)")
            return None  # most of the default files do not exist
        if _is_public(path):
            private = f", such as {path.removesuffix('.pub')}" if path.endswith(".pub") else ""
            self.unusable.append(f"{path} (a public key: name its private key{private})")
            return None
        if status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) & 0o077:
            self.unusable.append(f"{path} (readable by others: `chmod 600`)")
            return None
        reason = "not a private key"
        for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
            try:
                return kind.from_private_key_file(path)
            except paramiko.PasswordRequiredException:
                reason = "has a passphrase and is not in the agent"
                break
            except PermissionError:
                reason = "permission denied"
            except (paramiko.SSHException, OSError, ValueError, IndexError):
                continue
        self.unusable.append(f"{path} ({reason})")
        return None

    def _with_certificates(
        self, name: str, path: str, key: paramiko.PKey
    ) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield the key with each of its certificates, then the key alone."""
        for file in (f"{path}-cert.pub", *self.route.certificate_files):
            with contextlib.suppress(OSError, ValueError, IndexError, paramiko.SSHException):
                if _is_certificate_of(file, key):
                    key.load_certificate(file)
                    yield f"{name} with {Path(file).name}", key
        key.public_blob = None
        yield name, key


def _agent_at(path: str) -> paramiko.agent.AgentSSH:
    """Connect to the ssh-agent at this socket. paramiko itself supports only SSH_AUTH_SOCK."""
    agent = paramiko.agent.AgentSSH()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(AGENT_TIMEOUT)
        connection.connect(path)
        agent._connect(connection)  # type: ignore[attr-defined]
    except BaseException:
        connection.close()
        raise
    connection.settimeout(None)  # a signature may have to wait until the user touches a token
    return agent


def _is_public(path: str) -> bool:
    """Return whether the file contains a public key, such as `ssh-ed25519 AAAA... me@here`."""
    with contextlib.suppress(OSError), Path(path).open("rb") as file:
        return re.match(rb"(ssh|ecdsa|sk)-\S+ AAAA", file.read(100)) is not None
    return False


def _public_key(path: str) -> bytes | None:
    """Return an identity file's public key without the passphrase: from PATH.pub or the header."""
    for file in (f"{path}.pub", path):
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = Path(file).read_text()
            if text.startswith("-----BEGIN OPENSSH PRIVATE KEY-----"):
                return _public_part(base64.b64decode("".join(text.strip().splitlines()[1:-1])))
            if not text.startswith("-----"):
                return base64.b64decode(text.split()[1], validate=True)
    return None


def _public_part(private_key: bytes) -> bytes:
    """Parse OpenSSH's PROTOCOL.key: magic, cipher, KDF, its options, number of keys, public key."""
    message = paramiko.Message(private_key.removeprefix(b"openssh-key-v1\0"))
    for _cipher_kdf_options in range(3):
        message.get_binary()
    message.get_int()
    return message.get_binary()


def _is_certificate_of(file: str, key: paramiko.PKey) -> bool:
    """Return whether the certificate contains the public key's fields, which follow its name."""
    certificate = base64.b64decode(Path(file).read_text().split()[1])
    return key.asbytes()[4 + len(key.get_name()) :] in certificate
