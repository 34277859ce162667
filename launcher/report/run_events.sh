#!/bin/sh
# Prints the events in journals of a run, each after a line `== NODE_RANK/attempt-N`. $1: the run's
# folder. $2: how many bytes of a journal's `usage` events to print. As many bytes of its other events
# are printed, the newest. The other arguments name the journals.
cd "$1/nodes" 2>/dev/null || exit 0
size=$2
shift 2
export LC_ALL=C
event=$(printf '^[0-9.]*\t!')
usage='"kind": "usage"}$'
events() { grep -a "$event" "$name/journal"; }
for name; do
  [ -f "$name/journal" ] || continue
  printf '== %s\n' "$name"
  events | grep -av "$usage" | tail -c "$size"
  # A node is sampled every 10 seconds. Of too many samples, every Nth is printed, on all nodes the same.
  bytes=$(events | grep -a "$usage" | wc -c) n=1
  while [ $((bytes / n)) -gt "$size" ]; do n=$((2 * n)); done
  events | grep -a "$usage" | awk "int(\$1 / 10) % $n == 0" | tail -c "$size"
done
