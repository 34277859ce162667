#!/bin/sh
# Prints a file name if anything in $1/checkpoints is newer than $2/spec.json.
# $1: run folder, $2: control folder
find "$1/checkpoints" -type f -newer "$2/spec.json" 2>/dev/null | head -n 1
