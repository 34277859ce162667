"""Hosts behind SSH, and this machine. Only this package imports `paramiko`.

HostConnection -> SshMachine (client.py: opens sessions; after a lost connection, reconnects for the
next command) -> connect.py (logs in; retries if sshd drops the login) -> open_link.py (opens the
socket, channel or ProxyCommand). Nothing here runs a command twice: after a lost connection,
launcher.follow.node_watcher decides whether to read on.
"""
