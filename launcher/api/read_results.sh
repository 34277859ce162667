#!/bin/sh
# Prints a line `RANK JSON` for each result of a node. $1: the run's folder. $2: the attempt. $3: the node.
cd "$1/output/results/attempt-$2/node-$3" 2>/dev/null || exit 0
for file in rank-*; do
  case $file in *[!0-9a-z-]*) continue ;; esac
  [ -f "$file" ] || continue # a FIFO would block
  printf '%s ' "${file#rank-}"
  cat "$file"
  echo
done
