#!/bin/sh
# Runs the command line $2 with the environment and in the folder of the node in control folder $1.
# On a terminal, it also gets this TERM.
. ./process_files.sh
line=$(process_in "$1/pid")
alive "$line" || { echo "its supervisor has ended" >&2; exit 126; }
pid=${line%% *}
folder=$(sed -n 's/.*"cwd": "\([^"\\]*\)".*/\1/p' "$1/spec.json")
cd "${folder:-/proc/$pid/cwd}" || exit 126
# xargs has exit codes of its own, so the command's travels as text. Ctrl-C is for the command only.
trap : INT QUIT
exec 3>&1
# shellcheck disable=SC2016 # the inner shell expands them
code=$(xargs -0 -x -a "/proc/$pid/environ" sh -c '
  trap : INT QUIT
  [ ! -t 0 ] || set -- "$@" "TERM=${TERM:-dumb}"
  env -i "$@" sh -c "$0" >&3 3>&-
  echo "$?"' "$2")
exit "${code:-126}"
