#!/bin/sh
# Prints the events of each journal of a run, after a line `== RANK/attempt-N`. $1: the run's
# folder. If there are more than $2 bytes, prints only the last ones.
. ../plan/attempts.sh
cd "$1" 2>/dev/null || exit 0
event=$(printf '^[0-9.]*\t!')
for journal in $attempts/journal; do
  [ -f "$journal" ] || continue
  name=${journal#nodes/}
  printf '== %s\n' "${name%/journal}"
  LC_ALL=C grep -a "$event" "$journal"
done | tail -c "$2"
