#!/bin/sh
# Prints the events in each journal of a run, after a line `== NODE_RANK/attempt-N`. $1: the run's
# folder. Prints only the last $2 bytes.
. ../plan/attempts.sh
cd "$1" 2>/dev/null || exit 0
event=$(printf '^[0-9.]*\t!')
for journal in $attempts/journal; do
  [ -f "$journal" ] || continue
  name=${journal#nodes/}
  printf '== %s\n' "${name%/journal}"
  LC_ALL=C grep -a "$event" "$journal"
done | tail -c "$2"
