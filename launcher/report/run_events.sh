#!/bin/sh
# Prints the events in journals of a run, each after a line `== NODE_RANK/attempt-N`. $1: the run's
# folder. $2: how many bytes to print of a journal's `usage` events, which come every few seconds, and
# how many of its other events; the newest are printed. The other arguments name the journals.
cd "$1/nodes" 2>/dev/null || exit 0
size=$2
shift 2
export LC_ALL=C
event=$(printf '^[0-9.]*\t!')
usage='"kind": "usage"}$'
for name; do
  [ -f "$name/journal" ] || continue
  printf '== %s\n' "$name"
  grep -a "$event" "$name/journal" | grep -av "$usage" | tail -c "$size"
  grep -a "$usage" "$name/journal" | grep -a "$event" | tail -c "$size"
done
