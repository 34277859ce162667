#!/bin/sh
# To be sourced. The layout of runs on a host: ~/.ddpctl/runs/RUN/nodes/RANK/attempt-N.
# In Python: launcher/plan/plan.py, run_dir_in and place_in.
# shellcheck disable=SC2034 # their readers are other files
runs=$HOME/.ddpctl/runs
attempts='nodes/*/attempt-*' # in the folder of a run

# Prints the newest attempt in the folder of a node, which is the working directory.
newest_attempt() { ls -d attempt-* 2>/dev/null | sort -t - -k 2n | tail -n 1; }

# Prints at most the first $2 bytes of file $1. Reading a FIFO would block, so it must be a file.
read_file() { [ -f "$1" ] && head -c "$2" "$1" 2>/dev/null; }

# Succeeds if the attempt in folder $1 belongs to a node of this host: hosts may share their home.
own() { [ "$(read_file "$1/host" 256)" = "$(uname -n)" ]; }

# Succeeds if the attempt in folder $1 may be running, on any host of this home: it still has its
# ballast, and its journal was written to within a week.
is_open() { [ -e "$1/ballast" ] && [ -n "$(find "$1/journal" -mtime -7 2>/dev/null)" ]; }
