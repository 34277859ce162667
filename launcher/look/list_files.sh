#!/bin/sh
# Prints a row for each complete file of a run and each dump of torch's flight recorder, ended by NUL:
# `SIZE PATH`, then, after an empty row, sha256, two spaces, PATH. Paths are in the run's folder. The names
# of incomplete files start with a dot. $1: run folder
cd "$1" 2>/dev/null || exit 0
set -- checkpoints output nodes/*/attempt-*/flight-recorder
find "$@" -type f ! -name '.*' -printf '%s %p\0' 2>/dev/null
printf '\0'
find "$@" -type f ! -name '.*' -exec sha256sum -z {} + 2>/dev/null
