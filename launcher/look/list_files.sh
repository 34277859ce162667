#!/bin/sh
# Prints rows, ended by NUL, about each complete file of a run and each flight-recorder dump: first
# `SIZE PATH` of all, then, after an empty row, sha256, two spaces, PATH of all. Paths are relative
# to the run's folder, $1. The names of incomplete files start with a dot.
cd "$1" 2>/dev/null || exit 0
set -- checkpoints output nodes/*/attempt-*/flight-recorder
find "$@" -type f ! -name '.*' -printf '%s %p\0' 2>/dev/null
printf '\0'
find "$@" -type f ! -name '.*' -exec sha256sum -z {} + 2>/dev/null
