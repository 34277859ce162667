#!/bin/sh
# For each node on this host, of run $1 or of all runs, prints three lines about its newest attempt:
# `RUN RANK ATTEMPT MARKED WRITTEN`, run.json, and the journal's last entry. MARKED is 1 if the
# user cancelled the attempt. WRITTEN is the journal's modification time in unix seconds.
. ../plan/attempts.sh
for node in "$runs"/${1:-*}/nodes/*; do
  { cd "$node" && cd "$(newest_attempt)" && own .; } 2>/dev/null || continue
  run=${node%/nodes/*}
  [ -e cancelled ] && marked=1 || marked=0
  printf '%s %s %s %s %s\n' "${run##*/}" "${node##*/}" "${PWD##*/attempt-}" "$marked" \
    "$(stat -c %Y journal 2>/dev/null || echo 0)"
  read_file run.json 1048576 | tr -d '\n'; echo
  [ -f journal ] && tail -n 1 journal 2>/dev/null | head -c 65536 | tr -d '\n'; echo
done
