"""Limits of work on hosts, here so that reading them does not load paramiko."""

CONNECT_TIMEOUT = 10.0  # seconds per step of a login, unless the SSH config has another value
AT_ONCE = 32  # hosts
SHORT_OUTPUT, LONG_OUTPUT = 8_000_000, 32_000_000  # bytes that a command may print; long: a list
