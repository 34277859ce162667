#!/bin/sh
# Removes container $1 and folder $2 when the launcher says that they are no longer needed, when it
# or its connection dies, or after 5 minutes, because a network may fail without a word. If the
# launcher has died, the engine may still be creating the container, so this tries again a bit later.
. ./find_engine.sh
pauses=0
timeout 300 head -n 1 | grep -q . || pauses="0 2 10"
for pause in $pauses; do
  sleep "$pause"
  "$engine" rm -f -v "$1"
  rm -rf "$2"
done >/dev/null 2>&1
