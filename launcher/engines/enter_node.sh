#!/bin/sh
# To be sourced. A program for `python -c` that runs the command line $1 with the environment in the open
# file 4: as arguments, all users could read it in a list of processes. On a terminal, TERM is $2.
# shellcheck disable=SC2034 # the script that sources this uses it
enter='import os, sys
line, term = sys.argv[1:]
with open(4, "rb") as file:
    environment = dict(pair.split(b"=", 1) for pair in file.read().split(b"\0") if b"=" in pair)
if os.isatty(0):
    environment[b"TERM"] = term.encode()
os.execve("/bin/sh", ["sh", "-c", line], environment)'
