#!/bin/sh
# Runs the command line $2 in a container like that of the node in control folder $1, with the node's
# environment and in its working directory. On a terminal, the command also gets our TERM.
. ./enter_node.sh
# shellcheck disable=SC2013 # words
for child in $(cat "/proc/${line%% *}"/task/*/children); do # another child serves the image
  if grep -qz '^DDPCTL_RUN_ID=' "/proc/$child/environ" 2>/dev/null; then supervisor=$child; fi
done
# A second container may not read the environment of a process in the first, so pass the open file.
exec 4< "/proc/$supervisor/environ" || exit 126
# xargs has its own exit codes, so the command's is passed as text. Ctrl-C is for the command only.
trap : INT QUIT
exec 3>&1
# shellcheck disable=SC2016 # the inner shell expands them
code=$(xargs -0 -x -a "$1/command" sh -c '
  trap : INT QUIT
  enter=$0 line=$1; shift
  "$@" -I -S -c "$enter" "$line" "${TERM:-dumb}" >&3 3>&-
  echo "$?"' "$enter" "$2")
exit "${code:-126}"
