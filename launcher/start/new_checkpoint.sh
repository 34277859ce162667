#!/bin/sh
# Prints a file name if any file in $1/checkpoints is newer than the last start of torchrun, which
# made a folder in a folder of $2/ranks; a process that is only prepared for a restart has made none.
# Hidden files are incomplete, so they do not count. $1: run folder, $2: control folder
start=$(ls -td "$2"/ranks/*/*/ 2>/dev/null | head -n 1)
find "$1/checkpoints" -name '.*' -prune -o -type f -newer "${start:-$2/spec.json}" -print 2>/dev/null |
  head -n 1
