"""Log in with the keys that `ssh` would offer, but try the key in the hosts file first."""

import base64
import contextlib
import io
import os
import re
import socket
import stat
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from ..errors import HostUnreachable
from ..text import counted, duration
from .connection import BROKEN, Connection
from .lean_paramiko import paramiko
from .route import Route

AGENT_TIMEOUT = 5.0  # seconds to connect to the agent
LOGIN_TIMEOUT = 20.0  # seconds, or more if configured; PAM and LDAP may be slow


def authenticate(transport: Connection, route: Route) -> None:
    """Log in as `ssh` would without a terminal. Raises HostUnreachable if that fails."""
    transport.auth_timeout = _login_timeout(route)
    try:
        _log_in(transport, route)
    except paramiko.AuthenticationException as error:
        if "timeout" not in str(error).lower():
            raise
        raise HostUnreachable(
            f"sshd did not answer the login request within {duration(transport.auth_timeout)}",
            "check whether the user database (LDAP, PAM) is hanging on that host",
        ) from None


def _log_in(transport: Connection, route: Route) -> None:
    try:
        transport.log_in(route.user)
        return  # without a key, as with Tailscale SSH
    except paramiko.BadAuthenticationType as refusal:
        if "publickey" not in refusal.allowed_types:
            methods = ", ".join(refusal.allowed_types)
            raise HostUnreachable(
                f"sshd accepts no keys, only {methods}, but ddpctl can only log in with keys",
                "set `PubkeyAuthentication yes` in its sshd_config",
            ) from None
    tried: list[str] = []
    keyring = Keyring(route)
    with contextlib.closing(keyring.offers()) as offers:
        for name, key in offers:
            tried.append(name)
            if _accepts(transport, route, key, tried):
                return
    what = f"tried {', '.join(tried)}" if tried else "there is no key to try"
    skipped = f" (not usable: {', '.join(keyring.unusable)})" if keyring.unusable else ""
    port = "-p PORT " if route.port_option else ""
    host, user = (route.host.name, "proxy_jump") if route.depth else ("HOST", "user")
    remedy = (
        f"authorize a key with `ssh-copy-id {port}{route.user}@{host}`, or fix `{user}:` or "
        "`identity_file:` in the hosts file"
    )
    if "has a passphrase" in skipped:
        remedy = "load the key with `ssh-add`"
    raise HostUnreachable(f"permission denied for user {route.user}: {what}{skipped}", remedy)


def _login_timeout(route: Route) -> float:
    return max(route.connect_timeout, LOGIN_TIMEOUT)


def _accepts(transport: Connection, route: Route, key: paramiko.PKey, tried: Sequence[str]) -> bool:
    try:
        more = transport.log_in(route.user, key)
    except paramiko.BadAuthenticationType:
        return False
    except BROKEN as error:
        if transport.is_active():
            if isinstance(error, TimeoutError):
                raise HostUnreachable(
                    f"the agent did not sign with {tried[-1]} within "
                    f"{duration(transport.auth_timeout)}",
                    "confirm the login in time, or set a longer ConnectTimeout in ~/.ssh/config; if "
                    "nothing asks you to confirm it, restart the agent",
                ) from None
            if "timeout" in str(error).lower():
                raise
            return False
        if len(tried) > 1 or "Too many" in str(error):
            raise HostUnreachable(
                f"sshd hung up after {counted(len(tried), 'key')} (MaxAuthTries): "
                f"{', '.join(tried)}",
                "set the right key as identity_file in the hosts file, or set `IdentitiesOnly yes` "
                "for the host in ~/.ssh/config",
            ) from None
        raise HostUnreachable(
            f"sshd hung up during the login: {error or type(error).__name__}",
            "check the log of sshd on that host (`journalctl -u ssh`)",
        ) from None
    if more:
        raise HostUnreachable(
            f"sshd requires {', '.join(more)} in addition to the key, but ddpctl only uses keys",
            "change AuthenticationMethods in its sshd_config",
        )
    return True


@dataclass
class Keyring:
    """The keys to offer during a login. unusable: keys and agents that cannot be used, and why."""

    route: Route
    unusable: list[str] = field(default_factory=list)

    def offers(self) -> Generator[tuple[str, paramiko.PKey]]:
        """Yield each key with its name.

        The key from the hosts file comes first, because an agent with many keys would exhaust
        MaxAuthTries. Then come the agent's keys that the config names, the agent's other keys, and
        the key files.
        """
        own, files = self.route.host.identity_file, self.route.identity_files
        named = {public: path for path in files if (public := _public_key(path))}
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
            held = self._agent_keys(agent)
            if own and _public_key(own) not in held:
                yield from self._from_file(own)
            for public, path in named.items():
                if key := held.get(public):
                    yield from self._with_certificates(f"{path} (agent)", path, key)
            if not self.route.identities_only:
                for public, key in held.items():
                    if public not in named:
                        yield f"{key.comment or key.get_name()} (agent)", key
            for path in files:
                if path != own and _public_key(path) not in held:
                    yield from self._from_file(path)

    def _agent_keys(self, connection: socket.socket) -> dict[bytes, paramiko.AgentKey]:
        """Return the agent's keys by public key. paramiko's own class uses only $SSH_AUTH_SOCK."""
        if not self.route.identity_agent:
            return {}
        agent = paramiko.agent.AgentSSH()
        connection.settimeout(AGENT_TIMEOUT)
        try:
            connection.connect(self.route.identity_agent)
            agent._connect(connection)  # type: ignore[attr-defined]
        except (OSError, paramiko.SSHException) as error:
            self.unusable.append(f"the agent at {self.route.identity_agent} ({error})")
            return {}
        # a signature may have to wait until the user touches a token
        connection.settimeout(_login_timeout(self.route))
        held = {key.blob: key for key in agent.get_keys()}
        for key in held.values():
            key.public_blob = None  # paramiko 3 has none if it does not know the kind of key
            if "-cert-" in key.get_name():  # paramiko would offer the key in it if that is RSA
                key.inner_key = None  # type: ignore[attr-defined]
        return held

    def _from_file(self, path: str) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield the key in a file. If it cannot be used, add the reason to `unusable` instead."""
        reason = "not a private key"
        try:
            status = Path(path).stat()
        except OSError:
            if path == self.route.host.identity_file:  # most of the default files do not exist
                self.unusable.append(f"{path} (no such file)")
            return
        if _is_public(path):
            private = f", such as {path.removesuffix('.pub')}" if path.endswith(".pub") else ""
            reason = f"a public key; name its private key{private}"
        elif status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) & 0o077:
            reason = "readable by others; run `chmod 600`"
        else:
            for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
                try:
                    key = kind.from_private_key(io.StringIO(_private_key(path)))
                except (paramiko.PasswordRequiredException, TypeError):
                    reason = "has a passphrase and is not in the agent"
                    break
                except PermissionError:
                    reason = "permission denied"
                except (
                    paramiko.SSHException,
                    UnsupportedAlgorithm,
                    OSError,
                    ValueError,
                    IndexError,
                ):
                    continue
                else:
                    yield from self._with_certificates(path, path, key)
                    return
        self.unusable.append(f"{path} ({reason})")

    def _with_certificates(
        self, name: str, path: str, key: paramiko.PKey
    ) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield the key with each of its certificates, then the key alone."""
        fields = key.asbytes()[4 + len(key.get_name()) :]  # a certificate contains these too
        for file in (f"{path}-cert.pub", *self.route.certificate_files):
            with contextlib.suppress(OSError, ValueError, IndexError, paramiko.SSHException):
                if fields in base64.b64decode(Path(file).read_text().split()[1]):
                    key.load_certificate(file)
                    yield f"{name} with {Path(file).name}", key
        key.public_blob = None
        yield name, key


def _private_key(path: str) -> str:
    """Return the text of a private key file. Converts PKCS#8, which ssh reads but paramiko does not.

    Raises TypeError if a key in PKCS#8 has a passphrase.
    """
    text = Path(path).read_text()
    if re.match("-----BEGIN (ENCRYPTED )?PRIVATE KEY-----", text):
        key = serialization.load_pem_private_key(text.encode(), None)
        how = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        text = key.private_bytes(serialization.Encoding.PEM, *how).decode()
    return text


def _is_public(path: str) -> bool:
    """Return whether the file contains a public key, such as `ssh-ed25519 AAAA... me@here`."""
    with contextlib.suppress(OSError), Path(path).open("rb") as file:
        return re.match(rb"(ssh|ecdsa|sk)-\S+ AAAA", file.read(100)) is not None
    return False


def _public_key(path: str) -> bytes | None:
    """Return the public key of an identity file; None if it is unknown.

    Needs no passphrase, because the key is in PATH.pub or in the file's unencrypted header.
    """
    for file in (f"{path}.pub", path):
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = Path(file).read_text()
            if text.startswith("-----BEGIN OPENSSH PRIVATE KEY-----"):
                # PROTOCOL.key: magic, cipher, KDF, its options, number of keys, public key
                data = base64.b64decode("".join(text.strip().splitlines()[1:-1]))
                message = paramiko.Message(data.removeprefix(b"openssh-key-v1\0"))
                for _cipher_kdf_options in range(3):
                    message.get_binary()
                message.get_int()
                return message.get_binary()
            if not text.startswith("-----"):
                return base64.b64decode(text.split()[1], validate=True)
    return None
