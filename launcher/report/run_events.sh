#!/bin/sh
# Prints the events in journals of a run, each after a line `== NODE_RANK/attempt-N`. $1: the run's
# folder. $2: how many bytes of a journal's `usage` events to print. As many bytes of its other events
# are printed, the newest. The other arguments name the journals.
cd "$1/nodes" 2>/dev/null || exit 0
size=$2
shift 2
export LC_ALL=C
event=$(printf '^[0-9.]*\t!')
# A node is sampled every 10 seconds. Of too many samples, every Nth is printed, on all nodes the same.
# shellcheck disable=SC2016 # this is for awk
thinned='
/"kind": "usage"}$/ {
  if (int($1 / 10) % n == 0) { sample[++count] = $0; bytes += length($0) + 1 }
  if (bytes > size) {
    n *= 2
    kept = bytes = 0
    for (i = 1; i <= count; i++) {
      split(sample[i], word)
      if (int(word[1] / 10) % n == 0) { sample[++kept] = sample[i]; bytes += length(sample[i]) + 1 }
    }
    count = kept
  }
  next
}
{ print }
END { for (i = 1; i <= count; i++) print sample[i] }'
for name; do
  [ -f "$name/journal" ] || continue
  printf '== %s\n' "$name"
  grep -a "$event" "$name/journal" | awk -v n=1 -v size="$size" "$thinned" | tail -c $((2 * size))
done
