#!/bin/sh
# Asks the supervisor of a node for stacks, and prints the answer. $1: the node's control folder,
# $2: `main` or `all`, $3: a unique word for this request, $4: the time to wait in tenths of a second.
# Exits with 4 if no answer came in time, and 5 if the journal's last entry shows that the node has ended.
cd "$1" 2>/dev/null || { echo "that host has no files of the node" >&2; exit 3; }
ended() { [ -f journal ] && tail -n 1 journal | grep -q '^[0-9.]*[[:space:]]![[:space:]]{.*"kind": "end"}$'; }
ended && exit 5
: > "ask-$2-$3" || exit 3
n=0
while [ ! -e "stacks-$3.json" ]; do
  sleep 0.1
  n=$((n + 1))
  [ "$n" -lt "$4" ] || { rm -f "ask-$2-$3"; exit 4; }
  if ended; then rm -f "ask-$2-$3"; exit 5; fi
done
[ -f "stacks-$3.json" ] && cat "stacks-$3.json"
rm -f "stacks-$3.json"
