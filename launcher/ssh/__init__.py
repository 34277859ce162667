"""Hosts behind SSH, and this machine. Only this package imports `paramiko`.

HostConnection -> SshMachine (client.py: opens sessions, and connects anew for the next command if the
connection was lost) -> connect.py (logs in; tries again if sshd drops the login) -> link.py. Nothing here
runs a command twice: launcher.follow.node_watcher decides to read on after a lost connection.
"""
