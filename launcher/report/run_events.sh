#!/bin/sh
# Prints the events of each journal of a run, after a line `== RANK/attempt-N`. $1: run folder.
# Of very long journals, only the newest $2 bytes are printed.
. ../plan/attempts.sh
cd "$1" 2>/dev/null || exit 0
event=$(printf '^[0-9.]*\t!')
for journal in $attempts/journal; do
  [ -f "$journal" ] || continue
  name=${journal#nodes/}
  printf '== %s\n' "${name%/journal}"
  LC_ALL=C grep -a "$event" "$journal"
done | tail -c "$2"
