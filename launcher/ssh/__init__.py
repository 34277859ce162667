"""Hosts behind SSH, and this machine. Only this package imports `paramiko`."""
