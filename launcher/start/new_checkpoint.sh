#!/bin/sh
# Prints a file name if anything in $1/checkpoints is newer than the last start of torchrun, which has
# a folder in $2/ranks. Hidden files are incomplete.
# $1: run folder, $2: control folder
start=$(ls -td "$2"/ranks/* 2>/dev/null | head -n 1)
find "$1/checkpoints" -name '.*' -prune -o -type f -newer "${start:-$2/spec.json}" -print 2>/dev/null |
  head -n 1
