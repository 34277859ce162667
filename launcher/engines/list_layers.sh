#!/bin/sh
# Prints one line for each image of the engine: a JSON list of its layers (diff ids).
. ./find_engine.sh
$engine image ls -aq --no-trunc | sort -u |
  xargs -r "$engine" image inspect --format '{{json .RootFS.Layers}}'
code=$?
[ "$code" = 123 ] || exit "$code" # 123: an image has been removed since it was listed, or is damaged
