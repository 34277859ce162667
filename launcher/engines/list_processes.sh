#!/bin/sh
# Lists all claims on this host and then, for run $1 or for all runs, the newest attempt of each node of
# the process engine. Nodes are listed like claims, with their control folder in place of the name.
. ./list_claims.sh
for folder in "$runs"/${1:-*}/nodes/*; do
  cd "$folder" 2>/dev/null || continue
  for attempt in $(ls -d attempt-* 2>/dev/null | sort -t - -k 2nr); do
    control=$folder/$attempt
    if own "$control" && [ -f "$control/labels.json" ]; then
      printf '%s\0%s\0' "$control" "$(stat -c %Y "$control/labels.json")"
      read_file "$control/labels.json" 65536 | tr -d '\0'
      printf '\0'
      print_state "$control"
      printf '\0'
      break
    fi
  done
done
