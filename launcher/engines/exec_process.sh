#!/bin/sh
# Runs the command line $2 with the environment and in the folder of the node in control folder $1.
. ./process_files.sh
line=$(pid_line "$1")
alive "$line" || { echo "its supervisor has ended" >&2; exit 126; }
pid=${line%% *}
folder=$(sed -n 's/.*"cwd": "\([^"\\]*\)".*/\1/p' "$1/spec.json")
cd "${folder:-/proc/$pid/cwd}" || exit 126
# shellcheck disable=SC2016 # the inner shell expands them
exec xargs -0 -x -a "/proc/$pid/environ" sh -c 'exec env -i "$@" sh -c "$0"' "$2"
