#!/bin/sh
# To be sourced. Sets $line to the process of the node in control folder $1, which must be alive. Sets
# $enter to a program for `python -c` that runs the command line $1 with the environment in file
# descriptor 4, because all users could read arguments in a list of processes. On a terminal, TERM is $2.
# shellcheck disable=SC2034 # the script that sources this uses it
. ./process_files.sh
line=$(process_in "$1/pid")
alive "$line" || { echo "its supervisor has ended" >&2; exit 126; }
enter='import os, sys
line, term = sys.argv[1:]
with open(4, "rb") as file:
    environment = dict(pair.split(b"=", 1) for pair in file.read().split(b"\0") if b"=" in pair)
if os.isatty(0):
    environment[b"TERM"] = term.encode()
os.execve("/bin/sh", ["sh", "-c", line], environment)'
