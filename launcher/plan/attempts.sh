#!/bin/sh
# Other scripts source this. Where runs are on a host: ~/.ddpctl/runs/RUN/nodes/RANK/attempt-N.
# In Python: run_dir_in and place_in in launcher/plan/plan.py.
# shellcheck disable=SC2034 # other files read the variables
runs=$HOME/.ddpctl/runs
attempts='nodes/*/attempt-*' # in the folder of a run

# Prints the name of the newest attempt in the working directory, which is a node's folder.
newest_attempt() { ls -d attempt-* 2>/dev/null | sort -t - -k 2n | tail -n 1; }

# Prints at most the first $2 bytes of $1, if it is a regular file: reading a FIFO would block.
read_file() { [ -f "$1" ] && head -c "$2" "$1" 2>/dev/null; }

# Succeeds if the attempt in folder $1 belongs to a node on this host. Hosts may share a home.
own() { [ "$(read_file "$1/host" 256)" = "$(uname -n)" ]; }

# Succeeds if the attempt in folder $1 may be running on any host with this home: it still has the
# file ballast (perhaps empty), and its journal was written to within the last week.
is_open() { [ -e "$1/ballast" ] && [ -n "$(find "$1/journal" -mtime -7 2>/dev/null)" ]; }
